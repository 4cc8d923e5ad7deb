"""Ask the reader of a notebook for a guess, and show the count only after it: `convlab.guess`."""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pandas as pd

from ..core import arguments
from ..core.errors import ConvlabError, ProblemError
from ..core.show.plot import Chart
from ..core.show.result import BAD, GOOD, Result
from ..core.show.table import Table, number

# A guess that is off by at most this share of the count is near.
NEAR = 0.1
# The first guess of each question, in this process.
_first: dict[str, "Guess"] = {}


@dataclass(frozen=True)
class Guess:
    """One guess and the count; ``exact`` if only the same number is right."""

    question: str
    guess: float
    count: float
    exact: bool = False

    @property
    def off(self) -> float:
        """How far the guess is off, as a share of the count; infinite if the count is 0."""
        if self.count == 0:
            return 0.0 if self.guess == 0 else float("inf")
        return (self.guess - self.count) / self.count

    @property
    def is_near(self) -> bool:
        return self.off == 0 if self.exact else abs(self.off) <= NEAR

    @property
    def distance(self) -> str:
        """How far the guess is off, in words."""
        if self.off == 0:
            return "exact"
        if self.exact:
            return "another one"
        if self.count == 0:
            return f"{number(abs(self.guess))} too {'high' if self.guess > 0 else 'low'}"
        times = max(self.guess, self.count) / min(self.guess, self.count) if self.guess > 0 else 0
        if times >= 2:
            return f"{number(float(f'{times:.3g}'))} times too {'high' if self.off > 0 else 'low'}"
        return f"{abs(self.off):.1%} too {'high' if self.off > 0 else 'low'}"

    def __str__(self) -> str:
        return (
            f"{self.question}: your guess {number(self.guess)}, it is {number(self.count)}: "
            f"{self.distance}"
        )


class Asked:
    """A question that waits for a number, and then shows the count.

    The count is not in the notebook's file before a number was entered. `answer` takes the number.

    Attributes
    ----------
    question : the question.
    guess : the `Guess`, or None before a number was entered.
    """

    def __init__(self, question: str, count: float, exact: bool = False) -> None:
        self.question = question
        self._count = count
        self._exact = exact
        self.guess: Guess | None = None

    def answer(self, value: float) -> "Asked":
        """Take a guess; the first one of each question is kept for `guesses`."""
        value = arguments.real(value, "the guess", -float("inf"))
        self.guess = Guess(self.question, value, self._count, self._exact)
        _first.setdefault(self.question, self.guess)
        return self

    def __str__(self) -> str:
        if self.guess is not None:
            return str(self.guess)
        return f"{self.question}? Write your guess into the cell, stored=NUMBER, and run it again"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        near = self.guess is not None and self.guess.is_near
        color = GOOD if near or self.guess is None else BAD
        style = f"border-left:4px solid {color};padding-left:8px"
        return f'<div style="{style}">{html.escape(str(self))}</div>'

    def _ipython_display_(self) -> None:
        """Show a field for the number where widgets work; else the text."""
        from IPython.display import display

        if self.guess is not None or (field := _field(self)) is None:
            display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        elif hasattr(field, "_repr_mimebundle_"):
            # Where no widget is shown, as on GitHub, the text is.
            display({**field._repr_mimebundle_(), "text/plain": str(self)}, raw=True)
        else:
            display(field)


def guess(
    question: str,
    count: float | Callable[[], float],
    *,
    stored: float | None = None,
    exact: bool = False,
) -> Asked:
    """Ask for a guess, and show the count only after a number was entered.

    In a notebook this shows a field for the number, if ipywidgets is installed. Without it, and in
    a notebook that runs without a reader (nbconvert, nbclient), write the guess as `stored`.

    Parameters
    ----------
    question : what is counted: "sectors of a warp's load".
    count : the count; or a function that returns it.
    stored : a guess that is already known. None: ask for it.
    exact : True for a number that says which one, such as a lane or a parity: no other number is near.

    Raises
    ------
    ProblemError
        An argument is invalid.

    Examples
    --------
    >>> convlab.guess("sectors of a warp's load", 4, stored=5)
    sectors of a warp's load: your guess 5, it is 4: 25.0% too high
    """
    question = arguments.text(question, "question")
    value = _counted(count) if callable(count) else count
    exact = arguments.flag(exact, "exact")
    asked = Asked(question, arguments.real(value, "count", -float("inf")), exact)
    return asked if stored is None else asked.answer(stored)


def _counted(count: Callable[[], float]) -> float:
    """Return what the reader's function counts; raise ProblemError if it does not take no arguments."""
    try:
        signature(count).bind()
    except TypeError as error:
        raise ProblemError(
            f"count must be a number or a function without arguments, but it needs some ({error}): "
            "write count=lambda: ..."
        ) from None
    except ValueError:
        # A function written in C may have no signature.
        pass
    return count()


@dataclass(frozen=True, repr=False)
class GuessSummary(Result):
    """All guesses of a notebook: the first of each question.

    Attributes
    ----------
    guesses : the guesses, in order.
    frame : one row for each: question, guess, count, off.
    """

    guesses: tuple[Guess, ...]

    @property
    def ok(self) -> bool:
        return all(each.is_near for each in self.guesses)

    @property
    def sentence(self) -> str:
        near = sum(each.is_near for each in self.guesses)
        if not self.guesses:
            return "no guess yet: run the cells with convlab.guess"
        return f"{near} of {len(self.guesses)} guesses within {NEAR:.0%} of the count"

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    @property
    def frame(self) -> pd.DataFrame:
        rows = [
            {
                "question": each.question,
                "guess": each.guess,
                "count": each.count,
                "off": each.distance,
            }
            for each in self.guesses
        ]
        return pd.DataFrame(rows, columns=["question", "guess", "count", "off"])

    @property
    def tables(self) -> tuple[Table, ...]:
        return (Table(self.frame, left=("question", "off")),)

    def figure(self) -> Chart:
        raise ConvlabError("a summary of guesses has no figure")


def guesses() -> GuessSummary:
    """Return the first guess of each question so far, for the end of a notebook.

    Examples
    --------
    >>> convlab.guesses()
    0 of 1 guesses within 10% of the count
    """
    return GuessSummary(tuple(_first.values()))


def _entered(text: str) -> float:
    """Return the number that a reader entered; raise ValueError if there is none, or two readings of it.

    A comma separates thousands: 1,024. In other languages 1,5 is one and a half, so it is no number here.
    """
    if "," in text and not re.fullmatch(r"\s*[+-]?\d{1,3}(,\d{3})+(\.\d*)?\s*", text):
        raise ValueError(text)
    return float(text.replace(",", ""))


def _field(asked: Asked) -> Any:
    """Return a field for the number with a button, or None where no widget works."""
    try:
        import ipywidgets
        from IPython import get_ipython
    except ImportError:
        return None
    shell = get_ipython()
    # Only a kernel has a front end that shows widgets.
    if shell is None or not hasattr(shell, "kernel"):
        return None
    number_field = ipywidgets.Text(placeholder="a number")
    button = ipywidgets.Button(description="Show the count")
    shown = ipywidgets.HTML()

    def show(_: object) -> None:
        try:
            asked.answer(_entered(number_field.value))
        except ValueError:
            shown.value = "Enter a number, such as 12, 1.5 or 1,024"
            return
        number_field.disabled = True
        button.disabled = True
        shown.value = asked._repr_html_()

    button.on_click(show)
    question = ipywidgets.Label(f"{asked.question}?")
    return ipywidgets.VBox([question, ipywidgets.HBox([number_field, button]), shown])
