"""Fix planted bugs by a program that reads only the check's JSON and the kernel's source.

    python -m tests.instruments.mend [--write tests/instruments/mend.md] [--others]

This shows that a report has enough information to act on; it is not a tool for users. `proposals` turns a report
into edits. Its rules use the kind of the fault, its line, the array, the index, and the smallest problem that
fails. If that problem still has a stride, padding, groups or a bias, the kernel handles that incorrectly. Each
edit is checked on the smallest problem, then on a set. If an edit fixes only a part, its report leads to the
next edit.

Prints which of 20 planted mistakes (planted.py) were fixed, and by which rule. The exit status is 1 if fewer than
15 were fixed.
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

# Edits that are tried for one mistake, at most.
TRIES = 12
# Mistakes that must be fixed.
ENOUGH = 15
# The kinds, each with a pattern of mutants' names. Each kind has the first four mutants of the table, and at
# most two of a rung. Mutants of a header, or with a limited workspace, are left out.
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
    """Return the 20 planted mistakes by kind, or others if those are `skipped`."""
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


def json_report(name: str, text: str, problem: Any) -> Report:
    """Return what ``check --json`` prints for a kernel, on one problem or a set."""
    try:
        kernel = convlab.compile(text, name=name, engine="sim")
        found = convlab.check(kernel, problem, progress=False).to_dict()
    except (BuildError, LaunchError) as error:
        found = unrun(name, error)
    return json.loads(json.dumps(found))


def everything() -> list[convlab.Problem]:
    """Return the awkward problems without that of 66,000 images, and some generated ones."""
    small = [problem for problem in convlab.problems("awkward") if problem.N < 1000]
    return [*small, *generate(24)]


@dataclass(frozen=True)
class Outcome:
    """Whether a mistake was fixed, by which rules, after how many tries."""

    mended: bool
    rules: tuple[str, ...]
    tries: int
    # The fault of the first report.
    fault: str
    # The kernel after the edits.
    text: str


def mend(name: str, text: str, check: Callable[[str, str, Any], Report] = json_report) -> Outcome:
    """Edit a kernel until it is correct, or `TRIES` edits were tried."""
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
    """Return whether an edit makes fewer problems fail."""
    wrong = [
        sum(not one["correct"] for one in report.get("reports", ())) for report in (before, after)
    ]
    return wrong[1] < wrong[0]


# ---- rules ------------------------------------------------------------------------------------


def proposals(report: Report, text: str) -> Iterator[tuple[str, str]]:
    """Yield edits for a report, the most likely first: the rule and the new source."""
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
        yield "h and w by the formula", _formula(text)
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
    """Return the text with a new line before a line, and before that line's #pragma."""
    indent = lines[at][: _indent(lines[at])]
    while lines[at - 1].lstrip().startswith("#pragma"):
        at -= 1
    return "".join([*lines[:at], f"{indent}{new}\n", *lines[at:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _around(lines: list[str], at: int) -> list[int]:
    """Return the lines that enclose a line, the innermost first, by indentation."""
    found = []
    depth = _indent(lines[at])
    for i in range(at - 1, -1, -1):
        if lines[i].strip() and _indent(lines[i]) < depth and lines[i].lstrip()[0] not in "#}":
            found.append(i)
            depth = _indent(lines[i])
    return found


def _barriers(lines: list[str], first: int, later: int) -> Iterator[tuple[str, str]]:
    """Yield edits with a barrier: between two lines, in their innermost common loop; or at its end."""
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
    """Yield edits that compute h and w from p and q by the formula of kernels/convlab.cuh."""

    def right(found: re.Match[str]) -> str:
        start, axis, corner, sides = found.groups()
        pixel, tap = {"h": "pr", "w": "qs"}[axis]
        plus = f" + {tap} * conv.dilation_{axis}" if re.search(r"\b[rs]\b", sides) else ""
        return f"{start}{pixel}{corner} * conv.stride_{axis} - conv.pad_{axis}{plus};"

    return re.sub(r"(\bint ([hw])(0?) = )([^;]*\b[pq]0?\b[^;]*);", right, text)


def _bias(lines: list[str], store: int | None) -> Iterator[tuple[str, str]]:
    """Yield edits that take the bias of channel k, or add the bias where y is stored."""
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
    """Yield edits that test before a store to y, or before a load of w."""
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
                "a load only inside the array",
                "".join([*lines[:at], line, *lines[at + 1 :]]),
            )


# ---- the table --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if fewer than `ENOUGH` were fixed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="write the table between this page's markers `mend`",
    )
    parser.add_argument(
        "--others", action="store_true", help="take the mistakes that come next by the same rule"
    )
    options = parser.parse_args(arguments)
    if options.write is not None:
        pages.between(options.write, "mend")
    rows = ["| kind | mistake | reported as | fixed by | tries |", "|---|---|---|---|---:|"]
    print("\n".join(rows))
    outcomes = []
    first = [mutant for mutants in chosen().values() for mutant in mutants]
    for kind, mutants in chosen(first if options.others else ()).items():
        for mutant in mutants:
            outcomes.append(outcome := mend(mutant.name, mutant.source))
            by = "; ".join(outcome.rules) if outcome.mended else "**not fixed**"
            what = f"`{mutant.name}`: {mutant.mistake}"
            rows.append(f"| {kind} | {what} | {outcome.fault} | {by} | {outcome.tries} |")
            print(rows[-1], flush=True)
    mended = sum(outcome.mended for outcome in outcomes)
    rows += ["", f"{mended} of {len(outcomes)} fixed."]
    print("\n".join(rows[-2:]))
    if options.write is not None:
        pages.write_between(options.write, "mend", "\n".join(rows))
    return mended < ENOUGH


if __name__ == "__main__":
    sys.exit(main())
