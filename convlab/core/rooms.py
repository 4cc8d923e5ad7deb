"""Find what the rooms provide: the folders next to ``core/``, each of which may be deleted.

A room is a folder of this package with a file ``room.toml``, which lists what it provides:

    what = "Measure a kernel for every combination of its tunables"
    [name]                                   # a public name: convlab.sweep
    sweep = "convlab.tuning.sweep:sweep"

The core imports no room. It gets a room's objects from here, by kind and name. An object is
imported at its first use. A deleted folder provides nothing: the caller then continues without it,
or raises an error that names the missing room. ``convlab/README.md`` lists the kinds, and what the
core expects of each.
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
    """Return the contents of each room's ``room.toml``, by the name of the folder."""
    tables = {}
    for path in sorted(PACKAGE.glob("*/room.toml")):
        tables[path.parent.name] = tomllib.loads(path.read_text())
    return tables


def names(kind: str) -> list[str]:
    """Return the names that rooms provide for a kind: ``names("engine")`` is ["sim"]."""
    return [name for room in rooms().values() for name in room.get(kind, {})]


def provided(kind: str, name: str) -> Any:
    """Return the object that a room provides for a kind and a name, or None.

    >>> provided("engine", "sim").name
    'sim'
    """
    for room in rooms().values():
        if place := room.get(kind, {}).get(name):
            return _imported(place)
    return None


def every(kind: str) -> Iterator[Any]:
    """Yield all objects of a kind, sorted by the names of their rooms."""
    for name in names(kind):
        yield provided(kind, name)


def _imported(place: str) -> Any:
    """Return the object "package.module:attribute", or the module "package.module"."""
    module_name, _, attribute = place.partition(":")
    module = importlib.import_module(module_name)
    return getattr(module, attribute) if attribute else module
