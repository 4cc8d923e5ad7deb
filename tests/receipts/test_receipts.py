"""Results that are saved, read again, and laid beside one another."""

import copy
import dataclasses
import json
import re

import pytest

import convlab
from convlab.__main__ import main
from convlab.core.errors import ProblemError
from convlab.core.kernel.provenance import made_of
from convlab.core.timing.compare import compare
from convlab.receipts.history import History, history, load_result
from convlab.receipts.receipt import Receipt
from tests.fake_times import timed
from tests.fakes import PLAIN, Fake, shifted

SPEC = "N=1,C=4,H=20,W=20,K=8,R=3,S=3"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    for module in ("core.show.result", "receipts.history"):
        monkeypatch.setattr(f"convlab.{module}.receipts_folder", lambda: tmp_path / "receipts")
    return tmp_path


@pytest.fixture(scope="module")
def simulated():
    return convlab.ab("01_direct", "03_smem_tile@TILE=8", SPEC, engine="sim")


def on_gpu(planted=1.021, when="2026-11-21T10:00:00+00:00", gpu="an H200", digest="ab" * 32):
    """An A/B as a GPU gives it."""
    kernels = [{"name": name, "digest": digest, "build": "x"} for name in ("01_a", "02_b")]
    versions = {"torch": "2.13", "driver": "580", "convlab": "0.1"}
    made = {"when": when, "gpu": gpu, "versions": versions, "kernels": kernels}
    return dataclasses.replace(timed(planted), made=made)


def test_receipt_has_sources_flags_versions_and_all_samples(simulated, own_folder):
    made = simulated.made
    first, second = made["kernels"]
    assert set(first["sources"]) == {"01_direct.cu", "convlab.cuh"}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in first["sources"].values())
    assert "-DTILE=8" in second["flags"] and second["defines"] == {"TILE": 8}
    assert first["digest"] != second["digest"] and first["build"].startswith("01_direct-sim-")
    assert {"torch", "python", "convlab", "c++", "driver"} <= set(made["versions"])
    assert re.match(r"20\d\d-\d\d-\d\dT", made["when"])
    result = on_gpu()
    document = json.loads(result.save(own_folder / "new" / "r.json").read_text())
    assert len(document["samples"]) == len(result.samples) == 64
    assert document["rows"][0]["mhz"] == 1980 and document["kind"] == "AB"


def test_sources_digest_changes_with_a_header_and_a_callable_has_its_own(tmp_path):
    (tmp_path / "own.cuh").write_text("#define ONE 1\n")
    text = convlab.load("01_direct", engine="sim").source
    (tmp_path / "mine.cu").write_text(f'#include "own.cuh"\n{text}')
    kernel = convlab.load(tmp_path / "mine.cu", engine="sim")
    before = made_of([kernel])["kernels"][0]
    (tmp_path / "own.cuh").write_text("#define ONE 2\n")
    after = made_of([kernel])["kernels"][0]
    assert before["digest"] != after["digest"]
    assert before["sources"]["mine.cu"] == after["sources"]["mine.cu"]


@pytest.mark.parametrize("kind", ["simulated", "timed", "wrong", "set", "comparison", "check"])
def test_what_is_loaded_reads_as_it_was(kind, simulated, own_folder):
    result = {
        "simulated": lambda: simulated,
        "timed": on_gpu,
        "wrong": lambda: convlab.ab(Fake(name="01_a"), Fake(shifted, name="03_c"), PLAIN),
        "set": lambda: convlab.ab(Fake(name="01_a"), Fake(name="02_b"), [PLAIN, SPEC]),
        "comparison": lambda: compare([Fake(name="01_a"), Fake(name="02_b")], PLAIN),
        "check": lambda: convlab.check("01_direct", SPEC),
    }[kind]()
    found = load_result(result.save(own_folder / "r.json"))
    assert isinstance(found, Receipt) and found.kind == type(result).__name__
    assert str(found) == repr(found) == str(result) and found.sentence == result.sentence
    assert found.ok == result.ok and found.notes == tuple(result.notes)
    whole = {key: value for key, value in result.to_dict().items() if key != "results"}
    assert found.to_dict().items() >= whole.items()
    assert len(found.frame) == len(result.frame) and found._repr_html_()
    again = found.save(own_folder / "again.json")
    assert json.loads(again.read_text()) == json.loads((own_folder / "r.json").read_text())
    assert found.plot(own_folder / "r.png") and (own_folder / "r.png").stat().st_size > 3_000


def test_history_lays_edits_days_and_gpus_beside_one_another(own_folder):
    kept = own_folder / "kept"
    on_gpu(1.02).save(kept / "b.json")
    on_gpu(0.95, "2026-11-22T10:00:00+00:00", digest="cd" * 32).save(kept / "a.json")
    on_gpu(1.1, "2026-11-23T10:00:00+00:00", "an L4", "cd" * 32).save(kept / "c.json")
    found = load_result(*(kept / f"{name}.json" for name in "acb"))
    assert isinstance(found, History) and [r.path.stem for r in found.receipts] == ["b", "a", "c"]
    assert found.sentence == "receipts: 3, kernels: 2, 2026-11-21 to 2026-11-23"
    assert len(found.frame) == 3 * 2 * 2 and set(found.frame["mode"]) == {"cold", "hot"}
    changes = [line for line in found.changes if line.startswith("02_b on plain, cold")]
    assert "source ababab to cdcdcd" in changes[0] and "x0.93" in changes[0]
    assert "GPU an H200 to an L4" in changes[1] and "source" not in changes[1]
    chart = found.plot(own_folder / "history.png")
    assert [axes.get_title() for axes in chart.axes] == ["plain, cold", "plain, hot"]
    assert max(map(len, str(found).split("\n"))) <= 100 and "an L4" in str(found)
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_same_samples_change_nothing_but_their_day(own_folder):
    one = on_gpu().save(own_folder / "1.json")
    two = on_gpu(when="2026-11-22T10:00:00+00:00").save(own_folder / "2.json")
    assert all(
        "x1; same GPU, source and versions" in line for line in load_result(one, two).changes
    )


NO_RECEIPTS = {
    "empty": (b"", "is not a receipt"),
    "a list": (b"[]", "is not a receipt"),
    "other JSON": (b"{}", "is not a receipt"),
    "another version's": (
        b'{"convlab_receipt": 99}',
        "format 99 of another convlab, and this one reads format 2",
    ),
    "cut": (b'{"convlab_receipt": 2, "kind": "AB', "is not a receipt"),
    "bytes": (b"\xff", "UTF-8"),
    "100,000 brackets": (b"[" * 100_000, "is not a receipt"),
    "100,000 objects": (b'{"a":' * 100_000, "is not a receipt"),
    "NaN": (b'{"convlab_receipt": 2, "cost": NaN}', "it contains NaN"),
    "infinite": (b'{"convlab_receipt": 2, "cost": 1e999}', "the number '1e999' is too large"),
    "5,000 digits": (b'{"convlab_receipt": %s}' % (b"9" * 5000), "is not a receipt"),
    "a repeated key": (b'{"convlab_receipt": 2, "a": 1, "a": 2}', "a key occurs twice"),
    "no keys": (b'{"convlab_receipt": 2}', "is a damaged receipt: kind is missing"),
    "UTF-16": ('{"convlab_receipt": 2}'.encode("utf-16"), "is not UTF-8"),
}
# A damaged part of a receipt, and what the message says about it.
DAMAGE = {
    "notes": ("notes", "a text", "notes is 'a text', of a wrong type"),
    "a note": ("notes", [3], r"notes\[0\] is 3, not a text"),
    "ok": ("ok", 1, "ok is 1, of a wrong type"),
    "rows": ("rows", [[]], r"rows\[0\] is \[\], not an object"),
    "made": ("made", {"when": 3}, "made.when is 3, of a wrong type"),
    "versions": ("made", {"versions": []}, r"made.versions is \[\], of a wrong type"),
    "a cost": ("costs", [{"problem": "p"}], r"costs\[0\].mode is missing"),
    "surrogates": ("sentence", "\ud800", "a text that is not valid Unicode"),
    "a huge number": ("samples", [{"ms": 10**30}], "the number 1000.* is too large"),
    "a long text": ("ok", "x" * 5000, "ok is 'x{59}…, of a wrong type"),
}


@pytest.mark.parametrize(("key", "value", "told"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_in_a_receipt_is_named(own_folder, key, value, told):
    path = own_folder / "r.json"
    document = json.loads(on_gpu().save(path).read_text())
    path.write_text(json.dumps({**document, key: value}))
    with pytest.raises(ProblemError, match=f"r.json is a damaged receipt: .*{told}"):
        load_result(path)
    found = history([own_folder])
    assert not found.receipts and "damaged" in " ".join(str(found).split())


@pytest.mark.parametrize(("data", "told"), NO_RECEIPTS.values(), ids=NO_RECEIPTS)
def test_what_is_no_receipt_is_told(own_folder, data, told):
    (own_folder / "r.json").write_bytes(data)
    with pytest.raises(ProblemError, match=told):
        load_result(own_folder / "r.json")
    on_gpu().save(own_folder / "s.json")  # in a folder, it hides no other
    found = history([own_folder])
    assert (
        len(found.receipts) == 1
        and told in " ".join(str(found).split())
        and "left out" in found.notes[-1]
    )


PATHS = {
    "missing": ("none/none.json", "No such file"),
    "a folder": (".", "Is a directory"),
    "below a file": ("file.json/x.json", "Not a directory|File exists"),
    "none": (None, "a path"),
    "a number": (3, "a path"),
    "too long": ("a" * 300, "use another"),
}


@pytest.mark.parametrize(("path", "told"), PATHS.values(), ids=PATHS)
def test_what_is_wrong_with_a_path_is_told(own_folder, monkeypatch, path, told):
    monkeypatch.chdir(own_folder)
    (own_folder / "file.json").write_text("{}")
    result = on_gpu()
    uses = [load_result, result.save] if path is not None else [load_result, result.figure().save]
    for use in uses if told != "No such file" else uses[:1]:  # what is not there is made
        with pytest.raises(ProblemError, match=told):
            use(path)
    for bad in ("x", "x.txt"):
        with pytest.raises(ProblemError, match=r"must end in \.png"):
            result.plot(bad)


def test_a_receipt_is_not_lost_unsaid(own_folder, monkeypatch, capfd):
    monkeypatch.setattr("convlab.core.machine.toolchain.lasting", lambda: False)
    with pytest.warns(UserWarning, match="is deleted when Python ends.*CONVLAB_CACHE"):
        on_gpu().save()
    assert main(["ab", "01", "03", "--problem", SPEC, "--save"]) == 2  # before the work
    assert "CONVLAB_CACHE" in capfd.readouterr().err
    words = ["--save", str(own_folder / "r.json"), "01", "--problem", SPEC, "--engine=sim"]
    assert main(["compare", *words]) == 0
    assert f"receipt: {own_folder}/r.json" in capfd.readouterr().out


def test_commands(own_folder, capfd):
    assert history().sentence.startswith("no receipts in ") and history().plot()
    words = ["--engine", "sim", "--problem", SPEC]
    assert main(["ab", "01", "03", *words, "--save"]) == 0
    assert "receipt: " in capfd.readouterr().out
    assert main(["compare", "01", *words, "--save", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert len(list((own_folder / "receipts").iterdir())) == 2 and document["receipt"].endswith(
        ".json"
    )
    assert main(["history", "--plot", str(own_folder / "h.png")]) == 0
    told = capfd.readouterr().out
    assert "receipts: 2, kernels: 2" in told and "MB" in told and (own_folder / "h.png").exists()
    assert main(["history", document["receipt"], "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["receipts"]) == 1
    assert main(["history", str(own_folder / "none")]) == 2


def test_a_receipt_is_not_changed_by_who_reads_it(own_folder):
    found = load_result(on_gpu().save(own_folder / "r.json"))
    before = copy.deepcopy(found.document)
    found.to_dict()["ok"] = None
    assert found.plot() and found.costs is not None and found.document == before


def test_problems_that_differ_in_their_padding_alone_are_told_apart(tmp_path):
    specs = ("N=1,C=1,H=6,W=6,K=1,R=3,S=3", "N=1,C=1,H=6,W=6,K=1,R=3,S=3,padding=1")
    for n, spec in enumerate(specs):
        convlab.compare("01_direct", spec, engine="sim").save(tmp_path / f"{n}.json")
    assert history([tmp_path]).frame["problem"].nunique() == 2


@pytest.mark.gpu
def test_gpu_a_measured_result_is_loaded_with_what_it_was_made_with(tmp_path):
    result = convlab.ab("cudnn:fp32", "cudnn:tf32", SPEC, limit_seconds=1.0)
    assert convlab.load_result(result.save(tmp_path / "r.json")).made == result.made
