"""What a command finds: results, each as soon as it is known; `grammar` says what was asked."""

from __future__ import annotations

import difflib
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fast import bench
from ..fast.ab import ab
from ..fast.compare import compare
from ..fast.paired import MODES
from ..fast.sweep import sweep
from ..machine import cache, toolchain
from ..right.check import check
from ..run.kernel import Kernel, load, resolve, tunables
from ..run.runnable import Runnable
from ..show.result import WIDTH
from ..why import inspect
from ..words import catalog
from ..words.errors import BuildError, CatalogError, LaunchError, UnsupportedError
from ..words.problem import PROBLEM_SETS, problems
from . import doctor

PLURAL = {"check": "reports", "inspect": "inspections"}  # of each kernel that was asked for


@dataclass(frozen=True, repr=False)
class Told:
    """An answer that is text: what `list`, `doctor`, `diff` and the benchmarks find.

    Attributes
    ----------
    text : what a reader sees.
    document : the same as what JSON can hold.
    ok : whether all of it is well.
    language : of the text, where a notebook can highlight it.
    """

    text: str
    document: dict[str, Any]
    ok: bool = True
    language: str = ""

    def __repr__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def _repr_markdown_(self) -> str | None:
        return f"```{self.language}\n{self.text}\n```" if self.language else None


@dataclass(frozen=True, repr=False)
class Failed(Told):
    """One kernel of several that does not build or run; the others are still asked."""

    error: Exception | None = None


def answers(arguments: Namespace) -> Iterator[Any]:
    """What a command finds, each result as soon as it is known: one, or one for each kernel.

    A result has ``ok``, a text and ``to_dict``. Where several kernels are asked for one after the
    other, one that does not build or run is a `Failed`.
    """
    if arguments.command not in PLURAL:
        yield _ONE[arguments.command](arguments)
        return
    one = _checked if arguments.command == "check" else _inspected
    chosen = arguments.kernels or [path.stem for path in catalog.catalog()]
    for kernel in [resolve(kernel, arguments.engine) for kernel in chosen]:
        try:
            yield one(kernel, arguments)
        except (BuildError, LaunchError, UnsupportedError) as error:
            found = {"kernel": kernel.name, "right": False, "failures": [str(error)]}
            yield Failed(f"convlab: {error}", found, False, error=error)


def drawn(found: Sequence[Any], path: Path | None) -> Iterator[Path]:
    """Draw results to files, if a path is given, and tell where each one went."""
    results = [result for result in found if not isinstance(result, Told)]
    for result in results if path is not None else ():
        one = len(results) == 1
        where = path if one else path.with_stem(f"{path.stem}-{result.kernel}")
        yield result.plot().save(where).resolve()


def _checked(kernel: Runnable, arguments: Namespace) -> Any:
    return check(kernel, arguments.problem, count=arguments.count, seed=arguments.seed)


def _inspected(kernel: Kernel, arguments: Namespace) -> Any:
    if arguments.sample is not None:
        kernel = kernel.on("sim", sample=arguments.sample)
    return inspect(kernel, arguments.problem, gpu=arguments.gpu, engine=arguments.engine)


def _compared(arguments: Namespace) -> Any:
    return compare(arguments.kernels or None, arguments.problem, engine=arguments.engine)


def _judged(arguments: Namespace) -> Any:
    return ab(
        arguments.a, arguments.b, arguments.problem, engine=arguments.engine,
        mode=MODES if arguments.mode == "both" else arguments.mode, seed=arguments.seed,
        threshold=arguments.threshold / 100, limit_seconds=arguments.limit,
    )  # fmt: skip


def _swept(arguments: Namespace) -> Any:
    return sweep(
        arguments.kernel, arguments.tunables, arguments.problem, engine=arguments.engine
    )


def _listed(arguments: Namespace) -> Told:
    """The kernels by the folder that they are from, and the problems."""
    rows, lines = [], []
    for path in sorted(catalog.catalog(), key=lambda path: (path.parent, path.stem)):
        if not rows or rows[-1]["folder"] != str(path.parent):
            lines.append(f"kernels of {path.parent}:")
        kernel = load(path, engine="sim")
        header, settings = kernel.header, tunables(kernel.source)
        rows.append(
            {
                "kernel": path.stem, "folder": str(path.parent), "path": str(path),
                "title": header.title, "idea": header.idea, "class": header.precision,
                "supports": list(header.supports), "tunables": settings,
            }
        )  # fmt: skip
        lines.append(f"  {path.stem:<26} {header.precision:<5} {header.title}")
        lines += [f"{'':<34} {' '.join(map('='.join, settings.items()))}"] if settings else []
    sets = {name: [p.name for p in problems(name)] for name in PROBLEM_SETS}
    lines += ["", "problems:"]
    for name, members in sets.items():
        lines += textwrap.wrap(f"{name}: {', '.join(members)}", WIDTH, initial_indent="  ",
                               subsequent_indent="    ", break_on_hyphens=False)  # fmt: skip
    return Told("\n".join(lines), {"kernels": rows, "problems": sets})


def _differing(arguments: Namespace) -> Told:
    """The lines that a kernel changes, and the share of its own that they are."""
    kernel, other = arguments.kernel, arguments.other
    kernel = kernel if isinstance(kernel, Kernel) else load(kernel, engine="sim")
    if other is None and kernel.header.parent is None:
        raise CatalogError(
            f"{kernel.name} names no parent in its header: a line of descent begins with it; "
            "name the other kernel"
        )
    other = kernel.header.parent if other is None else other
    other = other if isinstance(other, Kernel) else load(other, engine="sim")
    new = kernel.source.splitlines()
    changes = list(
        difflib.unified_diff(other.source.splitlines(), new, other.name, kernel.name, lineterm="")
    )
    own = sum(line[0] == "+" and line[:3] != "+++" for line in changes)
    said = f"{own} of {len(new)} lines of {kernel.name} are not {other.name}'s"
    document = {"kernel": kernel.name, "parent": other.name, "lines": len(new), "own": own}
    return Told("\n".join([*changes, "", said]), document, language="diff")


def _cached(arguments: Namespace) -> Told:
    folder, entries = toolchain.cache_dir(), cache.contents()
    size = sum(entry.bytes for entry in entries)
    document = {"folder": str(folder), "builds": len(entries), "bytes": size}
    text = f"{folder}: {len(entries)} builds, {size / 1e6:.1f} MB"
    if arguments.action == "clear":
        document["removed"] = cache.clear()
        text = f"{text}, removed"
    return Told(text, document)


def _benched(arguments: Namespace) -> Told:
    asked, path = arguments.problem, arguments.write
    for marker in ("bench", "ladder") if path is not None else ():
        bench.between(path, marker)  # looked for before the work, not after it
    chosen = asked if asked in PROBLEM_SETS else [asked]
    results = compare(arguments.kernels or None, chosen, engine=arguments.engine)
    table = bench.markdown(results)
    if path is not None:
        bench.write_between(path, "bench", table)
        bench.write_between(path, "ladder", bench.ladder())
    document = {"ok": results.ok, "results": [result.to_dict() for result in results]}
    return Told("\n\n".join([*map(str, results), table]), document, results.ok)


def _examined(arguments: Namespace) -> Told:
    rows = doctor.examine()
    lines = []
    for row in rows:
        bad = "MISSING" if row["found"] == "none" else "WRONG"
        mark = {True: "ok", False: bad, None: "-"}[row["ok"]]
        lines.append(f"{row['what']:<13} {mark:<8} {row['found']}")
        lines += [f"{'':<22} {line}" for line in row["advice"].splitlines()]
    ok = all(row["ok"] is not False for row in rows)
    return Told("\n".join(lines), {"ok": ok, "rows": rows}, ok)


_ONE = {
    "list": _listed,
    "compare": _compared,
    "ab": _judged,
    "sweep": _swept,
    "diff": _differing,
    "cache": _cached,
    "bench": _benched,
    "doctor": _examined,
}
