"""Whether answers run in this process: only in the confined one, in which `judge.call` sets `session`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Makes the `Session` of what `AnswerKernel.spec` describes; None in every other process.
session: Callable[[dict[str, Any]], Any] | None = None
