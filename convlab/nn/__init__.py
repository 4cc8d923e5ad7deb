"""Kernels inside a torch model: ``conv2d``, ``Conv2d``, ``replace``, ``problems``, ``choices``.

They are in `convlab.nn.layers`, which is imported when one of them is first used.
"""

from typing import Any

__all__ = ["Conv2d", "choices", "conv2d", "problems", "replace"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"convlab.nn has no {name!r}; it has {', '.join(__all__)}")
    from . import layers

    return getattr(layers, name)
