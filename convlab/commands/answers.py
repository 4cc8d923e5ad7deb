"""What a command finds: results, each as soon as it is known; `grammar` says what was asked."""

import difflib
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.build import cache
from ..core.correctness.check import check
from ..core.correctness.examine import failed
from ..core.correctness.report import Report, Reports, unrun
from ..core.defaults import MODES
from ..core.errors import BuildError, CatalogError, LaunchError, UnsupportedError
from ..core.kernel import catalog
from ..core.kernel.kernel import Kernel, load, resolve, tunables
from ..core.kernel.runnable import Runnable
from ..core.machine import toolchain
from ..core.problem.problem import PROBLEM_SETS, problems
from ..core.show.result import plain, wrapped
from ..core.timing.ab import ab
from ..core.timing.compare import compare
from ..profile.inspect_kernel import inspect
from ..receipts.receipts import history
from ..strict.settings import ALL, ORDINARY
from ..tuning.sweep import sweep
from . import doctor

PLURAL = {"check": "reports", "inspect": "inspections"}  # of each kernel that was asked for


@dataclass(frozen=True, repr=False)
class Told:
    """An answer that is text, and the same as what JSON can hold."""

    text: str
    document: dict[str, Any]
    ok: bool = True
    failure: Exception | None = None  # of one kernel of several, which does not build or run
    declined = property(lambda self: isinstance(self.failure, UnsupportedError))

    def __repr__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return self.document


def answers(asked: Namespace) -> Iterator[Any]:
    """What a command finds, each result as soon as it is known: one, or one for each kernel.

    A result has ``ok``, a text and ``to_dict``. Where several kernels are asked for one after the
    other, one that does not build or run is `Told` with a failure.
    """
    if asked.command not in PLURAL:
        yield _answer(asked)
        return
    for word in asked.kernels or [path.stem for path in catalog.catalog()]:
        name = word
        try:
            kernel = resolve(word, asked.engine)
            name = kernel.name
            if asked.command == "check":
                yield _checked(word if isinstance(word, str) else name, kernel, asked)
            else:
                yield inspect(kernel, asked.problem, gpu=asked.gpu, engine=asked.engine)
        except (BuildError, LaunchError, UnsupportedError) as error:
            yield Told(f"convlab: {error}", unrun(name, error), False, failure=error)


def _checked(word: str, kernel: Runnable, asked: Namespace) -> Report | Reports:
    """The report of a kernel, a fault too, with the command that meets what is wrong again."""
    options = {"count": asked.count, "seed": asked.seed, "setting": asked.setting}
    try:
        found = check(kernel, asked.problem, **options)
    except LaunchError as error:
        if error.problem is None or error.kind == "too little workspace":
            raise
        setting = next((each for each in ALL if each.name == asked.setting), ORDINARY)
        found = failed(kernel, error.problem, error, setting)
    least = found.smallest if isinstance(found, Reports) else found
    if found.ok or least is None:
        return found
    setting = {each.words: each.name for each in ALL}.get(least.setting) or asked.setting
    engine = asked.engine if kernel.library else kernel.engine
    words = ["check", word, "--problem", str(least.problem), "--engine", engine]
    words += ["--setting", setting] if setting else []
    words += ["--seed", str(asked.seed)] if asked.seed else []
    again = f"reproduce: {asked.prog} {shlex.join(words)}"
    return replace(found, notes=(again, *found.notes))


def kept(found: Sequence[Any], asked: Namespace) -> Iterator[tuple[str, Path]]:
    """Draw and save results where that was asked for; tell what went where."""
    plot, save = (getattr(asked, name, None) for name in ("plot", "save"))
    results = [result for result in found if not isinstance(result, Told)]
    for result in results if plot is not None else ():
        where = plot if len(results) == 1 else plot.with_stem(f"{plot.stem}-{result.kernel}")
        yield "plot", result.plot().save(where).resolve()
    for result in results if save is not None else ():
        yield "receipt", result.save(save or None).resolve()


def _answer(asked: Namespace) -> Any:
    match asked.command:
        case "compare":
            return compare(asked.kernels or None, asked.problem, engine=asked.engine)
        case "sweep":
            return sweep(*asked.kernels, asked.tunables, asked.problem, engine=asked.engine)
        case "ab":
            return ab(
                *asked.kernels,
                asked.problem,
                engine=asked.engine,
                seed=asked.seed,
                mode=MODES if asked.mode == "both" else asked.mode,
                threshold=asked.threshold / 100,
                limit_seconds=asked.limit,
                careful=asked.careful,
            )
        case "history":
            return history(asked.paths)
        case "list":
            return _listed()
        case "diff":
            return _differing(*asked.kernels)
        case "cache":
            return _cached(asked.action == "clear")
    return _examined()


def _listed() -> Told:
    """The kernels by the folder that they are from, and the problems."""
    rows = []
    lines = []
    for path in sorted(catalog.catalog(), key=lambda path: (path.parent, path.stem)):
        if path.parent not in [row["folder"] for row in rows]:
            lines.append(f"kernels of {path.parent}:")
        rows.append({"kernel": path.stem, "folder": path.parent, "path": path})
        try:
            kernel = load(path, engine="sim")
            header = kernel.header
            settings = tunables(kernel.file.whole)
        except CatalogError as error:  # one that cannot be read hides no other
            rows[-1]["error"] = str(error)
            lines.append(f"  {path.stem:<26} {error}")
            continue
        rows[-1] |= {
            "title": header.title,
            "idea": header.idea,
            "class": header.precision,
            "supports": header.supports,
            "tunables": settings,
        }
        lines.append(f"  {path.stem:<26} {header.precision:<5} {header.title}")
        lines += [f"{'':<34} {' '.join(map('='.join, settings.items()))}"] if settings else []
    sets = {name: [p.name for p in problems(name)] for name in PROBLEM_SETS}
    lines += ["", "problems:"]
    for name, members in sets.items():
        lines += wrapped(f"{name}: {', '.join(members)}", rest="    ")
    return Told("\n".join(lines), plain({"kernels": rows, "problems": sets}))


def _differing(kernel: Kernel | str, other: Kernel | str | None = None) -> Told:
    """The lines that a kernel changes, and the share of its own that they are."""
    kernel = kernel if isinstance(kernel, Kernel) else load(kernel, engine="sim")
    other = kernel.header.parent if other is None else other
    if other is None:
        raise CatalogError(
            f"{kernel.name} names no parent in its header: a line of descent begins with it; "
            "name the other kernel"
        )
    other = other if isinstance(other, Kernel) else load(other, engine="sim")
    old = other.file.whole.splitlines()
    new = kernel.file.whole.splitlines()
    changes = list(difflib.unified_diff(old, new, other.name, kernel.name, lineterm=""))
    own = sum(line[0] == "+" and line[:3] != "+++" for line in changes)
    said = f"{own} of {len(new)} lines of {kernel.name} are not {other.name}'s"
    document = {"kernel": kernel.name, "parent": other.name, "lines": len(new), "own": own}
    return Told("\n".join([*changes, "", said]), document)


def _cached(clear: bool) -> Told:
    folder = toolchain.cache_dir()
    entries = cache.contents()
    size = sum(entry.bytes for entry in entries)
    document = {"folder": str(folder), "builds": len(entries), "bytes": size}
    document |= {"removed": cache.clear()} if clear else {}
    removed = ", removed" if clear else ""
    text = f"{folder}, builds: {len(entries)}, {size / 1e6:.1f} MB{removed}"
    return Told(text, document)


def _examined() -> Told:
    rows = doctor.examine()
    lines = []
    for row in rows:
        bad = "MISSING" if row["found"] == "none" else "WRONG"
        mark = {True: "ok", False: bad, None: "-"}[row["ok"]]
        lines.append(f"{row['what']:<13} {mark:<8} {row['found']}")
        lines += [f"{'':<22} {line}" for line in row["advice"].splitlines()]
    ok = all(row["ok"] is not False for row in rows)
    return Told("\n".join(lines), {"ok": ok, "rows": rows}, ok)
