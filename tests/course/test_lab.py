"""Labs, answers, guesses: what needs no compiler."""

import json
import re
from pathlib import Path

import pytest

import convlab
from convlab.core.errors import ProblemError
from convlab.core.kernel import catalog
from convlab.course import guess as guess_module
from convlab.course.grade import grade, verify
from convlab.course.grade_result import Grade, Grades, Verified
from convlab.course.grading import linear, reached_by
from convlab.course.guess import Asked
from convlab.course.lab import FOLDER, Milestone, Par, find_lab, names
from convlab.course.pars import _with_value
from convlab.course.submission import parse, read_submission
from convlab.course.vet import vet_source
from tests.submissions import KEY, LAB

pytestmark = pytest.mark.pure
HERE = Path("lab.cu")


@pytest.fixture
def lab_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(LAB)
    return path


# ---- labs


@pytest.mark.parametrize("name", names())
def test_each_shipped_lab_has_its_key_and_counted_pars(name):
    lab = find_lab(name)
    assert lab.answer in lab.choices and lab.hidden > 0
    for par in lab.pars:
        values = [milestone.value for milestone in par.milestones]
        assert None not in values
        assert values == sorted(values, reverse=True), "a later milestone has a lower count"


def test_own_sizes_depend_on_the_name_alone(lab_file):
    lab = find_lab(lab_file)
    assert lab.problem_of("Ada  Lovelace ") == lab.problem_of("ada lovelace")
    sizes = {str(lab.problem_of(f"student {number}")) for number in range(20)}
    assert len(sizes) > 10


def test_a_key_adds_the_hidden_problems_and_the_answer(lab_file):
    without = find_lab(lab_file)
    assert (without.answer, without.hidden, len(without.problems)) == (None, 0, 2)
    lab_file.with_suffix(".key.toml").write_text(KEY)
    lab = find_lab(lab_file)
    assert (lab.answer, lab.hidden, len(lab.problems)) == ("b", 2, 4)
    assert lab.problems == find_lab(lab_file).problems
    assert lab.digest != without.digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title", "titel", "unknown entry 'titel'.*title"),
        ('predict = "load_sectors"', "", "lacks predict"),
        ('predict = "load_sectors"', 'predict = "loads"', "no predict in .*'loads'"),
        ("H = [8, 16]", "H = [16, 8]", "student.H is an empty range"),
        ("H = [8, 16]", "H = 2", "no valid problem in these ranges"),
        ("H = [8, 16]", "height = 3", "unknown size 'height'"),
        ("points = 20", "points = 21", "31 points together, and points.pars is 30"),
        ("share = 0.4", "share = 1.4", "share must be a finite number"),
        ("share = 0.4", "share = 1.0", None),
        ("problems = [", "problems = 3 # [", "problems must be a list"),
        ("[question]", "[question", "no valid TOML"),
    ],
)
def test_a_mistake_in_a_lab_is_named(lab_file, old, new, message):
    assert old in LAB
    lab_file.write_text(LAB.replace(old, new))
    if message is None:
        find_lab(lab_file)
        return
    with pytest.raises(ProblemError, match=message):
        find_lab(lab_file)


def test_an_unknown_lab_lists_those_that_exist():
    with pytest.raises(ProblemError, match="direct, ece408, gpumode_conv2d, tile"):
        find_lab("direkt")


def test_a_par_is_the_best_milestone_that_is_reached():
    par = Par("load_sectors", 20, (Milestone("a", 0.4, 1000), Milestone("b", 1.0, 200)))
    reached = [reached_by(par, value) for value in (1100, 1010, 203, 202, 0)]
    assert [each and each.kernel for each in reached] == [None, "a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("ms", "share"), [(1.0, 1.0), (2.0, 1.0), (3.0, 0.5), (4.0, 0.0), (9.0, 0)]
)
def test_points_are_linear_in_the_time(ms, share):
    assert linear(ms, fast=2.0, slow=4.0) == share


def test_a_par_s_value_is_written_into_its_line():
    once = _with_value(LAB, "load_sectors", "01_direct", 1234)
    twice = _with_value(once, "load_sectors", "01_direct", 99)
    assert '{ kernel = "01_direct", share = 0.4, value = 1234 }' in once
    assert twice == once.replace("1234", "99")
    stored = _with_value(LAB, "store_sectors", "01_direct", 7)
    assert '{ kernel = "01_direct", share = 1.0, value = 7 }' in stored
    timed = _with_value(f"{LAB}[gpu]\nslow_ms = 3\n", "slow_ms", "01_direct", 4)
    assert timed.endswith("[gpu]\nslow_ms = 4\n")
    predicted = LAB.replace("store_sectors", "predicted_ms")
    assert "share = 1.0, value = 0.5 }" in _with_value(predicted, "predicted_ms", "01_direct", 0.5)
    with pytest.raises(ProblemError, match="no line"):
        _with_value(LAB, "load_sectors", "02_im2col_gemm", 1)


# ---- answers


def test_a_block_of_answers_is_read():
    text = "/* lab\nname: Ada Lovelace\n * prediction: 12,800\nchoice: b\n*/\n// title: x\n"
    answers = parse(text, HERE)
    assert (answers.name, answers.prediction, answers.choice) == ("Ada Lovelace", 12800.0, "b")
    assert answers.lab == ""


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("", "no comment block"),
        ("/* lab\nname: a\n*/\n/* lab\nname: b\n*/", "2 comment blocks"),
        ("/* lab\nchoice: b\n*/", "lacks the name"),
        ("/* lab\nname: a\nname: b\n*/", "name is given twice"),
        ("/* lab\nname: a\npredicton: 3\n*/", "cannot read 'predicton: 3'.*prediction"),
        ("/* lab\nname: a\nprediction: many\n*/", "must be a number such as 12800, not 'many'"),
        ("/* lab\nname: a\nprediction: -1\n*/", "must be a number"),
        ("/* lab\nname: a\nprediction: nan\n*/", "must be a number"),
        (f"/* lab\nname: {'a' * 101}\n*/", "at most 100 printable"),
        ("/* lab\nname: a\x1b[2J\n*/", "printable"),
    ],
)
def test_a_mistake_in_the_answers_is_named(block, message):
    with pytest.raises(ProblemError, match=message):
        parse(block, HERE)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('#include "/etc/passwd"', "#include of /etc/passwd"),
        ('#include "../convlab.cuh"', "#include of"),
        ("#include <cstdio>", "#include of cstdio"),
        ("#include CONVLAB", "#include of CONVLAB"),
        ('%:include "/etc/passwd"', "#include of"),
        ('#inc\\\nlude "/etc/passwd"', "a word that goes on"),
        ("#embed </etc/passwd>", "#embed"),
        ("#pragma GCC optimize 3", "this pragma"),
        ('void f() { asm("nop"); }', "assembly"),
        ('void f() { __asm__ volatile("" "nop"); }', "assembly"),
        ("__attribute__((constructor)) void f();", "attributes"),
        ("[[gnu::constructor]] void f();", "attributes"),
        ("#define A(x, y) x##y", "pasted names"),
        ("#define A(x, y) x%:%:y", "pasted names"),
        ("int a = __builtin_return_address;", "compiler names"),
        ("#ifdef CONVLAB_SIMULATOR", "a question where it runs"),
        ("void sim_finish();", "names of the simulator"),
        ("auto a = sim::shared;", "names of the simulator"),
        ('const char* a = R"(x)";', "raw strings"),
        ("auto e = cudaMemcpyAsync(h, x, 4, cudaMemcpyDeviceToHost, s);", "data on the host"),
        ("__managed__ float a[9];", "data on the host"),
        ("??=define A", "characters that are written as others"),
        ("/* x", "a comment without its end"),
    ],
)
def test_a_file_with_more_than_a_lab_needs_is_refused_at_its_line(line, reason):
    with pytest.raises(ProblemError, match=re.escape(reason)):
        vet_source(f"// title: x\n{line}\n", "lab.cu")


def test_comments_and_strings_may_say_anything():
    vet_source(
        '// asm\n/* system("x") __attribute__ */\nconst char* a = "asm ## sim_";\n', "lab.cu"
    )


# ---- files and receipts


def test_a_class_goes_on_after_a_file_without_answers(tmp_path, lab_file):
    for name in ("a.cu", "b.cu"):
        (tmp_path / name).write_text("// nothing\n")
    (tmp_path / "link.cu").symlink_to("/etc/passwd")
    grades = grade([tmp_path / "a.cu", tmp_path / "b.cu", tmp_path / "link.cu"], lab_file)
    assert isinstance(grades, Grades) and not grades.ok
    assert [row["points"] for row in grades.to_dict()["rows"]] == [0, 0, 0]
    assert "\n  a.cu has no comment block" in str(grades)
    assert "root:" not in json.dumps(grades.to_dict())
    with pytest.raises(ProblemError, match="no plain file"):
        grade(tmp_path / "link.cu", lab_file)


def test_a_file_without_a_lab_says_which_there_are(tmp_path):
    (tmp_path / "a.cu").write_text("/* lab\nname: a\n*/\n")
    with pytest.raises(ProblemError, match="names no lab.*direct"):
        grade(tmp_path / "a.cu")
    (tmp_path / "a.cu").write_text("/* lab\nname: a\nlab: ../evil\n*/\n")
    with pytest.raises(ProblemError, match="the lab '../evil', which convlab does not have"):
        grade(tmp_path / "a.cu")


def _facts(**changed):
    parts = [{"part": "correct", "points": 40.0, "of": 40, "result": "all"}]
    facts = {"file": "a.cu", "student": "Ada", "lab": "direct", "lab_digest": "1", "own": "N1"}
    more = {"source_digest": "2", "points": 40.0, "of": 40, "parts": parts}
    return facts | more | {"counts": [], "pars": [], "failures": [], "notes": []} | changed


def test_a_grade_shows_its_parts_as_text_and_html():
    result = Grade(_facts(), "")
    assert str(result).startswith("Ada, lab direct: 40 of 40 points")
    assert "<table" in result._repr_html_() and result.ok
    assert "made" in result.receipt and result.receipt["source"] == ""


@pytest.mark.parametrize(
    ("changed", "parts", "ok"),
    [
        ({}, {"correct": (40.0, 40)}, True),
        ({}, {"correct": (39.0, 40)}, False),
        ({"points": 99.0}, {"correct": (40.0, 40)}, False),
        ({"student": "Eve"}, {"correct": (40.0, 40)}, False),
        ({"source_digest": "3"}, {"correct": (40.0, 40)}, False),
    ],
)
def test_a_receipt_that_was_changed_is_not_right(changed, parts, ok):
    verified = Verified(_facts(**changed), parts, Grade(_facts(), ""))
    assert verified.ok is ok
    assert ("NOT RIGHT" in str(verified)) is not ok


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"grade": 3, "source": ""}', "[" * 100_000])
def test_a_file_that_is_no_receipt_is_refused(tmp_path, text):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    with pytest.raises(ProblemError, match="no receipt of one grade"):
        verify(path)


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 5000 + ".cu"], ids=["plain", "cu"])
def test_a_name_that_is_too_long_is_refused(name):
    with pytest.raises(ProblemError, match="is no"):
        read_submission(name)


# ---- guesses


@pytest.fixture
def no_guesses(monkeypatch):
    monkeypatch.setattr(guess_module, "_first", {})


@pytest.mark.parametrize(
    ("stored", "count", "said"),
    [
        (4, 4, "exact"),
        (5, 4, "25.0% too high"),
        (1, 4, "4 times too low"),
        (12, 4, "3 times too high"),
        (7.77, 4169760, "537,000 times too low"),
        (0, 0, "exact"),
        (3, 0, "3 too high"),
        (-3, 0, "3 too low"),
        (0, 3, "100.0% too low"),
    ],
)
def test_a_guess_says_how_far_it_is_off(no_guesses, stored, count, said):
    asked = convlab.guess("sectors", count, stored=stored)
    assert str(asked).endswith(said)


def test_of_a_name_no_other_number_is_near(no_guesses):
    """Lane 13 is not lane 14, although 13 is within 10% of 14."""
    wrong, right = (convlab.guess("lane", 14, stored=each, exact=True) for each in (13, 14))
    assert str(wrong).endswith("your guess 13, it is 14: another one") and not wrong.guess.is_near
    assert str(right).endswith("exact") and right.guess.is_near


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), (" 1.5 ", 1.5), ("1,024", 1024), ("-1,024,000.5", -1024000.5)]
)
def test_a_reader_s_number_is_read(text, value):
    assert guess_module._entered(text) == value


@pytest.mark.parametrize("text", ["", "many", "1,5", "12,34", "1/3"])
def test_a_reader_s_text_that_is_no_clear_number_is_refused(text):
    with pytest.raises(ValueError):
        guess_module._entered(text)


def test_the_count_is_shown_only_after_a_guess(no_guesses):
    asked = convlab.guess("sectors of a load", lambda: 123456)
    shown = str(asked) + asked._repr_html_()
    assert "123" not in shown and "stored=" in shown
    asked.answer(100)
    assert "123,456" in str(asked)


def test_the_first_guess_of_each_question_is_kept(no_guesses):
    assert "no guess yet" in str(convlab.guesses())
    for question, stored in (("a", 10), ("b", 10), ("a", 11)):
        convlab.guess(question, 11, stored=stored)
    summary = convlab.guesses()
    assert [each.guess for each in summary.guesses] == [10, 10]
    assert summary.sentence == "2 of 2 guesses within 10% of the count"


def test_a_guess_must_be_a_number(no_guesses):
    with pytest.raises(ProblemError, match="the guess"):
        convlab.guess("a", 3, stored="many")
    with pytest.raises(ProblemError, match="count"):
        convlab.guess("a", "3")
    assert isinstance(convlab.guess("a", 3), Asked)


def test_every_lab_of_the_folder_is_listed():
    assert len(names()) == len([*FOLDER.glob("*.toml")]) / 2


@pytest.mark.parametrize("lab", names())
def test_the_kernels_of_a_labs_milestones_are_not_refused(lab):
    for par in find_lab(lab).pars:
        for milestone in par.milestones:
            vet_source(catalog.find(milestone.kernel).read_text(), milestone.kernel)
