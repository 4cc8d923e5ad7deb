"""What ``check`` adds to a report: the command that reproduces what is wrong."""

import shlex
from argparse import Namespace
from dataclasses import replace

from ..core.correctness.check import check
from ..core.correctness.examine import failed
from ..core.correctness.report import Report, Reports
from ..core.correctness.setting import ORDINARY
from ..core.correctness.stricter import settings
from ..core.errors import LaunchError
from ..core.kernel.runnable import Runnable


def checked(kernel: Runnable, word: str, arguments: Namespace) -> Report | Reports:
    """Return the report of a kernel; if it is not correct, with the command that reproduces that.

    Parameters
    ----------
    kernel : what is checked.
    word : what the user wrote for it.
    arguments : those of the command ``check``.

    Raises
    ------
    BuildError, UnsupportedError, LaunchError
        As `check` does. A crash on a problem that is known becomes a report.
    """
    report = _report(kernel, arguments)
    failing = report.smallest if isinstance(report, Reports) else report
    if report.ok or failing is None:
        return report
    words = ["check", word, "--problem", str(failing.problem)]
    words += ["--engine", arguments.engine if kernel.library else kernel.engine]
    if setting := _setting_named(failing.setting) or arguments.setting:
        words += ["--setting", setting]
    if arguments.seed:
        words += ["--seed", str(arguments.seed)]
    line = f"reproduce: {arguments.command.program} {shlex.join(words)}"
    return replace(report, notes=(line, *report.notes))


def _report(kernel: Runnable, arguments: Namespace) -> Report | Reports:
    try:
        return check(
            kernel,
            arguments.problem,
            count=arguments.count,
            seed=arguments.seed,
            setting=arguments.setting,
        )
    except LaunchError as error:
        if error.problem is None or error.kind == "too little workspace":
            raise
        setting = settings().get(arguments.setting, ORDINARY)
        return failed(kernel, error.problem, error, setting)


def _setting_named(description: str) -> str:
    """Return the name, as ``--setting`` takes it, of the setting that a report describes."""
    for setting in settings().values():
        if setting.words == description:
            return setting.name
    return ""
