"""The hardware's own counters, through NVIDIA Nsight Compute (ncu), in a process of their own.

``python -m convlab.profile.ncu FILE`` prepares launches of the pickled kernels and runs each once
between ``cudaProfilerStart`` and ``Stop``; `profile` runs that under ncu and reads its CSV. ncu
flushes the caches before each pass and leaves the clock alone. Metric names: "Nsight Compute CLI",
``ncu --query-metrics``.
"""

import io
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

from ..core.errors import ConvlabError, LaunchError
from ..core.kernel.data import inputs
from ..core.kernel.kernel import Kernel
from ..core.machine import child, interrupt, toolchain
from ..core.problem.problem import Problem
from .sass import demangled

TIME_LIMIT = 300.0  # seconds for all passes
_MARK = "spin_kernel"  # torch's, which stands behind each of several calls
# Short name: what ncu calls it.
METRICS: dict[str, str] = {
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared_load_requests": "smsp__inst_executed_op_shared_ld.sum",
    "shared_store_requests": "smsp__inst_executed_op_shared_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "ffma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "fadd": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fmul": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "nanoseconds": "gpu__time_duration.sum",
}
_FORBIDDEN = (
    "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run as root, or let the machine's "
    "owner load the driver with NVreg_RestrictProfilingToAdminUsers=0; in a container, start it "
    "with --cap-add=SYS_ADMIN; most rented machines allow neither"
)


def profile_each(
    calls: Sequence[tuple[Kernel, Problem]],
    metrics: Mapping[str, str] = METRICS,
    time_limit: float = TIME_LIMIT,
) -> list[pd.DataFrame]:
    """Count several calls in one process: few metrics take one pass. See `read_csv`.

    Of what failed nothing is there, nor of what had not begun after two thirds of the time. DRAM's
    counters, and the L2's, are of all that runs on the GPU meanwhile.

    Raises LaunchError, a line that says what to do.
    """
    ncu = toolchain.find("ncu")
    if ncu is None:
        raise LaunchError(
            "no ncu here (Nsight Compute; it comes with the CUDA toolkit): put it on PATH"
        )
    torch.cuda.empty_cache()  # the other process needs the memory, too
    prefix = f"convlab-{interrupt.MARK}-ncu-"
    with interrupt.held(), tempfile.TemporaryDirectory(prefix=prefix) as folder:
        asked = Path(folder) / "asked"
        asked.write_bytes(pickle.dumps((list(calls), time_limit * 2 / 3)))
        command = [
            str(ncu),
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--clock-control",
            "none",
            "--profile-from-start",
            "off",
            "--target-processes",
            "application-only",
            "--metrics",
            ",".join(metrics.values()),
            sys.executable,
            "-m",
            "convlab.profile.ncu",
            str(asked),
        ]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "TMPDIR": folder}
        try:
            done = child.run(command, time_limit, environment)
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"ncu did not finish within {time_limit:g} s; give a smaller problem"
            ) from None
    counters = read_csv(done.stdout, metrics)
    refused = refusal(done.stdout + done.stderr)
    if counters.empty or refused:
        last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-1:]
        raise LaunchError(refused or f"ncu counted nothing: {(last or ['no output'])[0].strip()}")
    return split(counters, len(calls))


def split(counters: pd.DataFrame, calls: int) -> list[pd.DataFrame]:
    """Divide the launches of several calls, of which each ends with a mark, among them."""
    marks = counters["function"].str.contains(_MARK)
    if calls == 1:
        return [counters[~marks].reset_index(drop=True)]
    call = marks.shift(fill_value=False).cumsum().where(marks[::-1].cumsum() > 0)  # all of it
    return [counters[(call == i) & ~marks].reset_index(drop=True) for i in range(calls)]


def refusal(output: str) -> str | None:
    """Explain in one line why ncu refused, or return None if it did not."""
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    if any("ERR_NVGPUCTRPERM" in line for line in errors):
        return _FORBIDDEN
    return f"ncu failed: {errors[0].removeprefix('==ERROR==').strip()}" if errors else None


def read_csv(output: str, metrics: Mapping[str, str] = METRICS) -> pd.DataFrame:
    """Read what ``ncu --csv --page raw --print-units base`` printed; empty if there is no table.

    The table is a header, perhaps a row of units, and a row for each launch; other lines may stand
    around it. Returned are function, grid, block and each metric by its short name, NaN for "n/a".
    """
    text = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    if not text.startswith('"ID"'):
        return pd.DataFrame()
    table = pd.read_csv(io.StringIO(text), dtype=str)
    table = table[table["ID"].notna()].reset_index(drop=True)
    return pd.DataFrame(
        {
            "function": table["Kernel Name"].map(demangled),
            "grid": table["Grid Size"],
            "block": table["Block Size"],
        }
        | {
            name: pd.to_numeric(table[metric].str.replace(",", ""), errors="coerce")
            for name, metric in metrics.items()
            if metric in table
        }
    )


def totals(frame: pd.DataFrame) -> dict[str, float]:
    """Add up a call's launches, under the names of the simulator's counters where it has them."""
    found = {name: float(frame[name].sum()) for name in METRICS if name in frame}
    for side in ("requests", "wavefronts"):
        pair = [found.get(f"shared_{kind}_{side}") for kind in ("load", "store")]
        if None not in pair:
            found[f"shared_{side}"] = sum(pair)
    if "ffma" in found:
        found["flops"] = 2 * found["ffma"] + found.get("fadd", 0) + found.get("fmul", 0)
    if "dram_read_bytes" in found:
        found["dram_bytes"] = found["dram_read_bytes"] + found.get("dram_write_bytes", 0)
    return found


def main(asked: str) -> None:
    """Run launches between the profiler's start and stop: what ncu is put around."""
    calls, seconds = pickle.loads(Path(asked).read_bytes())
    end = time.monotonic() + seconds
    for kernel, problem in calls:
        if time.monotonic() > end:
            break
        try:
            _call(kernel, problem)
        except ConvlabError as error:
            print(f"{kernel.name} on {problem.label}: {error}", file=sys.stderr)
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)  # the mark
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        torch.cuda.empty_cache()


def _call(kernel: Kernel, problem: Problem) -> None:
    launch = kernel.prepare(problem, *inputs(problem, 0, "cuda", format=kernel.format))
    if launch.workspace is not None:
        launch.workspace.zero_()
    launch()  # a library makes its handle in the first call; it is not counted
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
