"""Planted bugs mended by a program that reads nothing but the check's JSON and the kernel's source.

A demonstration that the reports are enough to act on, not a product. `proposals` turns a report
into edits, by rules over the fault's kind, its line, the array and the index, and the smallest
problem that fails: what that problem still needs (a stride, padding, groups, a bias) is what the
kernel gets wrong. Each edit is checked on that problem, then on a set, until one is right; a report
of the edited kernel may lead on.

    python -m tests.instruments.mend [--write PAGE] [--others]

prints which of 20 planted mistakes (planted.py) were mended, by which rule; it exits with 1 if
fewer than 15 were.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import convlab
from convlab.core.correctness.report import unrun
from convlab.core.errors import BuildError, LaunchError
from convlab.strict.generated_problems import generate
from tests.instruments import pages
from tests.instruments.planted import MUTANTS, Mutant

TRIES = 12  # edits tried for one mistake
ENOUGH = 15
# The kinds, each a pattern of mutants' names. Of each kind the first four of the table, at most two
# of a rung; not those in a header, or that need a workspace of their own.
KINDS = {
    "a barrier is missing": "no_barrier",
    "an argument is ignored": "(stride|padding|dilation|groups)_ignored",
    "the other axis's argument": "(stride|padding|dilation)_of_(width|height)",
    "a bound is missing or off by one": "unchecked|off_by_one",
    "the bias": "bias",
}
_EACH = 4
_OF_A_RUNG = 2
Report = dict[str, Any]


def chosen(skipped: Iterable[Mutant] = ()) -> dict[str, tuple[Mutant, ...]]:
    """The 20 planted mistakes, by kind; or others, where some are skipped."""
    found = {}
    for kind, pattern in KINDS.items():
        taken: list[Mutant] = []
        for mutant in (mutant for mutant in MUTANTS if mutant not in skipped):
            fits = re.search(pattern, mutant.name) and not (mutant.inline or mutant.workspace_limit)
            rung = sum(other.rung == mutant.rung for other in taken)
            if fits and mutant.sim and rung < _OF_A_RUNG and len(taken) < _EACH:
                taken.append(mutant)
        found[kind] = tuple(taken)
    return found


# ---- reports ----------------------------------------------------------------------------------


def told(name: str, text: str, problem: Any) -> Report:
    """What ``check --json`` says of a kernel, on one problem or a set."""
    try:
        kernel = convlab.compile(text, name=name, engine="sim")
        found = convlab.check(kernel, problem, progress=False).to_dict()
    except (BuildError, LaunchError) as error:
        found = unrun(name, error)
    return json.loads(json.dumps(found))


def everything() -> list[convlab.Problem]:
    """The awkward problems, but for the one of 66,000 images, and some generated ones."""
    small = [problem for problem in convlab.problems("awkward") if problem.N < 1000]
    return [*small, *generate(24)]


@dataclass(frozen=True)
class Outcome:
    """Whether a mistake was mended, by which rules, after how many tries."""

    mended: bool
    rules: tuple[str, ...]
    tries: int
    fault: str  # what the first report said
    text: str  # the kernel, as it is now


def mend(name: str, text: str, check: Callable[[str, str, Any], Report] = told) -> Outcome:
    """Edit a kernel until it is right, or `TRIES` edits were tried."""
    report = check(name, text, everything())
    fault = str(report["fault"])
    tries = 0
    rules = ()
    while not report["ok"]:
        for rule, edited in proposals(report, text):
            if tries == TRIES:
                return Outcome(False, rules, tries, fault, text)
            tries += 1
            if not check(name, edited, report["dimensions"])["ok"]:
                continue
            after = check(name, edited, everything())
            if after["ok"] or _further(report, after):
                report = after
                text = edited
                rules = (*rules, rule)
                break
        else:
            return Outcome(False, rules, tries, fault, text)
    return Outcome(True, rules, tries, fault, text)


def _further(before: Report, after: Report) -> bool:
    """Whether an edit that does not mend all mends something: fewer problems are wrong."""
    wrong = [
        sum(not one["correct"] for one in report.get("reports", ())) for report in (before, after)
    ]
    return wrong[1] < wrong[0]


# ---- rules ------------------------------------------------------------------------------------


def proposals(report: Report, text: str) -> Iterator[tuple[str, str]]:
    """Edits of a source that a report suggests, the likeliest first: the rule, the new text."""
    finding = next(found for found in report["findings"] if found["error"])
    seen = {text}
    for rule, edited in _suggested(finding, report["dimensions"], text):
        if edited not in seen:
            seen.add(edited)
            yield rule, edited


def _suggested(finding: Report, dimensions: str | None, text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    line = finding["line"] and finding["line"] - 1
    problem = dimensions and convlab.problem(dimensions)
    if finding["kind"] == "race" and line is not None and finding["other_line"]:
        yield from _barriers(lines, *sorted((line, finding["other_line"] - 1)))
    if finding["array"] == "x" and "bounds" in finding["kind"]:
        yield "test all four borders", _borders(text)
    if problem and (problem.stride, problem.padding, problem.dilation) != ((1, 1), (0, 0), (1, 1)):
        yield "h and w as the formula has them", _formula(text)
    if problem and problem.groups > 1:
        yield (
            "a group's share of channels",
            re.sub(r"= conv\.([CK]);", r"= conv.\1 / conv.groups;", text),
        )
    if problem and problem.bias and finding["kind"] in ("wrong result", "global out of bounds"):
        yield from _bias(lines, line)
    if line is not None and finding["array"] in ("y", "w"):
        yield from _guard(lines, line, finding["array"], text)
    if finding["array"] == "x":
        yield "test all four borders", _borders(text)


def _before(lines: list[str], at: int, new: str) -> str:
    """The text with a line before another, and before the #pragma that belongs to that."""
    indent = lines[at][: _indent(lines[at])]
    while lines[at - 1].lstrip().startswith("#pragma"):
        at -= 1
    return "".join([*lines[:at], f"{indent}{new}\n", *lines[at:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _around(lines: list[str], at: int) -> list[int]:
    """The lines that one stands within, the innermost first, by indentation."""
    found = []
    depth = _indent(lines[at])
    for i in range(at - 1, -1, -1):
        if lines[i].strip() and _indent(lines[i]) < depth and lines[i].lstrip()[0] not in "#}":
            found.append(i)
            depth = _indent(lines[i])
    return found


def _barriers(lines: list[str], first: int, later: int) -> Iterator[tuple[str, str]]:
    """Between the two, in the innermost loop that both are in; or at that loop's end."""
    path = [later, *_around(lines, later)]
    both = [i for i in path if i in _around(lines, first)]
    if not both or first == later:
        return
    inner = path[path.index(both[0]) - 1]
    yield "a barrier between the two lines", _before(lines, inner, "__syncthreads();")
    ends = (i for i in range(later, len(lines)) if _indent(lines[i]) == _indent(lines[both[0]]))
    end = next((i for i in ends if lines[i].lstrip().startswith("}")), None)
    if end is not None:
        closed = [
            *lines[:end],
            f"{lines[end][: _indent(lines[end])]}    __syncthreads();\n",
            *lines[end:],
        ]
        yield "a barrier at the end of their loop", "".join(closed)


def _borders(text: str) -> str:
    for name, size in ("hH", "wW"):
        test = rf"if \((?=[^()]*\b{name}\b)(?:{name}|conv\.{size}|[<>=|&0 ])+\) continue;"
        text = re.sub(test, f"if ({name} < 0 || {name} >= conv.{size}) continue;", text)
    test = r"inside = (?:[hw]|conv\.[HW]|[<>=|&0 ])+;"
    return re.sub(test, "inside = h >= 0 && h < conv.H && w >= 0 && w < conv.W;", text)


def _formula(text: str) -> str:
    """Each h and w computed of p and q as kernels/convlab.cuh has it, with the tap if it has one."""

    def right(found: re.Match[str]) -> str:
        start, axis, corner, sides = found.groups()
        pixel, tap = {"h": "pr", "w": "qs"}[axis]
        plus = f" + {tap} * conv.dilation_{axis}" if re.search(r"\b[rs]\b", sides) else ""
        return f"{start}{pixel}{corner} * conv.stride_{axis} - conv.pad_{axis}{plus};"

    return re.sub(r"(\bint ([hw])(0?) = )([^;]*\b[pq]0?\b[^;]*);", right, text)


def _bias(lines: list[str], store: int | None) -> Iterator[tuple[str, str]]:
    """It is that of channel k; and it is added where y is stored."""
    text = "".join(lines)
    named = re.search(r"const float\s*\*[\w\s]*?(\w*bias)\b", text)
    if named is None:
        return
    bias = named[1]
    yield "the bias of channel k", re.sub(rf"(\d \* )?\b{bias}\[[^\]]*\]", f"{bias}[k]", text)
    if store is not None:
        end = next(i for i in range(store, len(lines)) if ";" in lines[i])
        head, _, tail = lines[end].partition(";")
        added = f"{head} + ({bias} ? {bias}[k] : 0.0f);{tail}"
        yield "the bias added where y is stored", "".join([*lines[:end], added, *lines[end + 1 :]])


def _guard(lines: list[str], at: int, array: str, text: str) -> Iterator[tuple[str, str]]:
    """A test before a store to y; a load of w only where it is in w."""
    if array == "y":
        leave = "continue" if any("for (" in lines[i] for i in _around(lines, at)) else "return"
        most = "(group + 1) * (conv.K / conv.groups)" if " group = " in text else "conv.K"
        for test in (f"k >= {most}", "p >= conv.P || q >= conv.Q"):
            yield "a test before the store", _before(lines, at, f"if ({test}) {leave};")
        return
    base = re.search(r"const float\s*\*[\w\s]*?(\w*w)\b", text)
    pointers = set(re.findall(r"const float\* (\w+) =", text))
    for load in re.finditer(r"(\w+)\[(?:[^\[\]]|\[[^\[\]]*\])*\]", lines[at]):
        if base and load[1] in pointers:
            end = f"{base[1]} + int64_t(conv.K) * (conv.C / conv.groups) * conv.R * conv.S"
            within = f"(&{load[0]} < {end} ? {load[0]} : 0.0f)"
            line = lines[at][: load.start()] + within + lines[at][load.end() :]
            yield (
                "a load only where there is something",
                "".join([*lines[:at], line, *lines[at + 1 :]]),
            )


# ---- the table --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if fewer than `ENOUGH` were mended."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", type=Path, metavar="PAGE", help="between its markers `mend`")
    parser.add_argument("--others", action="store_true", help="by the same rule those that follow")
    options = parser.parse_args(arguments)
    if options.write is not None:
        pages.between(options.write, "mend")
    rows = ["| kind | mistake | reported as | mended by | tries |", "|---|---|---|---|---:|"]
    print("\n".join(rows))
    outcomes = []
    first = [mutant for mutants in chosen().values() for mutant in mutants]
    for kind, mutants in chosen(first if options.others else ()).items():
        for mutant in mutants:
            outcomes.append(outcome := mend(mutant.name, mutant.source))
            by = "; ".join(outcome.rules) if outcome.mended else "**not mended**"
            what = f"`{mutant.name}`: {mutant.mistake}"
            rows.append(f"| {kind} | {what} | {outcome.fault} | {by} | {outcome.tries} |")
            print(rows[-1], flush=True)
    mended = sum(outcome.mended for outcome in outcomes)
    rows += ["", f"{mended} of {len(outcomes)} mended."]
    print("\n".join(rows[-2:]))
    if options.write is not None:
        pages.write_between(options.write, "mend", "\n".join(rows))
    return mended < ENOUGH


if __name__ == "__main__":
    sys.exit(main())
