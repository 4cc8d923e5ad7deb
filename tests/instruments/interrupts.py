"""Test that Ctrl-C ends every command and every cell, at any time, and leaves nothing behind.

    python -m tests.instruments.interrupts [--runs 60] [--seed 0] [NAME ...]

A name is a command (compare, check, ab, sweep, inspect) or a cell (cell:check, cell:build, ...). A cell is the
same call in a Python process that goes on afterwards, as a notebook's kernel does. Without names, all are
tested. Each run works on the simulator and gets SIGINT at a random time. The signal goes to the process, or to
its process group as from a terminal or from Jupyter, and sometimes twice. Half of the commands' runs begin with
an empty cache, so that compilers are running.

A command's run is clean if

- the exit status is 130, and stderr has one line, "convlab: interrupted";
- it ends within 2 s of the signal;
- it leaves no process, no file in its TMPDIR, and no unfinished folder in its cache.

If the signal comes before convlab's first statement, Python's own handler gets it. Such runs are counted
separately. A cell is clean if it raises KeyboardInterrupt within 2 s, leaves nothing, and the next cell computes
the correct result. The exit status is 1 if any run is not clean.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SMALL = "N=1,C=2,H=6,W=6,K=2,R=3,S=3"
COMMANDS = {
    "compare": ["compare", "01", "03", "--engine", "sim", "--problem", SMALL],
    "check": ["check", "01", "--engine", "sim", "--problem", "awkward"],
    "ab": ["ab", "01", "03", "--engine", "sim", "--problem", SMALL],
    "sweep": ["sweep", "03", "TILE=4,8", "--engine", "sim", "--problem", SMALL],
    "inspect": ["inspect", "01", "--engine", "sim", "--problem", SMALL],
}
CELLS = {
    "cell:compare": "convlab.compare(['01', '03'], problem=SMALL, engine='sim')",
    "cell:check": "convlab.check('01', 'awkward')",
    "cell:ab": "convlab.ab('01', '03', SMALL, engine='sim')",
    "cell:sweep": "convlab.sweep('03', {'TILE': [4, 8, 16]}, SMALL, engine='sim')",
    "cell:inspect": "convlab.inspect('01', SMALL)",
    "cell:build": "convlab.compile(text + f'// {time.time_ns()}', engine='sim')(x, w)",
    "cell:endless": "endless(x, w)",
}
LIMIT = 2.0  # seconds from the signal to the end
MARK = "CONVLAB_INTERRUPTS_RUN"  # in the environment of every process of one run
_EARLY = 0.3  # seconds: a quarter of the signals are sent before
_PATIENCE = 60.0  # seconds until a run that does not end is killed
_PROGRESS = re.compile(r".*: (\d+ of \d+, )?\d+ s(, .*)?")  # a long command's line every 10 seconds

# Runs lines of Python. Ctrl-C interrupts a line, but nothing between two lines.
_SESSION = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
import torch, convlab
text = convlab.load("01_direct", engine="sim").source
x, w = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3)
forever = text.replace("g_y[i] =", 'while (conv.N) asm volatile("");\\n    g_y[i] =')
endless = convlab.compile(forever, name="endless", engine="sim")
SMALL = sys.argv[1]
print("ready", flush=True)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    outcome = "ended"
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print("begun", flush=True)
            exec(line)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:
        outcome = type(error).__name__ + ": " + str(error)[:200].replace(chr(10), " ")
    print(outcome, flush=True)
"""


@dataclasses.dataclass
class Run:
    """One run: when the signal was sent, and how the run ended."""

    name: str
    delay: float  # seconds from the start to the signal
    how: str  # "process", "group" or "twice"
    cold: bool  # with an empty cache
    started: bool = True  # whether convlab's first statement had run at the signal
    status: int | str | None = None
    seconds: float = 0.0  # from the signal to the end
    said: list[str] = dataclasses.field(default_factory=list)  # on stderr, progress left out
    processes: list[str] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """What was not clean, in words; empty for a clean run."""
        cell = self.name in CELLS
        wanted = "KeyboardInterrupt: " if cell else 130
        found = []
        if self.status != wanted:
            found.append(f"status {self.status}")
        if self.said != ([] if cell else ["convlab: interrupted"]):
            found.append(f"{len(self.said)} lines: {' / '.join(self.said)[-150:]}")
        if self.seconds > LIMIT:
            found.append(f"ended after {self.seconds:.1f} s")
        if self.processes:
            found.append(f"processes left: {', '.join(self.processes)[:150]}")
        if self.files:
            found.append(f"files left: {', '.join(self.files)[:150]}")
        return found


# ---- one command --------------------------------------------------------------------------------


def interrupted(name: str, delay: float, how: str, cache: Path, cold: bool = False) -> Run:
    """Start a command, interrupt it after a delay, and return the run.

    If the command ends before the signal, the run's status is "ended".
    """
    run = Run(name, delay, how, cold)
    with _scratch() as scratch:
        kept = scratch / "cache" if cold else cache
        mark = scratch.name
        environment = _environment(scratch, kept, mark)
        command = [sys.executable, "-m", "convlab", *COMMANDS[name]]
        err = scratch / "stderr"
        with err.open("w") as file:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            run.started = _begun(process.pid)
            sent = time.monotonic()
            _send(process.pid, how, threading.Event())
            run.status, run.seconds = _end(process, sent)
        else:
            run.status = "ended"
        run.said = _lines(err)
        run.processes = left(mark)
        run.files = files(scratch / "tmp", kept)
    return run


def _end(process: subprocess.Popen, sent: float) -> tuple[int | str, float]:
    try:
        status: int | str = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        status = "never ended"
    return status, time.monotonic() - sent


def _send(process: int, how: str, over: threading.Event) -> None:
    """Send the signal; for "twice", a second one after 50 ms if the run still goes on."""
    for _ in range(2 if how == "twice" else 1):
        with contextlib.suppress(ProcessLookupError):
            if how == "process":
                os.kill(process, signal.SIGINT)
            else:
                os.killpg(process, signal.SIGINT)
        if how == "twice" and over.wait(0.05):
            return


def _begun(process: int) -> bool:
    """Return whether a command has run its first statement, which blocks SIGINT, or has forked."""
    folder = Path(f"/proc/{process}")
    text = (folder / "status").read_text()
    blocked = int(re.search(r"^SigBlk:\s*(\w+)", text, re.MULTILINE)[1], 16)
    forked = (folder / "task" / str(process) / "children").read_text()
    return bool(forked) or bool(blocked >> (signal.SIGINT - 1) & 1)


# ---- one session of cells -----------------------------------------------------------------------


class Session:
    """A Python process that runs one cell after another, in a process group of its own."""

    def __init__(self, cache: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._scratch = self._stack.enter_context(_scratch())
        self._cache = cache
        self._err = self._scratch / "stderr"
        with self._err.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SESSION, SMALL],
                cwd=REPOSITORY,
                env=_environment(self._scratch, cache, self._scratch.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout.readline() == "ready\n", _lines(self._err)

    def ask(self, cell: str, delay: float | None = None, how: str = "") -> tuple[str, float]:
        """Run a cell and interrupt it after a delay; return how it ended, and seconds from the signal."""
        self._process.stdin.write(cell + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "begun\n"
        sent = [time.monotonic()]
        over = threading.Event()

        def interrupt() -> None:
            if not over.wait(delay):
                sent[0] = time.monotonic()
                _send(self._process.pid, how, over)

        thread = threading.Thread(target=interrupt)
        if delay is not None:
            thread.start()
        end = threading.Timer(_PATIENCE + (delay or 0), self._process.kill)
        end.start()
        outcome = self._process.stdout.readline().removesuffix("\n") or "never ended"
        seconds = time.monotonic() - sent[0]
        over.set()
        end.cancel()
        if delay is not None:
            thread.join()
        return outcome, seconds

    def interrupted(self, name: str, delay: float, how: str) -> Run:
        """Interrupt a cell after a delay, and return the run."""
        run = Run(name, delay, how, False)
        run.status, run.seconds = self.ask(CELLS[name], delay, how)
        if self._process.poll() is not None:
            return run
        run.said = _lines(self._err)
        self._err.write_text("")
        run.processes = _working(self._scratch.name)
        run.files = [
            each
            for each in files(self._scratch / "tmp", self._cache)
            # The process's own files stay until it ends.
            if not each.startswith("convlab-")
        ]
        again, _ = self.ask("assert convlab.load('01', engine='sim')(x, w).sum() == 36")
        if again != "ended":
            run.said.append(f"the next cell: {again}")
        return run

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and all that it started."""
        self._process.kill()
        self._process.communicate()
        left(self._scratch.name)
        self._stack.close()


def _working(mark: str) -> list[str]:
    """Return the commands of compilers, and of running launches: grandchildren of host.py."""
    commands = dict(_running(mark))
    found = []
    for process, command in commands.items():
        before = commands.get(_parent(process), "")
        third = commands.get(_parent(_parent(process)), "")
        launch = all("host.py" in each for each in (command, before, third))
        if launch or re.search(r"cc1plus|ninja|\+\+|collect2|bin/ld|nvcc", command):
            found.append(command)
    return found


def _parent(process: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process}/status").read_text()
        return int(re.search(r"^PPid:\s*(\d+)", text, re.MULTILINE)[1])
    return 0


# ---- what a run leaves --------------------------------------------------------------------------


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="interrupts-"))
    (folder / "tmp").mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(scratch: Path, cache: Path, mark: str) -> dict[str, str]:
    own = {"CONVLAB_CACHE": str(cache), "TMPDIR": str(scratch / "tmp"), MARK: mark}
    return os.environ | own


def _lines(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    return [line for line in lines if not _PROGRESS.fullmatch(line)]


def _running(mark: str) -> Iterator[tuple[int, str]]:
    """Yield the id and the command of each process that one run started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(folder.name), command.decode(errors="replace").strip()[:200]


def left(mark: str) -> list[str]:
    """Kill the processes of a run that still run; return their commands."""
    found = []
    for process, command in _running(mark):
        found.append(command[:80])
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return found


def files(temporary: Path, cache: Path) -> list[str]:
    """Return the temporary files that are left, and unfinished folders of the cache."""
    found = [path.relative_to(temporary) for path in temporary.rglob("*")]
    found += [path.name for path in cache.glob("unfinished-*")]
    return sorted(map(str, found))


# ---- many runs, and the table -------------------------------------------------------------------


def runs(name: str, count: int, draw: random.Random, cache: Path) -> list[Run]:
    """Interrupt a command or a cell `count` times, each at a random time."""
    session = Session(cache) if name in CELLS else None
    if session:
        life = 3.0
        if name != "cell:endless":
            started = time.monotonic()
            session.ask(CELLS[name])
            life = time.monotonic() - started
    else:
        warm, life = _life(name, cache), _life(name, cache)
        del warm
    found: list[Run] = []
    while len(found) < count:
        early = draw.random() < 0.25
        delay = draw.uniform(0, _EARLY if early else life)
        how = draw.choices(["process", "group", "twice"], [45, 45, 10])[0]
        if session:
            run = session.interrupted(name, delay, how)
            if not session.alive:
                session.close()
                session = Session(cache)
        else:
            run = interrupted(name, delay, how, cache, cold=len(found) % 2 == 1)
        # It ended before the signal.
        if run.status in ("ended", 0):
            continue
        found.append(run)
        print(json.dumps(dataclasses.asdict(run)), file=sys.stderr, flush=True)
    if session:
        session.close()
    return found


def first_line(times: int = 20) -> list[float]:
    """Return seconds from the start of a process to convlab's first statement, `times` times."""
    found = []
    for _ in range(times):
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "convlab", "list"],
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not _begun(process.pid):
            time.sleep(0.0002)
        found.append(time.monotonic() - started)
        process.send_signal(signal.SIGINT)
        process.wait()
    return found


def _life(name: str, cache: Path) -> float:
    """Return the seconds that a command takes."""
    started = time.monotonic()
    with _scratch() as scratch:
        subprocess.run(
            [sys.executable, "-m", "convlab", *COMMANDS[name]],
            cwd=REPOSITORY,
            env=_environment(scratch, cache, scratch.name),
            capture_output=True,
            check=True,
        )
    return time.monotonic() - started


def table(found: dict[str, list[Run]]) -> str:
    """Return a Markdown table of the runs, and below it each run that was not clean."""
    rows = ["| name | runs | clean | before the first line | slowest | median |", "|---" * 6 + "|"]
    faults = []
    for name, several in found.items():
        counted = [run for run in several if run.started]
        clean = [run for run in counted if not run.faults]
        seconds = [run.seconds for run in counted] or [0.0]
        rows.append(
            f"| {name} | {len(counted)} | {len(clean)} | {len(several) - len(counted)} | "
            f"{max(seconds):.2f} s | {statistics.median(seconds):.2f} s |"
        )
        for run in several:
            if run.faults:
                when = f"{run.delay:.3f} s{'' if run.started else ', before the first line'}"
                where = f"{name} at {when}, {run.how}{', cold' if run.cold else ''}"
                faults.append(f"{where}: {'; '.join(run.faults)}")
    return "\n".join([*rows, "", *faults])


def main() -> int:
    """Interrupt the commands and cells that are named; return the exit status."""
    parser = argparse.ArgumentParser(description="Interrupt commands and cells at random times.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*COMMANDS, *CELLS]))
    parser.add_argument("--runs", type=int, default=60, help="runs of each (default: 60)")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    unknown = set(asked.names) - {*COMMANDS, *CELLS}
    if unknown:
        parser.error(
            f"no command or cell is named {', '.join(sorted(unknown))}: choose from "
            f"{', '.join([*COMMANDS, *CELLS])}"
        )
    # A script starts background jobs with SIGINT ignored, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = {}
    with tempfile.TemporaryDirectory(prefix="interrupts-") as cache:
        for name in asked.names or [*COMMANDS, *CELLS]:
            draw = random.Random(f"{name} {asked.seed}")
            found[name] = runs(name, asked.runs, draw, Path(cache))
    print(table(found))
    before = sorted(first_line())
    print(
        f"\nconvlab's first line runs {1e3 * statistics.median(before):.0f} ms after the start of the "
        f"process, at most {1e3 * before[-1]:.0f} ms (20 starts)"
    )
    return int(any(run.faults for several in found.values() for run in several if run.started))


if __name__ == "__main__":
    sys.exit(main())
