"""Compare convlab's simulator with compute-sanitizer's four tools on planted bugs.

    python -m tests.instruments.sanitizer_table                       print the table, on a GPU
    python -m tests.instruments.sanitizer_table --only 01_top_unchecked histogram-no_atomic
    python -m tests.instruments.sanitizer_table --json FILE --write convlab/sim/sanitizer.md

Each bug becomes a program, compiled by nvcc with -lineinfo. It allocates buffers with cudaMalloc, launches the
kernel once and copies the outputs back. So memcheck sees where each buffer ends, and initcheck what was never
written. The program runs under memcheck, racecheck, initcheck and synccheck, on the first problem for which the
simulator reports the bug. A tool has found a bug if it names a line of the bug (see `planted.Mutant.at`). Other
reports are counted separately.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

import convlab
from convlab.core.builds.build import CUBLAS_DECLARATIONS
from convlab.core.errors import BuildError, LaunchError
from convlab.core.kernel.abi import integers
from convlab.core.kernel.kernel import WORKSPACE_LIMIT
from convlab.core.machine import child, device, toolchain
from tests.instruments import examples, mutants, pages
from tests.instruments.planted import FAULT, KERNELS, MUTANTS, Mutant

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MARKER = "sanitizer"
AT_LINE = "at its line"
NO_LINE = "yes, no line"
ELSEWHERE = "elsewhere"
NOTHING = "-"
KILLED = "killed"
SECONDS = 20.0  # seconds for a program under a tool
# Wrong results that a tool may notice: outputs that were never written, a failed launch.
TRACES = (
    "01_grid_rounded_down",
    "01_launch_error_swallowed",
    "01_filter_falls_through",
    "01b_one_tile_of_channels",
    "01c_images_past_grid",
    "02b_chunk_start_dropped",
    "02c_batch_of_y",
    "03_tail_tile_missing",
    "03_refusal_unsaid",
)

OTHERS = examples.BUGS | examples.MORE

_HOST = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>
static void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    printf("failed: %s\n", cudaGetErrorString(error));
    exit(3);
}
// Allocates a buffer on the GPU; without `data` it stays uninitialised.
static void* buffer(size_t bytes, const void* data) {
    void* pointer = nullptr;
    if (!bytes) return pointer;
    must(cudaMalloc(&pointer, bytes));
    if (data) must(cudaMemcpy(pointer, data, bytes, cudaMemcpyHostToDevice));
    return pointer;
}
static void fetch(void* pointer, size_t bytes) {
    std::vector<char> back(bytes);
    if (bytes) must(cudaMemcpy(back.data(), pointer, bytes, cudaMemcpyDeviceToHost));
}
"""
# Arguments: ConvProblem's integers, the bytes of x, w, bias and y, the limit of the workspace.
_CONVOLUTION = (
    _HOST
    + r"""
#include "NAME.cu"
HAS_WORKSPACE
int main(int count, char** text) {
    ConvProblem problem;
    const int members = sizeof(ConvProblem) / sizeof(int);
    if (count != members + 6) return 2;
    for (int i = 0; i < members; ++i) reinterpret_cast<int*>(&problem)[i] = atoi(text[1 + i]);
    size_t bytes[5];
    for (int i = 0; i < 5; ++i) bytes[i] = strtoull(text[1 + members + i], nullptr, 10);
    float* tensors[4];
    for (int t = 0; t < 4; ++t) {
        std::vector<float> data(bytes[t] / 4);
        for (size_t i = 0; i < data.size(); ++i) data[i] = float(int(i * 7 % 23) - 11) / 8;
        tensors[t] = static_cast<float*>(buffer(bytes[t], t < 3 ? data.data() : nullptr));
    }
    size_t need = workspace_of(&problem, bytes[4]);
    const char* error = conv2d(&problem, tensors[0], tensors[1], tensors[2], tensors[3],
                               buffer(need, nullptr), need, nullptr);
    if (error) printf("refused: %s\n", error);
    must(cudaDeviceSynchronize());
    fetch(tensors[3], bytes[3]);
    return 0;
}
"""
)
_WORKSPACE = "static size_t workspace_of(const ConvProblem* p, size_t limit) { return %s; }"


@dataclass
class Bug:
    """One planted bug, and how to run it.

    Attributes
    ----------
    name, mistake, source : see `planted.Mutant`.
    lines : the lines that a correct report names.
    host : the rest of the program, which includes NAME.cu.
    simulate : runs the simulator; returns the kind, convlab's cell, the program's arguments.
    prepare : builds what `simulate` runs.
    arguments : the command line, once a problem is known that shows the bug.
    kind : the kind of convlab's finding: "race", "never written".
    cells : the result of each tool, and of "convlab".
    """

    name: str
    mistake: str
    source: str
    lines: frozenset[int]
    host: str
    simulate: Callable[[], tuple[str, str, list[str]]]
    prepare: Callable[[], object]
    arguments: list[str] = field(default_factory=list)
    kind: str = ""
    cells: dict[str, str] = field(default_factory=dict)


def bugs() -> list[Bug]:
    """Return all bugs of the table: of rungs, and of other kernels."""
    chosen = [m for m in MUTANTS if m.sim == FAULT or m.name in TRACES]
    return [_of_mutant(m) for m in chosen] + [_of_example(name) for name in OTHERS]


def _of_mutant(mutant: Mutant) -> Bug:
    asks = "conv2d_workspace" in mutant.source
    workspace = _WORKSPACE % ("conv2d_workspace(p, limit)" if asks else "0")
    host = _CONVOLUTION.replace("NAME", mutant.name).replace("HAS_WORKSPACE", workspace)

    def simulate() -> tuple[str, str, list[str]]:
        kernel = mutants.build(mutant, "sim")
        if isinstance(kernel, mutants.Finding):
            raise BuildError(kernel.what)
        found = mutants.examine(kernel)
        if not found.kind:
            return "", NOTHING, []
        shown = next(
            p for p in convlab.problems("awkward") if p.label.endswith(f"awkward.{found.problem}")
        )
        sizes = (shown.x_shape, shown.w_shape, (shown.K * shown.bias,), shown.y_shape)
        numbers = [*integers(shown.variables()), *(4 * int(np.prod(size)) for size in sizes)]
        arguments = [*numbers, mutant.workspace_limit or WORKSPACE_LIMIT]
        kind, said = heard(found.findings, mutant.lines)
        if not kind:
            kind = "never written" if "never written" in found.what else "wrong result"
            said = NO_LINE
        return kind, said, [str(number) for number in arguments]

    return Bug(
        mutant.name,
        mutant.mistake,
        mutant.source,
        mutant.lines,
        host,
        simulate,
        lambda: mutants.build(mutant, "sim"),
    )


def _of_example(name: str) -> Bug:
    example_name, old, new, kind, places = OTHERS[name]
    example = examples.EXAMPLES[example_name]
    source = example.source.replace(old, new)
    numbered = enumerate(source.splitlines(), 1)
    lines = frozenset(i for i, line in numbered if any(place in line for place in places))

    def simulate() -> tuple[str, str, list[str]]:
        try:
            trace, _ = example.run(source, time_limit=2.0)
            findings = trace.findings
        except LaunchError as error:
            findings = error.findings
        return (*heard(findings, lines), [])

    return Bug(name, kind, source, lines, _example_host(name, example), simulate, lambda: None)


def _example_host(name: str, example: examples.Example) -> str:
    """Return the program for a kernel that is no convolution, with its arrays in the text."""
    before = []
    back = []
    given = []
    for i, value in enumerate(example.arguments()):
        if isinstance(value, (np.ndarray, torch.Tensor)):
            data = np.ascontiguousarray(value)
            octets = ",".join(map(str, data.tobytes()))
            before.append(f"    static const unsigned char data{i}[] = {{{octets}}};")
            before.append(f"    void* argument{i} = buffer(sizeof data{i}, data{i});")
            back.append(f"    fetch(argument{i}, sizeof data{i});")
        else:
            ctype = "int" if isinstance(value, int) else "float"
            before.append(f"    {ctype} argument{i} = {value};")
        given.append(f"&argument{i}")
    grid, block = (
        ", ".join(map(str, shape if isinstance(shape, tuple) else (shape,)))
        for shape in (example.grid, example.block)
    )
    body = "\n".join(
        [
            *before,
            f"    void* arguments[] = {{{', '.join(given)}}};",
            f"    must(cudaLaunchKernel((const void*)&{example.entry}, dim3({grid}), dim3({block}),",
            "                          arguments, 0, 0));",
            "    must(cudaDeviceSynchronize());",
            *back,
        ]
    )
    return f'{_HOST}\n#include "{name}.cu"\nint main() {{\n{body}\n    return 0;\n}}\n'


def heard(findings: Iterable, lines: frozenset[int]) -> tuple[str, str]:
    """Return the kind of the first finding, and whether a finding is at the bug's line."""
    told = list(findings)
    if not told:
        return "", NOTHING
    if any({f.line, f.other_line} & lines for f in told):
        return told[0].kind, AT_LINE
    places = sorted({f.line for f in told if f.line})
    return told[0].kind, f"{ELSEWHERE} ({', '.join(map(str, places))})" if places else NO_LINE


# The first line of a report: text without indentation that is not about the tool itself.
_OPENING = re.compile(
    r"^========= (?! |COMPUTE-SANITIZER|(?:ERROR|RACECHECK|LEAK) SUMMARY|Target application"
    r"|(?:Error|Warning): (?!Race|Potential)|No attachable|Internal Sanitizer|Saved)\S"
)
_PLACE = re.compile(r" in ([^\s:()]+\.cuh?):(\d+)")


def records(output: str) -> list[tuple[str, list[int]]]:
    """Return a tool's reports: the first line of each, and the source lines that it names.

    Compute Sanitizer's user manual describes the format. Every line starts with "=========". A
    report's first line has one space after that, its other lines have more; an empty line ends it.
    """
    found: list[tuple[str, list[int]]] = []
    inside = False
    for line in output.splitlines():
        if not line.startswith("========="):
            continue
        if _OPENING.match(line):
            found.append((line.removeprefix("========= ").strip(), []))
            inside = True
        elif not line.startswith("=========  "):
            inside = False
        if inside:
            found[-1][1].extend(int(number) for _, number in _PLACE.findall(line))
    return found


def verdict(output: str, lines: frozenset[int]) -> str:
    """Return the table's cell for a tool and a bug, from the tool's output."""
    if "========= COMPUTE-SANITIZER" not in output:
        said = [line for line in output.splitlines() if line.strip()]
        return f"?: {said[-1][:60] if said else 'no output'}"
    if "Internal Sanitizer Error" in output:
        return "?: internal error of the tool"
    found = records(output)
    if any(lines & set(places) for _, places in found):
        return AT_LINE
    if places := sorted({place for _, named in found for place in named}):
        return f"{ELSEWHERE} ({', '.join(map(str, places[:3]))})"
    return NO_LINE if found else NOTHING


def make(bug: Bug, folder: Path, arch: str) -> Path | str:
    """Compile a bug's program; return its path, or the reason why there is none."""
    cuda = toolchain.require_cuda()
    (folder / f"{bug.name}.cu").write_text(bug.source)
    text = folder / f"{bug.name}_main.cu"
    program = folder / bug.name
    text.write_text(bug.host)
    command = [
        str(cuda.nvcc),
        "-std=c++17",
        "-O3",
        "-lineinfo",
        "-w",
        f"-arch=sm_{arch}",
        f"-I{folder}",
        f"-I{KERNELS}",
        str(text),
        "-o",
        str(program),
        *[f"-L{cuda.home / 'lib'}"],
    ]
    if "cublas" in bug.source:
        libraries = toolchain.link_dir()
        command += [f"-L{libraries}", "-lcublas", "-Xlinker", f"-rpath={libraries}"]
        if (headers := toolchain.cublas_include()) is not None:
            command.append(f"-I{headers}")
        else:
            shutil.copyfile(CUBLAS_DECLARATIONS / "cublas_v2.h", folder / "cublas_v2.h")
        where = {link.resolve().parent for link in libraries.glob("lib*.so")}
        command += [f"-Xlinker=-rpath={path}" for path in where]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line]
        return f"?: does not compile: {lines[0][:80] if lines else done.returncode}"
    return program


def ask(tool: str, program: Path, bug: Bug, limit: float = SECONDS) -> str:
    """Run a bug's program under a tool; return the cell."""
    command = [
        str(toolchain.find("compute-sanitizer")),
        "--tool",
        tool,
        "--show-backtrace",
        "no",
        "--print-limit",
        "1000",
        str(program),
        *bug.arguments,
    ]
    try:
        done = child.run(command, limit)
    except subprocess.TimeoutExpired as late:
        said = verdict(late.output + late.stderr, bug.lines)
        return f"{KILLED} after {limit:g} s" if said.startswith(("?", NOTHING)) else said
    return verdict(done.stdout + done.stderr, bug.lines)


def guarded(action: Callable[[], object]) -> object:
    """Return what an action returns, or "?: reason" after an error, so that the table goes on."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001
        text = str(error).partition("\n")[0]
        return f"?: {type(error).__name__}: {text[:60]}"


def survey(chosen: Sequence[Bug], jobs: int, save: Callable[[], None], arch: str) -> None:
    """Fill in the cells: compile all programs, simulate all, then run each under each tool."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        folder = Path(scratch)
        programs = [pool.submit(guarded, lambda b=bug: make(b, folder, arch)) for bug in chosen]
        simulated = simulate(chosen, pool)
        save()

        def run(tool: str, bug: Bug, program: Path | str) -> None:
            answer = guarded(lambda: ask(tool, program, bug))
            bug.cells[tool] = str(program if isinstance(program, str) else answer)

        built = [future.result() for future in programs]
        with ThreadPoolExecutor(jobs) as runs:
            waiting = [
                runs.submit(run, tool, bug, program)
                for bug, program, shown in zip(chosen, built, simulated, strict=True)
                if shown
                for tool in TOOLS
            ]
            for number, future in enumerate(waiting, 1):
                future.result()
                if number % 20 == 0:
                    print(f"{number} of {len(waiting)} runs", file=sys.stderr, flush=True)
                    save()
        save()


def simulate(chosen: Sequence[Bug], pool: ThreadPoolExecutor) -> list[bool]:
    """Fill in convlab's cells; return whether each bug has a problem to run on."""
    # Several are built at a time, before they are examined.
    builds = {bug.name: pool.submit(guarded, bug.prepare) for bug in chosen}
    shown = []
    for bug in chosen:
        builds[bug.name].result()
        answer = guarded(bug.simulate)
        if isinstance(answer, str):
            bug.kind = "?"
            bug.cells["convlab"] = answer
        else:
            bug.kind, bug.cells["convlab"], bug.arguments = answer
        shown.append(bug.kind not in ("", "?"))
    return shown


def table(chosen: Sequence[Bug]) -> str:
    """Return the Markdown table, with the totals of each tool."""
    columns = ("convlab", *TOOLS)
    rows = [f"| bug | kind | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for bug in chosen:
        cells = [bug.cells.get(tool, "not run").replace("|", "\\|") for tool in columns]
        rows.append(f"| `{bug.name}`: {bug.mistake} | {bug.kind} | {' | '.join(cells)} |")
    for label, counts in (
        ("found, at its line", lambda cell: cell == AT_LINE),
        ("found, at its line or not", lambda cell: cell in (AT_LINE, NO_LINE) or ELSEWHERE in cell),
    ):
        totals = [sum(counts(bug.cells.get(tool, "")) for bug in chosen) for tool in columns]
        rows.append(f"| **{label}, of {len(chosen)}** | | {' | '.join(map(str, totals))} |")
    ours = {bug.name for bug in chosen if bug.cells.get("convlab") in (AT_LINE, NO_LINE)}
    theirs = {b.name for b in chosen if any(b.cells.get(tool) == AT_LINE for tool in TOOLS)}
    missed = sorted(theirs - ours)
    total = (
        f"Found at its line by one of the four: {len(theirs)}; "
        f"of these not found by convlab: {', '.join(missed) or 'none'}."
    )
    return "\n".join([*rows, "", total])


def provenance(command: str) -> str:
    """Return where, when and by which command the table was made."""
    tool = toolchain.find("compute-sanitizer")
    words = ["?"]
    if tool is not None:
        out = subprocess.run(
            [tool, "--version"], capture_output=True, text=True, check=False
        ).stdout
        words = re.findall(r"[Vv]ersion (\S+)", out) or words
    cuda = toolchain.require_cuda()
    return (
        f"{device.describe()}; compute-sanitizer {words[0]}; {toolchain.version(cuda.nvcc)}; torch "
        f"{torch.__version__}; {datetime.date.today()}, by `{command}`."
    )


def main(arguments: list[str] | None = None) -> int:
    """Make the table; return 1 without a GPU or compute-sanitizer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these bugs")
    parser.add_argument("--jobs", type=int, default=6, help="programs that run at a time")
    parser.add_argument("--json", type=Path, help="also write the results so far to this file")
    parser.add_argument("--write", type=Path, help=f"a file with <!-- {MARKER}: begin -->")
    options = parser.parse_args(arguments)
    everything = bugs()
    unknown = set(options.only or ()) - {bug.name for bug in everything}
    if unknown:
        parser.error(
            f"no bug is named {', '.join(sorted(unknown))}: see planted.py and examples.py"
        )
    chosen = [bug for bug in everything if not options.only or bug.name in options.only]
    if not torch.cuda.is_available() or toolchain.find("compute-sanitizer") is None:
        print(
            "needs an NVIDIA GPU and compute-sanitizer: pip install nvidia-cuda-sanitizer-api",
            file=sys.stderr,
        )
        return 1
    if options.write:
        # A page without markers fails now, not after minutes of work.
        pages.between(options.write, MARKER)
    major, minor = torch.cuda.get_device_capability()
    started = time.perf_counter()

    def save() -> None:
        if options.json:
            rows = [
                {
                    "name": b.name,
                    "kind": b.kind,
                    "lines": sorted(b.lines),
                    "arguments": b.arguments,
                    **b.cells,
                }
                for b in chosen
            ]
            options.json.write_text(json.dumps(rows, indent=1))

    survey(chosen, options.jobs, save, f"{major}{minor}" + ("a" if major >= 9 else ""))
    text = f"{table(chosen)}\n\n{provenance('python -m tests.instruments.sanitizer_table --write convlab/sim/sanitizer.md')}"
    print(text)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    if options.write:
        pages.write_between(options.write, MARKER, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
