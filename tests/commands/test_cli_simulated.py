"""The commands check, ab and sweep, on simulated kernels."""

from __future__ import annotations

import json
import re

import convlab
from convlab import __main__
from convlab.__main__ import main
from convlab.core.correctness import check as checking
from convlab.strict import settings
from tests.fakes import PLAIN
from tests.spoilt import made

SPEC = "N=1,C=4,H=20,W=20,K=8,R=3,S=3"


def test_command_line(tmp_path, capfd, monkeypatch):
    path = tmp_path / "91_no_stride.cu"
    picture = tmp_path / "map.png"
    path.write_text(made("correct").source.replace("q * conv.stride_w", "q"))
    arguments = ["check", str(path), "--engine", "sim"]
    assert __main__.main([*arguments, "--problem", "N1 C1 H5 W9 K2 R1 S1 s1x2"]) == 1
    assert "91_no_stride on N1 C1 H5 W9 K2 R1 S1 s1x2 p0 d1 g1: INCORRECT" in capfd.readouterr().out
    right = ["--problem", "N1 C1 H5 W9 K2 R1 S1", "--plot", str(picture), "--json"]
    assert __main__.main([*arguments, *right]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["ok"] and len(document["reports"]) == 1
    assert picture.stat().st_size > 5000

    monkeypatch.setattr(checking, "named_problems", {"awkward": [PLAIN], "limits": []}.get)
    arguments = ["check", "01_direct", "--engine", "sim", "--count", "6", "--seed", "3", "--json"]
    assert __main__.main(arguments) == 0
    (found,) = json.loads(capfd.readouterr().out)["reports"]
    assert found["kernel"] == "01_direct"
    (note,) = found["notes"]
    assert note.startswith("1 fixed and 8 generated problems, seed 3")
    of_source = int(re.search(r", (\d+) for conditions and sizes in the source$", note)[1])
    assert sum(not report["setting"] for report in found["reports"]) == 1 + 8 + of_source
    known = {setting.words for setting in settings.SETTINGS}
    tried = {report["setting"] for report in found["reports"]} & known
    assert 8 <= len(tried) < len(known), "those for halves are not for this kernel"


def test_commands(capfd, tmp_path):
    where = ["--engine", "sim", "--problem", SPEC]
    assert main(["ab", "01", "03", *where, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["verdict"] == "fewer bytes"
    plot = tmp_path / "sweep.png"
    assert main(["sweep", "03", "TILE=8,24", *where, "--json", "--plot", str(plot)]) == 0
    document = json.loads(capfd.readouterr().out)
    assert len(document["rows"]) == len(document["dropped"]) == 1 and plot.exists()
    assert main(["sweep", "03", "TILE=8,x", *where]) == 2
    assert main(["ab", "01", "no_such_kernel", *where]) == 2
    path = tmp_path / "halved.cu"
    source = convlab.load("01_direct").source
    path.write_text(source.replace("g_y[i] =", "g_y[i] = 0.5f *"))
    assert main(["ab", "01", str(path), *where]) == 1
    assert "INCORRECT" in capfd.readouterr().out
