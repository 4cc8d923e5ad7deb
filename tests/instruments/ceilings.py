"""Measure the peak rates that the rungs on Hopper depend on, each one alone.

    python -m tests.instruments.ceilings [--write tests/instruments/ceilings.md]

Measures matrix products from shared memory, copies into shared memory, stores to global memory, and the error
of sums on tensor cores. The kernels are in ceilings.cu. A time is the shortest of several, because these are
peak rates. Needs a GPU of compute capability 9.0, and takes 10 seconds.
"""

import argparse
import ctypes
import datetime
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import torch

from convlab.core.errors import ConvlabError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.machine import toolchain
from convlab.core.machine.device import describe
from tests.instruments.pages import laid, write_between

SOURCE = Path(__file__).with_suffix(".cu")
_SAMPLES = 7
# of `square`'s y, a quarter of its planes
_SIDE = 1022
_PLANES = 512
_FEEDS = (
    "cp.async of 4 bytes",
    "4 LDG, 1 STS.128",
    "cp.async of 16 bytes, not transposed",
    "cp.async.bulk, not transposed",
)
_STORES = (
    "cp.async.bulk, runs of 2 rows (8176 B)",
    "cp.async.bulk, runs of 1 KB in 128 planes",
    "cp.async.bulk, the same runs, begun and ended at multiples of 32 bytes",
    "float, runs of 1 KB in 128 planes",
    "float2, in the order of the accumulators",
)
_PROMOTED = (1, 9, 36, 1 << 30)


@functools.cache
def library() -> ctypes.CDLL:
    """Compile ceilings.cu for Hopper and load it."""
    folder = toolchain.temporary(None)
    command = [
        toolchain.require_cuda().nvcc,
        "-shared",
        "-Xcompiler=-fPIC",
        "-std=c++17",
        "-O3",
        "-gencode=arch=compute_90a,code=sm_90a",
        f"-I{KERNEL_DIR}",
        f"-L{toolchain.link_dir()}",
        SOURCE,
        "-o",
        folder / "ceilings.so",
    ]
    subprocess.run([str(part) for part in command], check=True)
    return ctypes.CDLL(str(folder / "ceilings.so"))


def call(name: str, *given: int | torch.Tensor) -> None:
    """Launch one of the kernels on torch's stream. Raises ConvlabError if the launch fails."""
    entry = getattr(library(), name)
    entry.restype = ctypes.c_char_p
    said = entry(
        *(
            ctypes.c_void_p(each.data_ptr())
            if isinstance(each, torch.Tensor)
            else ctypes.c_int(each)
            for each in given
        ),
        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
    )
    if said:
        raise ConvlabError(f"{name}: {said.decode()}")


def seconds(run: Callable[[], None]) -> float:
    """Return the shortest of several times, after one run for warming up."""
    run()
    times = []
    for _ in range(_SAMPLES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return min(times)


def products(groups: int = 2000) -> Iterator[dict[str, object]]:
    """The inner loop, in TFLOP/s: each tap from a shifted descriptor, and all from aligned ones."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(blocks * 256, device="cuda")
    for precision, k, size in (("tf32", 8, 8192), ("bf16", 16, 8192)):
        a, b = torch.randn(2, size, size, device="cuda")
        if precision == "bf16":
            a = a.bfloat16()
            b = b.bfloat16()
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        gemm = 2 * size**3 / seconds(lambda: torch.mm(a, b))
        torch.backends.cuda.matmul.fp32_precision = before
        flops = blocks * 2 * groups * 9 * 2 * 64 * 256 * k
        rates = [
            flops / seconds(lambda: call("run_products", k // 16, moved, groups, blocks, out))
            for moved in (0, 1)
        ]
        names = (
            f"m64n256k{k}, aligned descriptors",
            f"m64n256k{k}, a shifted descriptor for each tap",
            f"cuBLAS, {size} cubed",
        )
        for name, rate in zip(names, (*rates, gemm)):
            yield {"2 warpgroups an SM": name, "class": precision, "TFLOP/s": f"{rate / 1e12:.0f}"}


def feeding(rounds: int = 2000) -> Iterator[dict[str, object]]:
    """Copies of rows of 8 channels into pixels of 16 bytes, in bytes per nanosecond and SM."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    tile = 2 * 4 * 264 * 4
    x = torch.randn(blocks * 8 * tile, device="cuda")
    out = torch.empty(blocks * 512, device="cuda")
    for i, name in enumerate(_FEEDS):
        for threads in (128, 256, 512) if i < 3 else (128,):
            took = seconds(lambda: call("run_feeding", i, threads, rounds, blocks, x, out))
            yield {
                "copy": name,
                "threads": threads,
                "B/ns": f"{4 * tile * rounds / took / 1e9:.1f}",
            }


def storing() -> Iterator[dict[str, object]]:
    """Stores to planes as large as those of `square`, in milliseconds and TB/s."""
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    y = torch.empty(_PLANES, _SIDE, _SIDE, device="cuda")
    ways: list[tuple[str, Callable[[], None]]] = [("memset", lambda: y.zero_())]
    for i, name in enumerate(_STORES):
        for each in (blocks, 4 * blocks):
            run = functools.partial(call, "run_storing", i, _SIDE, _PLANES, each, y)
            ways.append((f"{name}, {each // blocks} block{'s' * (each > blocks)} an SM", run))
    for name, run in ways:
        took = seconds(run)
        rate = y.numel() * 4 / took / 1e12
        yield {"stores": name, "ms": f"{1e3 * took:.2f}", "TB/s": f"{rate:.2f}"}


def sums() -> Iterator[dict[str, object]]:
    """Relative error (norm) against float64: fp32 in order, and 3xTF32 added up in fp32 at times."""
    for k in (144, 576, 1440, 4608):
        torch.manual_seed(k)
        a = torch.randn(64, k, device="cuda")
        b = torch.randn(128, k, device="cuda")
        exact = a.double() @ b.double().T
        d = torch.empty(64, 128, device="cuda")

        def error(name: str, *given: int) -> str:
            call(name, a, b, d, k, *given)
            return f"{float((d.double() - exact).norm() / exact.norm()):.1e}"

        row: dict[str, object] = {"gemm_k": k, "fp32 FMA in order": error("run_in_order")}
        for every in _PROMOTED:
            name = "never" if every > k else f"every {every} step{'s' * (every > 1)}"
            row[f"3xTF32, {name}"] = error("run_sums", every)
        yield row


def main() -> int:
    """Measure all and print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--write", metavar="FILE", help="write the tables between the markers of this page"
    )
    given = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("ceilings.cu needs an NVIDIA GPU of compute capability 9.0", file=sys.stderr)
        return 2
    parts = []
    for measured in (products, feeding, storing, sums):
        frame = pd.DataFrame(measured())
        print(frame.to_string(index=False), end="\n\n")
        parts += [measured.__doc__, "", laid(frame), ""]
    parts.append(
        f"{describe('cuda')}; {datetime.date.today()}, by `python -m "
        "tests.instruments.ceilings --write tests/instruments/ceilings.md`."
    )
    if given.write:
        write_between(Path(given.write), "ceilings", "\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
