"""A figure with sliders in a live notebook; where there are no widgets, the figure alone."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from ..words.arguments import several
from ..words.errors import ProblemError


def sliders(draw: Callable[..., Any], **choices: Sequence[Any]) -> None:
    """Show what a function draws, and sliders that draw it again with other values.

    The figure is an output of the cell like any other: it is stored, printed and seen where no
    widget is. A slider replaces it.

    Parameters
    ----------
    draw
        Takes each of `choices` by its name and returns the figure: matplotlib's, a `Chart`, or
        whatever else a notebook can show.
    **choices
        The values of each slider, in order; the middle one comes first.

    Raises
    ------
    ProblemError
        A slider has no values, or there is none.
    """
    choices = {name: several(values, name) for name, values in choices.items()}
    if not callable(draw) or not choices or not all(choices.values()):
        raise ProblemError("give each slider its values: sliders(draw, TILE=(8, 16, 32))")
    from IPython.display import display

    now = {name: values[len(values) // 2] for name, values in choices.items()}
    handle = display(_drawn(draw, now), display_id=True)
    try:
        import ipywidgets as widgets
    except ImportError:
        return
    if handle is None:  # no notebook: plain Python
        return

    def moved(change: dict[str, Any]) -> None:
        now[change["owner"].description] = change["new"]
        handle.update(_drawn(draw, now))

    look = {"continuous_update": False}
    controls = [widgets.SelectionSlider(options=values, value=now[name], description=name, **look)
                for name, values in choices.items()]  # fmt: skip
    for control in controls:
        control.observe(moved, "value")
    display(widgets.HBox(controls))


def _drawn(draw: Callable[..., Any], values: dict[str, Any]) -> Any:
    figure = draw(**values)
    if isinstance(figure, Figure):  # else the notebook shows what pyplot knows once more
        from matplotlib import pyplot

        pyplot.close(figure)
    return figure
