"""Write our kernels as answers to KernelBench's level 1, and run its own evaluation on them.

    python -m tests.instruments.kernelbench write FOLDER [--precision tf32]
    python -m tests.instruments.kernelbench evaluate FOLDER --kernelbench CHECKOUT [--reference fp32]

An answer is one self-contained Python file with a class ``ModelNew``: the CUDA source of one rung for
each convolution, as `torch.utils.cpp_extension.load_inline` takes it, and nothing of convlab. There
is a file for each of the 12 tasks of level 1 that are 2-D convolutions (86 has two of them), for its
10 transposed convolutions, and for two 1-D ones, which are 2-D with a height of 1. The rungs are those
of `convlab.best`; where it takes cuDNN, they are the first of `_INSTEAD` that supports the problem.

``evaluate`` needs a GPU and a checkout of KernelBench, with what it imports. Each answer is evaluated
in a process of its own, by KernelBench's functions: its static check, five correctness trials on its
seeds, its timing, and its check for excessive speed-ups. KernelBench's tolerance in fp32 is 1e-4, and
torch's convolution uses TF32 by default, whose error is larger than that on these tasks. So an
accurate answer can fail against a reference in TF32: ``--reference fp32`` turns TF32 off in the
reference, and the two times are then of different precision classes for an answer in TF32.
"""

import argparse
import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from convlab.core.builds.source import INCLUDE, Source
from convlab.core.kernel import abi
from convlab.core.kernel.kernel import Kernel, load
from convlab.core.problem.named import problems
from convlab.core.problem.problem import Problem
from convlab.nn.choice import best

PRECISIONS = ("tf32", "fp32")
_GPU = "H200"
# Rungs for problems for which `convlab.best` takes cuDNN, because that is faster.
_INSTEAD = {
    "tf32": (
        "09b_pointwise_tf32",
        "12_wgmma_vector_reads",
        "20_data_gradient_wgmma",
        "17_wgmma_gather_tf32",
    ),
    "fp32": ("05_async_gemm", "18b_data_gradient_gemm"),
}
_SETS = ("kernelbench", "kernelbench_transposed", "kernelbench_1d")
_TRIALS = 5
_TIMED = 100


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution of a task, and the rung that computes it."""

    problem: Problem
    kernel: Kernel

    @property
    def is_one_dimensional(self) -> bool:
        """Whether the task's tensors have no height."""
        return self.problem.H == self.problem.R == 1


def tasks(precision: str) -> dict[str, list[Convolution]]:
    """Return the convolutions of each task, in order, by the task's number.

    Parameters
    ----------
    precision
        "tf32" or "fp32": the class of the rungs.
    """
    found: dict[str, list[Convolution]] = {}
    for problem in (each for name in _SETS for each in problems(name)):
        number = problem.name.split(".")[1].split("_")[0]
        found.setdefault(number, []).append(Convolution(problem, _rung(problem, precision)))
    return found


def _rung(problem: Problem, precision: str) -> Kernel:
    """Return the rung that `convlab.best` takes; if it takes cuDNN, the first other one."""
    choice = best(problem, precision, gpu=_GPU)
    if isinstance(choice, Kernel):
        return choice
    others = [*_INSTEAD[precision], *_INSTEAD["fp32"]]
    rungs = (load(name, engine="sim") for name in others)
    return next(
        rung
        for rung in rungs
        if rung.computes == problem.computes and rung.unsupported(problem) is None
    )


# ---- the text of an answer --------------------------------------------------------------------


def flat(source: Source) -> str:
    """Return a source with the text of each local header in place of its first #include."""
    texts = dict(source.headers().values())
    included: set[str] = set()

    def lines(text: str) -> Iterator[str]:
        for line in text.splitlines():
            include = INCLUDE.match(line)
            name = include[1] if include else ""
            if name not in texts:
                yield line
            elif name not in included:
                included.add(name)
                yield from lines(texts[name])

    kept = (line for line in lines(source.text) if line != "#pragma once")
    return "\n".join(kept) + "\n"


_ANSWER = Template('''\
"""$title

Written by `python -m tests.instruments.kernelbench write`, from convlab's $rungs.
"""

import math

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# What nvcc gets: the kernels need the instructions of one architecture.
FLAGS = ["-O3", "-std=c++17", $arch]
$parts

class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
$parameters

    def forward(self, x):
$calls
        return x
''')
_PART = Template("""
CUDA_$i = r'''
$cuda'''

BINDING_$i = r'''
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

struct ConvProblem {
    int $fields;
};
extern "C" size_t conv2d_workspace(const ConvProblem*, size_t) __attribute__((weak));
extern "C" size_t conv2d_plan(const ConvProblem*) __attribute__((weak));
extern "C" const char* conv2d_prepare(const ConvProblem*, const void*, void*, void*)
    __attribute__((weak));
extern "C" const char* $entry(const ConvProblem*, const void*, const void*, ${bias_type}void*, void*,
                              size_t, void*);

torch::Tensor convolve(torch::Tensor x, torch::Tensor w, torch::Tensor bias) {
    const ConvProblem problem = {$values};
    TORCH_CHECK(x.sizes() == torch::IntArrayRef({$x_shape}), "x has another shape");
    TORCH_CHECK(w.sizes() == torch::IntArrayRef({$w_shape}), "w has another shape");
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == torch::kFloat, "x is not a float32 tensor on a GPU");
    const c10::cuda::CUDAGuard guard(x.device());
    x = x.contiguous();
    w = w.contiguous();
    auto y = torch::empty({$y_shape}, x.options());
    const int64_t bytes = conv2d_workspace ? conv2d_workspace(&problem, int64_t(1) << 30) : 0;
    auto workspace = torch::empty({bytes}, x.options().dtype(torch::kByte));
    void* stream = c10::cuda::getCurrentCUDAStream().stream();
    // The filter is laid out again in each call, since its values may have changed.
    const int64_t plan_bytes = conv2d_plan ? conv2d_plan(&problem) : 0;
    auto plan = torch::empty({plan_bytes}, workspace.options());
    if (plan_bytes) {
        const char* error = conv2d_prepare(&problem, w.data_ptr(), plan.data_ptr(), stream);
        TORCH_CHECK(error == nullptr, error);
    }
    const char* error = $entry(&problem, x.data_ptr(), plan_bytes ? plan.data_ptr() : w.data_ptr(),
                               ${bias_value}y.data_ptr(), workspace.data_ptr(), bytes, stream);
    TORCH_CHECK(error == nullptr, error);
    return y;
}
'''

module_$i = load_inline(
    name="$name",
    cpp_sources=BINDING_$i,
    cuda_sources=CUDA_$i,
    functions=["convolve"],
    extra_cuda_cflags=FLAGS,
    no_implicit_headers=True,
)
""")
# The same random numbers as nn.Conv2d draws, in the same order.
_PARAMETERS = Template("""\
        self.w_$i = nn.Parameter(torch.empty($w_shape))
        nn.init.kaiming_uniform_(self.w_$i, a=math.sqrt(5))
        self.bias_$i = nn.Parameter(torch.empty($bias))""")
_BIAS = Template("""
        nn.init.uniform_(self.bias_$i, -1 / math.sqrt($fan_in), 1 / math.sqrt($fan_in))""")


def answer(number: str, convolutions: Sequence[Convolution]) -> str:
    """Return the text of an answer: a Python file that imports torch alone.

    Parameters
    ----------
    number
        The task's number: "63".
    convolutions
        Its convolutions: each takes the output of the one before it.

    Raises
    ------
    ValueError
        If a rung's source contains three single quotes, or it is no file.
    """
    names = [convolution.kernel.name for convolution in convolutions]
    arch = convolutions[-1].kernel.header.arch or "sm_90a"
    return _ANSWER.substitute(
        title=f"Task {number} of KernelBench's level 1: {' and '.join(names)}.",
        rungs=" and ".join(f"kernels/{name}.cu" for name in names),
        arch=f'"-gencode=arch=compute_{arch[3:]},code={arch}"',
        parts="".join(_part(i, number, each) for i, each in enumerate(convolutions)),
        parameters="\n".join(_parameters(i, each) for i, each in enumerate(convolutions)),
        calls="\n".join(_call(i, each) for i, each in enumerate(convolutions)),
    )


def _call(i: int, convolution: Convolution) -> str:
    x, after = ("x.unsqueeze(2)", ".squeeze(2)") if convolution.is_one_dimensional else ("x", "")
    return f"        x = module_{i}.convolve({x}, self.w_{i}, self.bias_{i}){after}"


def _part(i: int, number: str, convolution: Convolution) -> str:
    problem, kernel = convolution.problem, convolution.kernel
    if kernel.path is None:
        raise ValueError(f"{kernel.name} is no file")
    cuda = flat(Source(kernel.source, kernel.path.stem, kernel.path))
    # KernelBench's static check rejects the word "pass" anywhere, also in an error text.
    cuda = re.sub(r"\bpass a copy", "use a copy", cuda)
    if "'''" in cuda:
        raise ValueError(f"{kernel.name} has three single quotes, which end a Python string")
    # A gradient has no bias.
    has_bias = problem.computation.is_forward
    return _PART.substitute(
        i=i,
        cuda=cuda,
        entry=problem.computation.entry,
        bias_type="const void*, " if has_bias else "",
        bias_value="bias.numel() ? bias.data_ptr() : nullptr, " if has_bias else "",
        name=f"answer_{number}_{i}_{kernel.header.precision}",
        fields=", ".join(abi.FIELDS),
        values=_listed(abi.integers(problem.variables())),
        # A transposed convolution takes dy, and returns dx.
        x_shape=_listed(problem.first_shape),
        w_shape=_listed(problem.second_shape),
        y_shape=_listed(problem.output_shape),
    )


def _parameters(i: int, convolution: Convolution) -> str:
    problem = convolution.problem
    text = _PARAMETERS.substitute(
        i=i, w_shape=_listed(problem.w_shape), bias=problem.K if problem.bias else 0
    )
    if problem.bias:
        text += _BIAS.substitute(i=i, fan_in=problem.w_shape[1] * problem.R * problem.S)
    return text


def _listed(shape: Sequence[int]) -> str:
    return ", ".join(str(size) for size in shape)


def write(folder: Path, precision: str) -> list[Path]:
    """Write an answer to each task, and return the files: ``63_tf32.py``."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, convolutions in tasks(precision).items():
        path = folder / f"{number}_{precision}.py"
        path.write_text(answer(number, convolutions))
        written.append(path)
    return written


# ---- KernelBench's evaluation -----------------------------------------------------------------


def evaluate_one(file: Path, checkout: Path, reference: str) -> dict[str, Any]:
    """Return what KernelBench says of one answer. Run it in a process of its own, with a GPU.

    Parameters
    ----------
    file
        The answer, named by its task: ``63_tf32.py``.
    checkout
        The checkout of KernelBench.
    reference
        The class of torch's convolutions: "tf32", torch's default, or "fp32".
    """
    sys.path.insert(0, str(checkout / "src"))
    import torch
    from kernelbench.eval import eval_kernel_against_ref
    from kernelbench.kernel_static_checker import validate_kernel_static

    torch.backends.cudnn.allow_tf32 = reference == "tf32"
    number, precision = file.stem.split("_")
    (task,) = (checkout / "KernelBench" / "level1").glob(f"{number}_*.py")
    text = file.read_text()
    valid, errors, warnings = validate_kernel_static(text, backend="cuda")
    result = eval_kernel_against_ref(
        task.read_text(),
        text,
        measure_performance=True,
        num_correct_trials=_TRIALS,
        num_perf_trials=_TIMED,
        device=torch.device("cuda:0"),
    )
    ms, reference_ms = result.runtime, result.ref_runtime
    return {
        "task": number,
        "class": precision,
        "reference": reference,
        "static check": "passed" if valid else "; ".join(errors),
        "warnings": "; ".join(warnings),
        "compiled": result.compiled,
        "correct": result.correctness,
        "trials": str(result.metadata.get("correctness_trials", "")),
        "difference": str(result.metadata.get("max_difference", "")),
        "ms": ms,
        "reference ms": reference_ms,
        "times as fast": reference_ms / ms if result.correctness and ms > 0 else None,
        "flagged as excessive": bool(result.metadata.get("excessive_speedup", False)),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def evaluate(folder: Path, checkout: Path, reference: str) -> pd.DataFrame:
    """Evaluate all answers of a folder, each in a process of its own; print each row as it comes."""
    rows = []
    for file in sorted(folder.glob("[0-9][0-9]_*.py")):
        command = [sys.executable, "-m", "tests.instruments.kernelbench", "one", str(file)]
        command += ["--kernelbench", str(checkout), "--reference", reference]
        done = subprocess.run(command, capture_output=True, text=True)
        row = None
        with contextlib.suppress(ValueError, IndexError):
            row = json.loads(done.stdout.splitlines()[-1])
        if row is None:
            row = {"task": file.stem, "static check": f"no result: {done.stderr[-300:]}"}
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    """Write answers, or evaluate them."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write an answer to each task")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--precision", choices=PRECISIONS, default="tf32")
    for name, what in (("evaluate", "folder"), ("one", "file")):
        evaluating = commands.add_parser(name, help=f"run KernelBench's evaluation on a {what}")
        evaluating.add_argument("path", type=Path, metavar=what.upper())
        evaluating.add_argument("--kernelbench", type=Path, required=True, metavar="CHECKOUT")
        evaluating.add_argument("--reference", choices=PRECISIONS, default="tf32")
    asked = parser.parse_args()
    if asked.command == "write":
        for path in write(asked.folder, asked.precision):
            print(path)
    elif asked.command == "one":
        print(json.dumps(evaluate_one(asked.path, asked.kernelbench, asked.reference)))
    else:
        print(evaluate(asked.path, asked.kernelbench, asked.reference).to_markdown(index=False))


if __name__ == "__main__":
    main()
