"""Read the hardware's counters with NVIDIA Nsight Compute (ncu), in a separate process.

``python -m convlab.profile.ncu FILE`` prepares launches of the pickled kernels. It runs each once
between ``cudaProfilerStart`` and ``cudaProfilerStop``. `profile_each` runs that process under ncu
and reads its CSV. ncu flushes the caches before each pass and does not change the clock.
``ncu --query-metrics`` lists the names of the metrics.
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

# The time limit for all passes in seconds, and the share of it after which no call begins.
TIME_LIMIT = 300.0
_SHARE_OF_CALLS = 2 / 3
# The name of the kernel that marks the end of each call; torch.cuda._sleep launches it.
_MARK = "spin_kernel"
# Short names of metrics, and ncu's names.
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
_OPTIONS = (
    *("--csv", "--page", "raw", "--print-units", "base"),
    *("--clock-control", "none"),
    *("--profile-from-start", "off"),
    *("--target-processes", "application-only"),
)
_FORBIDDEN = (
    "ncu is not allowed to read this GPU's counters (ERR_NVGPUCTRPERM): run as root, or start the "
    "container with --cap-add=SYS_ADMIN, or ask the machine's owner to load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0. Most rented machines allow none of these"
)


def profile_each(
    calls: Sequence[tuple[Kernel, Problem]],
    metrics: Mapping[str, str] = METRICS,
    time_limit: float = TIME_LIMIT,
) -> list[pd.DataFrame]:
    """Count several calls in one process. A few metrics need one pass only.

    The counters of DRAM and of the L2 include everything else that runs on the GPU at that time.

    Parameters
    ----------
    calls : kernels of the engine "cuda", each with its problem.
    metrics : ncu's names of the metrics, by short name.
    time_limit : in seconds, for all passes. A call that has not begun after two thirds of it is not
        counted.

    Returns
    -------
    A frame for each call, in the form of `read_csv`; empty for a call that failed or did not begin.

    Raises
    ------
    LaunchError
        ncu is missing, is not allowed to count, or does not finish in time.
    """
    ncu = toolchain.find("ncu")
    if ncu is None:
        raise LaunchError(
            "ncu (Nsight Compute) was not found: it comes with the CUDA toolkit; put it on PATH"
        )
    # The other process needs the GPU's memory too.
    torch.cuda.empty_cache()
    prefix = f"convlab-{interrupt.MARK}-ncu-"
    with interrupt.held(), tempfile.TemporaryDirectory(prefix=prefix) as folder:
        request = Path(folder) / "request"
        request.write_bytes(pickle.dumps((list(calls), time_limit * _SHARE_OF_CALLS)))
        profiled = [sys.executable, "-m", "convlab.profile.ncu", str(request)]
        command = [str(ncu), *_OPTIONS, "--metrics", ",".join(metrics.values()), *profiled]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "TMPDIR": folder}
        try:
            process = child.run(command, time_limit, environment)
        except subprocess.TimeoutExpired:
            raise LaunchError(
                f"ncu did not finish within {time_limit:g} s; give a smaller problem"
            ) from None
    counters = read_csv(process.stdout, metrics)
    why = refusal(process.stdout + process.stderr)
    if why:
        raise LaunchError(why)
    if counters.empty:
        output = (process.stderr + process.stdout).splitlines()
        last = next((line.strip() for line in reversed(output) if line.strip()), "no output")
        raise LaunchError(f"ncu counted nothing: {last}")
    return split(counters, len(calls))


def split(counters: pd.DataFrame, calls: int) -> list[pd.DataFrame]:
    """Divide a table of launches by call; each complete call ends with a mark."""
    is_mark = counters["function"].str.contains(_MARK)
    if calls == 1:
        return [counters[~is_mark].reset_index(drop=True)]
    call = is_mark.shift(fill_value=False).cumsum()
    # After the last mark is a call that did not end.
    is_complete = is_mark[::-1].cumsum() > 0
    call = call.where(is_complete)
    return [counters[(call == i) & ~is_mark].reset_index(drop=True) for i in range(calls)]


def refusal(output: str) -> str | None:
    """Return in one line why ncu failed; None if it did not."""
    errors = [line for line in output.splitlines() if line.startswith("==ERROR==")]
    if any("ERR_NVGPUCTRPERM" in line for line in errors):
        return _FORBIDDEN
    if not errors:
        return None
    return f"ncu failed: {errors[0].removeprefix('==ERROR==').strip()}"


def read_csv(output: str, metrics: Mapping[str, str] = METRICS) -> pd.DataFrame:
    """Read the output of ``ncu --csv --page raw --print-units base``.

    Its table has a header, sometimes a row of units, and a row for each launch. Other lines may
    precede and follow it.

    Returns
    -------
    A frame of function, grid, block and each metric by its short name, with NaN for "n/a"; empty if
    there is no table.
    """
    text = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    if not text.startswith('"ID"'):
        return pd.DataFrame()
    table = pd.read_csv(io.StringIO(text), dtype=str)
    # The row of units has no ID.
    table = table[table["ID"].notna()].reset_index(drop=True)
    columns = {
        "function": table["Kernel Name"].map(demangled),
        "grid": table["Grid Size"],
        "block": table["Block Size"],
    }
    for name, metric in metrics.items():
        if metric in table:
            numbers = table[metric].str.replace(",", "")
            columns[name] = pd.to_numeric(numbers, errors="coerce")
    return pd.DataFrame(columns)


def totals(frame: pd.DataFrame) -> dict[str, float]:
    """Return the sums over a call's launches, under the names of the simulator's counters."""
    sums = {name: float(frame[name].sum()) for name in METRICS if name in frame}
    for unit in ("requests", "wavefronts"):
        load = f"shared_load_{unit}"
        store = f"shared_store_{unit}"
        if load in sums and store in sums:
            sums[f"shared_{unit}"] = sums[load] + sums[store]
    if "ffma" in sums:
        sums["flops"] = 2 * sums["ffma"] + sums.get("fadd", 0) + sums.get("fmul", 0)
    if "dram_read_bytes" in sums:
        sums["dram_bytes"] = sums["dram_read_bytes"] + sums.get("dram_write_bytes", 0)
    return sums


def main(request: str) -> None:
    """Launch the pickled kernels, each between the profiler's start and stop; runs under ncu."""
    calls, seconds = pickle.loads(Path(request).read_bytes())
    end = time.monotonic() + seconds
    for kernel, problem in calls:
        if time.monotonic() > end:
            break
        try:
            _launch(kernel, problem)
        except ConvlabError as error:
            print(f"{kernel.name} on {problem.label}: {error}", file=sys.stderr)
        # The mark after the call.
        torch.cuda.profiler.start()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        torch.cuda.empty_cache()


def _launch(kernel: Kernel, problem: Problem) -> None:
    """Launch a kernel twice; ncu counts the second launch."""
    launch = kernel.prepare(problem, *inputs(problem, 0, "cuda", format=kernel.format))
    if launch.workspace is not None:
        launch.workspace.zero_()
    # In the first call, a library creates its handle.
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
