"""The output of `check --json` matches its schema for every kind of fault; the schema can fail."""

import copy
import functools
import json

import pytest

import convlab
from convlab.commands.cli import build_parser, look_up
from convlab.commands.command import CommandForEachKernel
from convlab.core.faults import FAULTS
from tests.instruments import mend
from tests.schema import VALIDATOR
from tests.suites import FOLDER, parted

pytestmark = pytest.mark.xdist_group("report schema")  # the reports are made once
PROBLEM = "N1 C2 H5 W9 K2 R2 S3 s1x2 p0 d1 g1"  # 32 outputs, 16 of each channel
PLACES = {"header": "", "device": "if (t < end) y[t] = 1;", "host": "", "launch": "32, 0"}
PLANTED = parted("reported", "broken")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The reports of one command on all planted kernels and a sound one; each one's file."""
    folder = tmp_path_factory.mktemp("planted")
    paths = {name: folder / f"{i:02}.cu" for i, name in enumerate(PLANTED)}
    text = (FOLDER / "reported.cu").read_text().partition("\n// ----")[0]
    for name, (_, parts) in PLANTED.items():
        paths[name].write_text(text % (PLACES | parts))
    words = [*map(str, paths.values()), "01", "--problem", PROBLEM, "--engine", "sim", "--json"]
    with pytest.MonkeyPatch.context() as patch:  # not the 20 s for which a loop may run
        quick = functools.partial(convlab.load, time_limit=2)
        patch.setattr(
            CommandForEachKernel, "load", lambda _, name, engine: quick(name, engine=engine)
        )
        arguments = look_up(build_parser().parse_args(["check", *words]))
        found = list(arguments.command.run(arguments))
    reports = json.loads(json.dumps([each.to_dict() for each in found], allow_nan=False))
    VALIDATOR.validate({"ok": False, "reports": reports})
    return dict(zip([*paths, "sound"], reports, strict=True)), paths


@pytest.mark.parametrize("name", PLANTED)
def test_fault_is_reported_with_its_place(reports, name):
    report = reports[0][name]
    path = reports[1][name]
    verdict, kind, array, index, thread = json.loads(f"[{PLANTED[name][0]}]")
    assert (report["verdict"], report["fault"]) == (verdict, kind)
    assert report["ok"] is report["correct"] is False and report["kernel"] == path.stem
    asked = None if verdict == "does not build" else PROBLEM
    assert (report["problem"], report["dimensions"]) == (asked, asked)
    finding = next(f for f in report["findings"] if f["error"])
    shown = "\n".join(report["failures"])
    assert (finding["kind"], finding["array"], finding["index"]) == (kind, array, index)
    assert finding["try"] == FAULTS[kind].advice and finding["text"] in shown
    lines = enumerate(path.read_text().splitlines(), 1)
    here = next((number for number, line in lines if "// here" in line), None)
    assert (finding["file"], finding["line"]) == (here and str(path), here)
    if thread != "any":
        assert finding["thread"] == thread and finding["block"] == (thread and [0, 0, 0])
    if name == "race":
        assert (finding["other_line"], finding["other_thread"]) == (here + 1, [0, 0, 0])


def test_report_of_a_set_has_the_form_of_its_smallest_failing_problem(reports):
    """A program reads one form: kind, place, problem and advice have the same keys in both."""
    found = convlab.check(
        convlab.load(reports[1]["out of bounds"], engine="sim"),
        [PROBLEM, "N1 C2 H5 W5 K2 R3 S3"],
        progress=False,
    )
    report = json.loads(json.dumps(found.to_dict()))
    VALIDATOR.validate({"ok": False, "reports": [report]})
    shown = [f for f in report["findings"] if f["kind"] != "compiler warning"]  # these come last
    assert shown == report["smallest"]["findings"] == report["findings"][: len(shown)]
    same = ("verdict", "fault", "failures", "dimensions", "problem", "correct", "ok")
    assert {key: report[key] for key in same} == {key: report["smallest"][key] for key in same}
    assert report["fault"] == "global out of bounds" and report["findings"][0]["line"]
    declined = convlab.check(
        convlab.load(reports[1]["declined"], engine="sim"), [PROBLEM], progress=False
    )
    report = json.loads(json.dumps(declined.to_dict()))
    VALIDATOR.validate({"ok": False, "reports": [report]})
    assert (
        report["verdict"] == report["fault"] == "unsupported" and "R == 7" in report["failures"][0]
    )


@pytest.mark.parametrize("name", ["01c_no_barrier_before", "01_stride_ignored", "01_bias_ignored"])
def test_program_mends_a_kernel_by_its_report_alone(name, monkeypatch):
    (mutant,) = (m for mutants in mend.chosen().values() for m in mutants if m.name == name)
    few = [
        convlab.problem(spec) for spec in ("N1 C2 H9 W8 K3 R3 S3", "N1 C2 H9 W8 K3 R3 S3 s2x1 bias")
    ]
    monkeypatch.setattr(mend, "everything", lambda: few)
    monkeypatch.setattr(mend, "TRIES", 4)
    assert mend.json_report("no_kernel", "no CUDA", few)["fault"] == "does not build"
    outcome = mend.mend(name, mutant.source)
    assert outcome.mended and outcome.text != mutant.source and len(outcome.rules) == 1, outcome
    assert [*map(len, mend.chosen().values())] == [4] * len(mend.KINDS)


def test_sound_kernel_has_no_fault(reports):
    report = reports[0]["sound"]
    assert (report["verdict"], report["fault"], report["findings"]) == ("correct", None, [])
    assert report["ok"] is report["correct"] is True and report["error"] <= report["bound"]


SPOILT = {
    "a field more": lambda r: r.update(more=1),
    "a field less": lambda r: r.pop("dimensions"),
    "a kind that there is not": lambda r: r["findings"][0].update(kind="trouble"),
    "a place in two dimensions": lambda r: r["findings"][0].update(block=[0, 0]),
    "a finding without advice": lambda r: r["findings"][0].pop("try"),
    "a finding with more": lambda r: r["findings"][0].update(column=3),
    "correct, with a fault": lambda r: r.update(verdict="correct"),
    "wrong, without one": lambda r: r.update(findings=[]),
    "a text for a line": lambda r: r["findings"][0].update(line="3"),
}


@pytest.mark.parametrize("name", ["race", "wrong"])
@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_schema_refuses(reports, name, spoil):
    report = copy.deepcopy(reports[0][name])
    assert VALIDATOR.is_valid({"ok": False, "reports": [report]})
    spoil(report)
    assert not VALIDATOR.is_valid({"ok": False, "reports": [report]})
