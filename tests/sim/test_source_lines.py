"""Lines of code addresses, if several threads ask for the same ones and if addr2line is ended once."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from convlab.sim import source_lines

ANSWER = "0x1f\n/x/unfinished-1/kernel.cu:7\n/x/unfinished-1/kernel.cu:9\n0x2f\n??:0\n"
CHAINS = {0x120: (("kernel.cu", 7), ("kernel.cu", 9)), 0x130: ()}
pytestmark = pytest.mark.pure


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let addr2line fail at its first call; return a list with an entry for each call."""
    calls: list[int] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(len(command))
        if len(calls) == 1:
            return subprocess.CompletedProcess(command, -9, "", "")
        return subprocess.CompletedProcess(command, 0, ANSWER, "")

    monkeypatch.setattr(source_lines, "_chains", {})
    monkeypatch.setattr(source_lines.toolchain, "find", lambda name: Path(name))
    monkeypatch.setattr(source_lines.toolchain, "asked", answer)
    return calls


def test_a_lookup_that_was_ended_runs_again(asked: list[int]) -> None:
    assert source_lines.call_chains(Path("a.so"), 0x100, [0x120, 0x130]) == CHAINS
    assert len(asked) == 2


def test_threads_that_ask_for_the_same_addresses_see_whole_chains(asked: list[int]) -> None:
    with ThreadPoolExecutor(8) as pool:
        ask = [pool.submit(source_lines.call_chains, Path("a.so"), 0x100, [0x120, 0x130]) for _ in range(200)]
        assert all(each.result() == CHAINS for each in ask)
