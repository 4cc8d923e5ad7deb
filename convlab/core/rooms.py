"""Find what the rooms provide: the folders beside ``core/``, any of which may be deleted.

A room is a folder of this package with a file ``room.toml``, which says what it provides and where:

    what = "Measure a kernel for every combination of its tunables"
    [name]                                   # a public name: convlab.sweep
    sweep = "convlab.tuning.sweep:sweep"

The core imports no room. It asks here, by kind and name; the object is imported when it is first
asked for. A folder that was deleted provides nothing, and whoever asked goes on without it or says
what is missing. The kinds, and what the core expects of each, are in ``convlab/README.md``.
"""

import functools
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


@functools.cache
def rooms() -> dict[str, dict[str, Any]]:
    """Return what each room's ``room.toml`` says, by the name of its folder."""
    found = {}
    for path in sorted(PACKAGE.glob("*/room.toml")):
        found[path.parent.name] = tomllib.loads(path.read_text())
    return found


def names(kind: str) -> list[str]:
    """Return the names of all that rooms provide of a kind: ``names("engine")`` is ["sim"]."""
    return [name for room in rooms().values() for name in room.get(kind, {})]


def provided(kind: str, name: str) -> Any:
    """Return the object that a room provides under this kind and name; None if no room does.

    >>> provided("engine", "sim")
    """
    for room in rooms().values():
        if place := room.get(kind, {}).get(name):
            return _imported(place)
    return None


def every(kind: str) -> Iterator[Any]:
    """Yield all objects of a kind, by the order of their rooms' names."""
    for name in names(kind):
        yield provided(kind, name)


def _imported(place: str) -> Any:
    """Return what "package.module:attribute" names, or the module "package.module"."""
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
