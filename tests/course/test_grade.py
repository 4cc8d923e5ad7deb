"""Files are graded: a right one, and some of the twenty of ``tests.instruments.graded``."""

import json
import sys

import pytest

import convlab
from convlab.__main__ import main
from convlab.core import rooms as grade_rooms
from convlab.core.errors import LaunchError, ProblemError
from convlab.core.machine import progress
from convlab.course import grading, vet
from convlab.course.grade import grade, verify
from convlab.course.grade_result import Grade
from convlab.course.lab import Milestone, Par
from tests.submissions import deviations, right_predictions, write_lab, write_submission

grade_module = sys.modules["convlab.course.grade"]
pytestmark = pytest.mark.xdist_group("course")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The small lab, and the right predictions."""
    folder = tmp_path_factory.mktemp("course")
    lab = write_lab(folder)
    return folder, lab, right_predictions(lab)


@pytest.mark.parametrize("name", ["border", "at_load", "shell"])
def test_a_planted_submission_gets_its_points(small, name):
    folder, lab, right = small
    path = write_submission(folder, name, right)
    result = convlab.grade(path, lab.path)
    assert not deviations(name, result.facts)


def test_what_the_compiler_adds_to_each_library_is_allowed(monkeypatch):
    """Some compilers link their C++ runtime statically, and it uses other functions in each version."""
    library = convlab.load("04_implicit_gemm", engine="sim").build().library
    used = vet._undefined(library)
    monkeypatch.setattr(vet, "_undefined", lambda _: used | {"strfromf128"})
    monkeypatch.setattr(vet, "_used_by_a_shipped_kernel", lambda: {"strfromf128"})
    vet.vet_library(library, "mine.cu")
    monkeypatch.setattr(vet, "_used_by_a_shipped_kernel", set)
    with pytest.raises(ProblemError, match="mine.cu calls strfromf128; a lab's file may call"):
        vet.vet_library(library, "mine.cu")


def test_a_right_file_is_graded_and_verified(small, capfd):
    folder, lab, right = small
    path = write_submission(folder, "best", right)
    receipt = folder / "receipt.json"
    status = main(["grade", str(path), "--lab", str(lab.path), "--json", "--save", str(receipt)])
    document = json.loads(capfd.readouterr().out)
    assert status == 0 and document["grade"]["points"] == 100
    again = grade(path, lab.path)
    assert json.dumps(again.receipt, indent=1) == receipt.read_text()

    assert verify(receipt, lab.path).ok
    forged = json.loads(receipt.read_text())
    forged["source"] = write_submission(folder, "border", right).read_text()
    receipt.write_text(json.dumps(forged))
    checked = verify(receipt, lab.path)
    assert not checked.ok and "source_digest" in str(checked)


def test_the_parts_that_a_cell_shows(small):
    folder, lab, right = small
    shown = grade(write_submission(folder, "best", right), lab.path)._repr_html_()
    assert "100 of 100 points" in shown and "own sizes" in shown


def test_a_wrong_prediction_is_not_told_the_count(small):
    """Else the second try gives its points for nothing."""
    folder, lab, right = small
    count = right["01_direct"]
    far = grade(write_submission(folder, "far", right), lab.path)
    prediction = next(part for part in far.facts["parts"] if part["part"] == "prediction")
    assert prediction["points"] == 0 and prediction["result"].endswith("not within 10%")
    told = str(far) + json.dumps(far.to_dict()) + json.dumps(far.facts)
    assert f"{count:,.0f}" not in told and f"{count:.0f}" not in told
    assert "test how you count on other sizes" in told
    near = grade(write_submission(folder, "near", right), lab.path)
    assert f"counted {count:,.0f}" in str(near)


@pytest.mark.gpu
def test_on_a_gpu_points_follow_the_time(small):
    folder, lab, right = small
    path = write_submission(folder, "best", right)
    table = '[gpu]\nfast_kernel = "01b_register_channels"\nslow_kernel = "01_direct"\n'
    timed = folder / "timed.toml"
    timed.write_text(lab.path.read_text() + table + "fast_ms = 100\nslow_ms = 200\n")
    parts = {
        part["part"]: part["points"] for part in grade(path, timed, engine="cuda").facts["parts"]
    }
    assert parts["correct"] == 40 and parts["pars"] == 30


@pytest.mark.pure
def test_files_of_several_labs_are_refused_before_any_is_graded(monkeypatch, tmp_path):
    monkeypatch.setattr(grade_module, "_graded", lambda *_: pytest.fail("a file was graded"))
    for name in ("direct", "tile"):
        answers = f"/* lab\nname: Ada\nlab: {name}\n*/\n"
        (tmp_path / f"{name}.cu").write_text(answers)
    with pytest.raises(ProblemError, match="several labs: direct, tile; give one with --lab"):
        grade([tmp_path / "direct.cu", tmp_path / "tile.cu"])


@pytest.mark.pure
def test_a_class_has_a_row_for_each_file_and_shows_which_is_graded(monkeypatch, tmp_path):
    shown = []

    def refused(submission, lab, engine):
        shown.extend(each.desc for each in progress.tqdm._instances)
        raise ProblemError("refused here")

    monkeypatch.setattr(grade_module, "_graded", refused)
    (tmp_path / "good.cu").write_text("/* lab\nname: Ada\nlab: direct\n*/\n")
    (tmp_path / "empty.cu").write_text("")
    (tmp_path / "folder").mkdir()
    files = [tmp_path / name for name in ("good.cu", "empty.cu", "folder")]
    # The files name the lab.
    grades = grade(files)
    reasons = [each.facts["failures"][0] for each in grades]
    assert reasons[0] == "refused here" and grades[0].facts["student"] == "Ada"
    assert "empty.cu has no comment block with answers" in reasons[1]
    assert "\n  good.cu: refused here\n  empty.cu has no comment block" in str(grades)
    assert "folder is a folder; give the files in it: " in reasons[2]
    assert grades.frame.points.tolist() == [0, 0, 0] and grades.frame.of.tolist() == [100] * 3
    assert any("grading good.cu" in each for each in shown)


@pytest.mark.pure
def test_files_of_one_name_have_their_folders_in_the_table(monkeypatch, tmp_path):
    def refused(submission, lab, engine):
        raise ProblemError("refused here")

    monkeypatch.setattr(grade_module, "_graded", refused)
    files = []
    for folder in ("ada", "emmy"):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "lab.cu")
        files[-1].write_text(f"/* lab\nname: {folder}\n*/\n")
    grades = grade(files, "direct")
    assert grades.frame.file.tolist() == ["ada/lab.cu", "emmy/lab.cu"]
    assert "emmy/lab.cu: refused here" in str(grades)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("lab", "message"),
    [
        ("stride", "lab.cu is for the lab 'stride', .* give the lab's file, --lab NAME.toml"),
        ("dirct", "or one of direct, .*; did you mean direct?"),
    ],
)
def test_an_unknown_lab_of_a_file(tmp_path, lab, message):
    path = tmp_path / "lab.cu"
    path.write_text(f"/* lab\nname: Ada\nlab: {lab}\n*/\n")
    with pytest.raises(ProblemError, match=message):
        grade(path)


@pytest.mark.pure
def test_a_long_report_keeps_its_second_place():
    race = "race: store to byte 4 of extern __shared__ " + "and a load " * 20 + "at lab.cu:85"
    assert grading._brief(LaunchError(race)) == race == grading._first_line(f"{race}\nmore")
    shown = grading._brief(LaunchError("x" * 9000))
    assert shown.endswith("x ...") and len(shown) < 600


@pytest.mark.pure
def test_the_next_milestone_is_one_that_gives_more():
    first, last = Milestone("01_direct", 0.4, 1000.0), Milestone("01b", 1.0, 100.0)
    par = Par("load_sectors", 20, (first, last))
    assert grading.next_of(par, 2000.0) is first
    assert grading.next_of(par, 1000.0) is last
    assert grading.next_of(par, 100.0) is None


@pytest.mark.pure
def test_each_par_has_a_whole_line_below_the_table():
    par = "load_sectors: 860,160 reaches 01_direct, 8 of 20 points; the next is 236,544, by 01b"
    part = {"part": "pars", "points": 8.0, "of": 30, "result": "all points for 0 of 1"}
    facts = {"file": "lab.cu", "student": "Ada", "lab": "direct", "points": 8.0, "of": 30}
    more = {"parts": [part], "pars": [par], "own": "", "failures": [], "notes": []}
    shown = str(Grade(facts | more, ""))
    assert f"\n  {par}" in shown and "…" not in shown


@pytest.mark.pure
def test_without_the_simulator_the_error_says_what_is_missing(monkeypatch, tmp_path):
    rooms = {name: room for name, room in grade_rooms.rooms().items() if name != "sim"}
    monkeypatch.setattr(grade_rooms, "rooms", lambda: rooms)
    path = tmp_path / "lab.cu"
    path.write_text("")
    with pytest.raises(LaunchError, match="the folder convlab/sim is not there"):
        grade(path, "direct")
    with pytest.raises(LaunchError, match="the folder convlab/sim is not there"):
        verify(path)
