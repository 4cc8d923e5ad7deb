"""A textbook's kernel, and parts that spoil it as somebody might who has never seen the rungs."""

from convlab.core.problem.problem import Problem
from tests.suites import FOLDER, parted

# A problem on which none of the spoilt ones is wrong with ordinary data.
PLAIN = Problem(N=2, C=4, H=11, W=12, K=6, R=3, S=3, padding=1, groups=2, bias=True)

# A thread for each output, as a textbook has it. What can be spliced in: declarations before the
# kernel; what a thread does first, and to its sum; the host's code before the launch.
SOURCE = (FOLDER / "textbook.cu").read_text()
PARTS = {
    "header": "",
    "before": "",
    "first": "",
    "last": "",
    "workspace": "",
    "host": "",
    "product": "if (ok) sum += in[AT] * filt[wi];",
}

# What is wrong with unusual data only, and after other calls or at other addresses only.
UNUSUAL = parted("strangers", "unusual")
ALONE = parted("strangers", "alone")
LITTLE = parted("strangers", "little")
STATEFUL = parted("strangers", "stateful")
