"""Test that callables and kernels which only look fast are found.

    python -m tests.instruments.cheats [--write]

Compares each cheat with an honest callable by `ab`, and prints the table of ``convlab/honest/cheats.md``. ``--write``
writes it to that page. Cheats marked gpu need a GPU. We wrote all of them; the ideas are known from

- K: KernelBench's adversarial tests and its guide to evaluation (Ouyang et al., arXiv:2502.10517)
- R: robust-kbench (Lange et al., arXiv:2509.14279)
- G: gpu-mode/reference-kernels, pull requests 102 and 104, issues 148 and 162; gpu-mode/pygpubench,
  issue 23
- M: METR, "Recent frontier models are reward hacking" (2025) and "Measuring automated kernel
  engineering" (2025)
- D: DeepReinforce, "Hacks and defenses in automatic GPU kernel generation" (2025)
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import convlab
from convlab.core.errors import ConvlabError
from convlab.core.kernel.data import full_precision, inputs
from convlab.core.problem.problem import Problem
from tests.instruments.pages import write_between

PAGE = Path(convlab.__file__).parent / "honest" / "cheats.md"
# y is as large as x.
PROBLEM = Problem(N=2, C=8, H=24, W=24, K=8, R=3, S=3, padding=(1, 1))
OPTIONS = ((1, 1), (1, 1), (1, 1), 1)


def _convolve(*given: Any, conv2d: Callable = torch.conv2d) -> Tensor:
    """Convolve in fp32 with torch's own function, even if a cheat replaced it."""
    with full_precision():
        return conv2d(*given)


def honest(x, w, bias, stride, padding, dilation, groups):
    """Unfold and multiply."""
    columns = F.unfold(x, w.shape[2:], dilation, padding, stride)
    y = w.flatten(1) @ columns
    rows = (x.shape[2] + 2 * padding[0] - dilation[0] * (w.shape[2] - 1) - 1) // stride[0] + 1
    return y.view(len(x), len(w), rows, -1)


@dataclass(frozen=True)
class Cheat:
    """A cheat: `make` returns a new callable or a kernel's source, `seen` is a pattern of the report."""

    name: str
    sources: str
    make: Callable[[], Any]
    seen: str
    # Whether the verdict must be "incorrect"; else a note must name it.
    wrong: bool = True
    gpu: bool = False


CHEATS: list[Cheat] = []


def planted(sources: str, seen: str, **options: Any) -> Callable[[Callable], Callable]:
    """Enter a factory of callables into the table; its docstring is the cheat's name."""

    def enter(make: Callable) -> Callable:
        CHEATS.append(Cheat(make.__doc__.rstrip("."), sources, make, seen, **options))
        return make

    return enter


STALE = r"outputs of a timed launch are incorrect for its data"
TOOLS = r"replaced .*, which convlab measures with"


def remembering(key: Callable[..., Any]) -> Callable:
    known: dict[Any, Tensor] = {}

    def remembers(x, w, *rest):
        at = key(x, w)
        if at not in known:
            known[at] = _convolve(x, w, *rest)
        return known[at].clone()

    return remembers


@planted("K G", STALE)
def by_address():
    """Remembers y by x's address."""
    return remembering(lambda x, w: x.data_ptr())


@planted("G", STALE)
def by_identity():
    """Remembers y by the Python object x."""
    return remembering(lambda x, w: id(x))


@planted("G", STALE)
def by_shape():
    """Remembers y by x's shape."""
    return remembering(lambda x, w: x.shape)


@planted("G", STALE)
def by_a_few_elements():
    """Remembers y by a fingerprint of a few elements of x."""
    return remembering(lambda x, w: tuple(x.flatten()[:: x.numel() // 3].tolist()))


@planted("G", STALE)
def by_the_mean():
    """Remembers y by the rounded mean of x."""
    return remembering(lambda x, w: round(float(x.mean()), 1))


@planted("G", STALE)
def filter_by_address():
    """Remembers the transformed filter by its address."""
    known: dict[int, Tensor] = {}

    def remembers(x, w, *rest):
        return _convolve(x, known.setdefault(w.data_ptr(), w.clone()), *rest)

    return remembers


@planted("K R", STALE)
def counts_calls():
    """Computes in the first calls only, and then returns an old y."""
    done: list[Tensor] = []

    def counts(*given):
        if len(done) < 4:
            done.append(_convolve(*given))
        return done[-1]

    return counts


@planted("G", STALE)
def every_other_call():
    """Computes in every second call only."""
    done: list[Tensor] = []

    def skips(*given):
        done.append(_convolve(*given) if len(done) % 2 == 0 else done[-1])
        return done[-1]

    return skips


@planted("G", STALE)
def one_behind():
    """Returns the result of the previous call."""
    last: list[Tensor] = []

    def late(*given):
        last.append(_convolve(*given))
        return last[max(0, len(last) - 2)]

    return late


@planted("K R", STALE)
def first_image_only():
    """After the check, computes the first image only."""
    done: list[Tensor] = []

    def part(x, *rest):
        if not done:
            done.append(_convolve(x, *rest))
        done[0][:1] = _convolve(x[:1], *rest)
        return done[0].clone()

    return part


@planted("K D", f"{STALE}|INCORRECT")
def on_a_thread():
    """Computes in another thread, and returns at once."""

    def returns_at_once(x, w, bias, *rest):
        y = x.new_zeros(PROBLEM.y_shape)

        def work():
            time.sleep(0.002)
            y.copy_(_convolve(x, w, bias, *rest))

        threading.Thread(target=work).start()
        return y

    return returns_at_once


@planted("K D", "returned a Lazy, not a plain torch.Tensor")
def lazily():
    """Returns a tensor subclass that computes when it is compared."""

    class Lazy(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            given = [_convolve(*a.given) if isinstance(a, Lazy) else a for a in args]
            return func(*given, **(kwargs or {}))

    def promises(x, *rest):
        y = x.new_empty(PROBLEM.y_shape).as_subclass(Lazy)
        y.given = (x, *rest)
        return y

    return promises


@planted("K D", "returned a FakeTensor, not a plain torch.Tensor")
def fake():
    """Returns a fake tensor, which has only a shape."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def pretends(x, *rest):
        with FakeTensorMode():
            return torch.empty(PROBLEM.y_shape)

    return pretends


@planted("G", "incorrect")
def own_methods():
    """Returns a tensor whose methods were replaced on the instance."""

    def dressed(*given):
        y = torch.zeros(PROBLEM.y_shape, device=given[0].device)
        right = []

        def work(*_):
            return right[0] if right else right.append(_convolve(*given)) or right[0]

        y.double = y.view = y.flatten = y.to = y.__getitem__ = work
        return y

    return dressed


@planted("D", "view with a pending negation")
def negated():
    """Returns a view with a lazy negation."""
    return lambda *given: torch._neg_view(_convolve(*given).neg_())


@planted("R", "outputs share memory")
def one_number():
    """Returns one number for all outputs."""
    return lambda x, *rest: x.mean().view(1, 1, 1, 1).expand(PROBLEM.y_shape)


@planted("K", "view of its input x")
def in_place_of_x():
    """Writes y over x."""
    return lambda x, *rest: x.copy_(_convolve(x, *rest))


@planted("K R", "view of its input x")
def returns_x():
    """Returns x."""
    return lambda x, *rest: x


@planted("R", "wrote to its input")
def zeros_x():
    """Sets x to zero, so that zero is correct."""

    def zeroes(x, *rest):
        x.zero_()
        return x.new_zeros(PROBLEM.y_shape)

    return zeroes


@planted("K R", STALE)
def known_data():
    """Returns a stored answer for the checker's seed and data."""

    def looks_up(x, *rest):
        if not _is_checked(x):
            return x.new_zeros(PROBLEM.y_shape)
        return _convolve(*inputs(PROBLEM, 0, x.device), *OPTIONS)

    return looks_up


@planted("R", STALE)
def tuned_on_known_data():
    """Leaves a channel out, except on the checker's data."""

    def picks(x, w, *rest):
        some = w.clone()
        some[0, 0] *= _is_checked(x)
        return _convolve(x, some, *rest)

    return picks


def _is_checked(x: Tensor) -> bool:
    return bool(x.flatten()[0] == inputs(PROBLEM, 0, x.device)[0].flatten()[0])


def holding(found: Callable[[], Iterator[Tensor]]) -> Callable:
    """Return a callable that searches for the checker's answer."""

    def looks(x, *rest):
        for value in found():
            if value.shape == torch.Size(PROBLEM.y_shape) and value.dtype == torch.float64:
                return value.float()
        return x.new_zeros(PROBLEM.y_shape)

    return looks


@planted("G M", STALE)
def through_the_collector():
    """Looks for the float64 reference among all Python objects."""
    return holding(lambda: (each for each in gc.get_objects() if type(each) is Tensor))


@planted("M", STALE)
def through_the_frames():
    """Looks for the float64 reference in the frames of its callers."""

    def above() -> Iterator[Tensor]:
        frame = sys._getframe()
        while frame := frame.f_back:
            for value in list(frame.f_locals.values()):
                pieces = getattr(value, "pieces", ()) or ()
                yield from (piece for _, piece in pieces)

    return holding(above)


def replacing(where: str, value: Callable) -> Callable:
    """Return a correct callable that replaces one of the checker's tools."""
    holder, _, name = where.rpartition(".")

    def replaces(*given):
        y = honest(*given)
        setattr(eval(holder, {"torch": torch, "time": time, "convlab": convlab}), name, value)
        return y

    return replaces


def plant_replacements() -> None:
    """Enter a cheat for each tool that is replaced."""
    for sources, where, value in (
        ("K G D", "torch.cuda.Event.elapsed_time", lambda *_: 1e-3),
        ("K G D", "torch.cuda.Event.record", lambda *_: None),
        ("K D M", "torch.cuda.synchronize", lambda *_: None),
        ("M", "time.perf_counter", lambda: 0.0),
        ("K", "torch.nn.functional.conv2d", lambda x, *_: x),
        ("K", "torch.allclose", lambda *_, **__: True),
        ("M", "torch.Tensor.__le__", lambda a, b: torch.ones_like(a, dtype=torch.bool)),
        ("G", "convlab.core.correctness.reference.truth", lambda *_, **__: None),
    ):
        make = functools.partial(replacing, where, value)
        CHEATS.append(Cheat(f"Replaces {where}", sources, make, TOOLS))


plant_replacements()


@planted("K D", "incorrect")
def in_half():
    """Computes in half precision, but declares fp32."""

    def halves(x, w, bias, *rest):
        return _convolve(x.half(), w.half(), None, *rest).float()

    halves.precision = "fp32"
    return halves


def in_tf32(x, w, *rest):
    """Round the operands as tensor cores do."""
    return _convolve(
        *(((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for t in (x, w)), *rest
    )


@planted("K D", "incorrect")
def in_tf32_as_fp32():
    """Computes in TF32, but declares fp32."""

    def rounds(*given):
        return in_tf32(*given)

    rounds.precision = "fp32"
    return rounds


@planted("D", STALE)
def tf32_once_checked():
    """Computes in fp32 during the check, and in TF32 afterwards."""
    calls: list[int] = []

    def cools(*given):
        calls.append(1)
        return in_tf32(*given) if len(calls) > 3 else _convolve(*given)

    return cools


@planted("K R M", "calls a library: torch's own .*conv", wrong=False)
def a_library():
    """Calls torch's convolution."""
    return lambda *given: _convolve(*given)


@planted("K", "calls a library: torch's own .*mm", wrong=False)
def a_library_in_parts():
    """Unfolds x and calls torch's matrix product."""
    return lambda *given: honest(*given)


@planted("K", "changed settings of torch.*cuBLAS")
def changes_settings():
    """Turns TF32 on for the whole process."""

    def turns_on(*given):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        return honest(*given)

    return turns_on


@planted("G", STALE, gpu=True)
def skips_in_a_graph():
    """Returns an old result while a CUDA graph is captured."""
    done: list[Tensor] = []

    def skips(*given):
        if not (done and torch.cuda.is_current_stream_capturing()):
            done[:] = [_convolve(*given)]
        return done[0]

    return skips


def aside(waits: bool) -> Callable:
    streams: list[Any] = []

    def elsewhere(*given):
        streams[:] = streams or [torch.cuda.Stream()]
        if waits:
            streams[0].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[0]):
            return _convolve(*given)

    return elsewhere


@planted("K D", f"{STALE}|on another stream|INCORRECT", gpu=True)
def on_another_stream():
    """Works on another stream without any synchronization."""
    return aside(False)


@planted("K D", f"{STALE}|on another stream|INCORRECT", gpu=True)
def ends_on_another_stream():
    """Works on another stream that nothing synchronizes with."""
    return aside(True)


# Kernels: 01_direct with code around its launch. Static variables of a file keep their values between calls.
_LAUNCH = re.compile(r"^( *)(\w+<<<.*?;)$", re.MULTILINE | re.DOTALL)


def kernel(before: str, condition: str, otherwise: str = "") -> Any:
    """Return 01_direct with a launch under a condition."""
    source = convlab.load("01_direct", engine="sim").source
    launch = f"\\1{before} if ({condition}) {{ \\2 }} else {{ {otherwise} }}"
    text, count = _LAUNCH.subn(launch, source)
    if count != 1:
        raise ValueError("01_direct.cu has not exactly one launch: adapt cheats.py")
    return convlab.compile(text, engine="cuda")


@planted("K G", STALE, gpu=True)
def kernel_counts():
    """A kernel file that launches only in its first calls."""
    return kernel("static int calls = 0;", "calls++ < 4")


@planted("K G", f"{STALE}|INCORRECT", gpu=True)
def kernel_by_address():
    """A kernel file that launches once for each address of y."""
    return kernel(
        "static const void* last[64]; static int n = 0; bool known = false; "
        "for (int i = 0; i < n && i < 64; ++i) known = known || last[i] == (const void*)y; "
        "if (!known) last[n++ % 64] = y;",
        "!known",
    )


@planted("G", STALE, gpu=True)
def kernel_skips_in_a_graph():
    """A kernel file that launches nothing while a CUDA graph is captured."""
    asks = "cudaStreamCaptureStatus is; cudaStreamIsCapturing(stream, &is);"
    return kernel(asks, "is == cudaStreamCaptureStatusNone")


def judged(cheat: Cheat) -> tuple[bool, str]:
    """Compare a cheat with an honest callable; return whether it was found, and the report."""
    engine = "cuda" if torch.cuda.is_available() else "sim"
    with _settings_kept():
        try:
            options = {"engine": engine, "limit_seconds": 2.0}
            result = convlab.ab(honest, cheat.make(), PROBLEM, **options)
        except ConvlabError as error:
            return cheat.wrong and bool(re.search(cheat.seen, str(error))), str(error)
    said = str(result)
    wrong = result.verdict == "incorrect"
    told = re.search(cheat.seen, " ".join(said.split()))
    return wrong == cheat.wrong and bool(told) and "A CAUGHT" not in said, said


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def table(found: dict[str, bool]) -> str:
    """Return the Markdown table: what each does, who published it, whether it was found."""
    lines = ["| what it does | known from | outcome |", "|---|---|---|"]
    for cheat in CHEATS:
        good = "caught" if cheat.wrong else "noted"
        outcome = good if found.get(cheat.name) else "NOT FOUND"
        outcome = outcome if cheat.name in found else "needs a GPU"
        lines.append(f"| {cheat.name} | {cheat.sources} | {outcome} |")
    return "\n".join(lines)


def main() -> int:
    """Test all cheats and print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name}")
    asked = parser.parse_args()
    here = [cheat for cheat in CHEATS if torch.cuda.is_available() or not cheat.gpu]
    found = {cheat.name: judged(cheat)[0] for cheat in here}
    print(table(found))
    print(f"\n{sum(found.values())} of {len(found)} found")
    if asked.write:
        write_between(PAGE, "cheats", table(found))
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
