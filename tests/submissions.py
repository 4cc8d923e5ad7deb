"""Twenty submissions to a small lab: right, wrong, slow, cheating, hanging and hostile ones.

Each is one of our kernels with an edit, a block of answers, and the points that it must get. The
lab's pars and the right prediction are counted, not written down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.kernel import load
from convlab.course.counts import count
from convlab.course.lab import Lab, find_lab
from convlab.course.pars import write_pars

STUDENT = "Ada Lovelace"
LAB = """title = "A small lab"
problems = ["N=1,C=2,H=9,W=11,K=3,R=3,S=3", "N=2,C=3,H=8,W=9,K=4,R=3,S=2,padding=1,bias=1"]
counters = "N=1,C=4,H=18,W=34,K=8,R=3,S=3"
predict = "load_sectors"
[student]
N = 1
C = [2, 4]
H = [8, 16]
W = [8, 16]
K = [2, 4]
R = 3
S = 3
[[par]]
quantity = "load_sectors"
points = 20
milestones = [
  { kernel = "01_direct", share = 0.4 },
  { kernel = "01b_register_channels", share = 1.0 },
]
[[par]]
quantity = "store_sectors"
points = 10
milestones = [
  { kernel = "01_direct", share = 1.0 },
]
[question]
text = "Which?"
choices = { a = "this", b = "that" }
"""
KEY = """answer = "b"
[hidden]
count = 2
seed = 5
N = [1, 2]
C = [1, 4]
H = [5, 9]
W = [5, 9]
K = [1, 5]
R = [1, 3]
S = [1, 3]
padding = [0, 1]
"""
# Where the edits go: before the host code of 01_direct, and to its loop.
_HOST = "    const ConvProblem conv = *problem;\n"
_ENTRY = "CONVLAB_ENTRY const char* conv2d("
_BOUND = "if (h < 0 || h >= conv.H) continue;"
_INCLUDE = '#include "convlab.cuh"\n'
_STORE = "    g_y[i] = activated(conv, r_acc"
_INDEX = "    const int q = int(i % conv.Q);\n    const int p = int(i / conv.Q % conv.P);\n"
# p is the fastest now, so that the lanes of a warp read and write columns.
_COLUMNS = "    const int p = int(i % conv.P);\n    const int q = int(i / conv.P % conv.Q);\n"
_TO_ROWS = "    g_y[(plane * conv.P + p) * conv.Q + q] = activated(conv, r_acc"
# What the right grade of a part is: all points of it, none, or another number.
ALL = -1.0


@dataclass(frozen=True)
class Planted:
    """A submission: its kind, the kernel, the edits, the answers, and the points of each part.

    `prediction` is a factor of the right one; None gives none. A part that is not in `points` may
    have any.
    """

    kind: str
    points: Mapping[str, float]
    kernel: str = "01_direct"
    edits: tuple[tuple[str, str], ...] = ()
    prediction: float | None = 1.0
    choice: str = "b"
    because: str = ""


_NOTHING = {"correct": 0, "prediction": 0, "pars": 0, "question": ALL}
_INCORRECT = {"prediction": 0, "pars": 0, "question": ALL}


def _host(code: str) -> tuple[tuple[str, str], ...]:
    return ((_HOST, f"{_HOST}    {code}\n"),)


def _before_entry(code: str) -> tuple[tuple[str, str], ...]:
    return ((_ENTRY, f"{code}\n{_ENTRY}"),)


_FULL = {"correct": ALL, "prediction": ALL, "pars": ALL, "question": ALL}
PLANTED = {
    "best": Planted("right", _FULL, kernel="01b_register_channels"),
    "direct": Planted("right", _FULL | {"pars": 18}),
    "silent": Planted(
        "right",
        {"correct": ALL, "prediction": 0, "pars": 18, "question": 0},
        prediction=None,
        choice="",
    ),
    "near": Planted("right", _FULL | {"pars": 18}, prediction=1.09),
    "far": Planted(
        "right",
        {"correct": ALL, "prediction": 0, "pars": 18, "question": 0},
        prediction=1.11,
        choice="a",
    ),
    "border": Planted("wrong", _INCORRECT, edits=((_BOUND, "if (h >= conv.H) continue;"),)),
    "last_column": Planted(
        "wrong",
        _INCORRECT,
        edits=((_STORE, f"    if (q == conv.Q - 1) r_acc = 0.0f;\n{_STORE}"),),
    ),
    "barrier": Planted(
        "wrong", _INCORRECT, kernel="03_smem_tile", edits=(("__syncthreads();", ";"),)
    ),
    "columns": Planted(
        "slow",
        # It predicts what 01_direct would load.
        {"correct": ALL, "prediction": 0, "pars": 0, "question": ALL},
        edits=((_INDEX, _COLUMNS), (_STORE, _TO_ROWS)),
    ),
    "on_the_host": Planted(
        "cheating",
        _NOTHING,
        edits=_host("for (int i = 0; i < 9; ++i) y[i] = x[i] * w[i];"),
    ),
    "no_hooks": Planted(
        "cheating",
        _NOTHING,
        edits=_before_entry('extern "C" void __tsan_read4(void*) {}'),
        because="compiler names",
    ),
    "asks_where": Planted(
        "cheating",
        _NOTHING,
        edits=_before_entry("#ifdef CONVLAB_SIMULATOR\n#endif"),
        because="a question where it runs",
    ),
    "only_public": Planted(
        "cheating",
        _INCORRECT,
        edits=_host("if (problem->W != 11 && problem->W != 34) return nullptr;"),
    ),
    "endless_kernel": Planted(
        "hanging",
        _NOTHING,
        edits=((_STORE, f"    while (conv.N) __syncwarp();\n{_STORE}"),),
        because="did not end",
    ),
    "endless_host": Planted(
        "hanging",
        _NOTHING,
        edits=_host("for (volatile int i = 1; i; i = 1);"),
        because="did not end",
    ),
    "password": Planted(
        "hostile",
        _NOTHING,
        edits=((_INCLUDE, f'{_INCLUDE}#include "/etc/passwd"\n'),),
        because="#include of /etc/passwd",
    ),
    "shell": Planted(
        "hostile",
        _NOTHING,
        edits=_host('if (system("touch /tmp/convlab_was_here")) return "no";'),
        because="calls system",
    ),
    "assembly": Planted(
        "hostile", _NOTHING, edits=_host('asm volatile("" "ud2");'), because="assembly"
    ),
    "at_load": Planted(
        "hostile",
        _NOTHING,
        edits=_before_entry(
            'struct AtLoad { AtLoad() { printf("{\\"points\\": 100}\\n"); abort(); } } at_load;'
        ),
    ),
    "memory": Planted(
        "hostile",
        _NOTHING,
        edits=_host("for (;;) memset(new char[1 << 30], 1, 1 << 12);"),
    ),
}


def write_lab(folder: Path) -> Lab:
    """Write the small lab with counted pars, and its key; return it."""
    path = folder / "small.toml"
    path.write_text(LAB)
    path.with_suffix(".key.toml").write_text(KEY)
    write_pars(path)
    return find_lab(path)


def right_predictions(lab: Lab) -> dict[str, float]:
    """Return the right prediction for each kernel that a submission is made of."""
    own = lab.problem_of(STUDENT)
    kernels = ("01_direct", "01b_register_channels")
    values = {
        kernel: count(load(kernel, engine="sim"), own, [lab.predict])[lab.predict]
        for kernel in kernels
    }
    return values | {"03_smem_tile": 0.0}


def write_submission(folder: Path, name: str, right: Mapping[str, float]) -> Path:
    """Write a planted submission, and return its file."""
    planted = PLANTED[name]
    source = (KERNEL_DIR / f"{planted.kernel}.cu").read_text()
    for old, new in planted.edits:
        assert old in source, (name, old)
        source = source.replace(old, new, 1)
    answers = [f"name: {STUDENT}", f"choice: {planted.choice}"]
    if planted.prediction is not None:
        answers.append(f"prediction: {planted.prediction * right[planted.kernel]:.0f}")
    path = folder / f"{name}.cu"
    path.write_text("\n".join(["/* lab", *answers, "*/", source]))
    return path


def deviations(name: str, facts: Mapping) -> list[str]:
    """Return what in a grade is not as it must be, as lines."""
    planted = PLANTED[name]
    lines = []
    for part in facts["parts"]:
        wanted = planted.points.get(part["part"])
        wanted = part["of"] if wanted == ALL else wanted
        if wanted is not None and part["points"] != wanted:
            lines.append(f"{part['part']}: {part['points']} points, not {wanted}: {part['result']}")
    correct = next(part for part in facts["parts"] if part["part"] == "correct")
    if planted.points is _INCORRECT and correct["points"] == correct["of"]:
        lines.append("correct: all points for an incorrect kernel")
    if planted.because not in "\n".join(facts["failures"]):
        lines.append(f"the reason is not {planted.because!r}: {facts['failures']}")
    return lines
