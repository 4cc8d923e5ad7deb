"""Add the command that reproduces a failure to a report of ``check``."""

import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

from ..core.correctness.check import check
from ..core.correctness.examine import failed
from ..core.correctness.report import Report, Reports
from ..core.correctness.setting import ORDINARY
from ..core.correctness.stricter import settings
from ..core.errors import LaunchError
from ..core.faults import INCORRECT
from ..core.kernel.runnable import Runnable


def checked(
    kernel: Runnable,
    word: str,
    arguments: Namespace,
    each: Callable[[Report], object] | None = None,
) -> Report | Reports:
    """Return the report of a kernel; if it is incorrect, add the command that reproduces it.

    Parameters
    ----------
    kernel : what is checked.
    word : the user's word for it.
    arguments : those of the command ``check``.
    each : called with the report of each problem of a set.

    Raises
    ------
    BuildError, UnsupportedError, LaunchError
        As `check` does. A crash on a known problem becomes a report instead.
    """
    report = _report(kernel, arguments, each)
    if not isinstance(report, Report | Reports):
        # The runnable has a check of its own.
        return report
    failing = report.smallest if isinstance(report, Reports) else report
    if report.outcome != INCORRECT or failing is None:
        return report
    # Another value of a tunable may be what fails.
    tunables = failing.kernel.removeprefix(kernel.name) if not kernel.defines else ""
    words = ["check", word + tunables, "--problem", str(failing.problem)]
    # The simulator may have found it beside a GPU.
    words += ["--engine", arguments.engine if kernel.library else failing.engine]
    if setting := _setting_named(failing.setting) or arguments.setting:
        words += ["--setting", setting]
    if arguments.time_limit is not None:
        words += ["--time-limit", f"{arguments.time_limit:g}"]
    if arguments.seed:
        words += ["--seed", str(arguments.seed)]
    line = f"reproduce: {arguments.command.program} {shlex.join(words)}"
    return replace(report, notes=(line, *report.notes))


def _report(
    kernel: Runnable, arguments: Namespace, each: Callable[[Report], object] | None
) -> Report | Reports:
    try:
        return check(
            kernel,
            arguments.problem,
            count=arguments.count,
            seed=arguments.seed,
            setting=arguments.setting,
            simulate=not arguments.no_simulate,
            each=each,
        )
    except LaunchError as error:
        if error.problem is None or error.kind == "too little workspace":
            raise
        setting = settings().get(arguments.setting, ORDINARY)
        return failed(kernel, error.problem, error, setting)


def _setting_named(description: str) -> str:
    """Return the name, for ``--setting``, of the setting that a report describes."""
    for setting in settings().values():
        if setting.words == description:
            return setting.name
    return ""
