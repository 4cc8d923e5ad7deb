"""Use kernels in a torch model: ``conv2d``, ``Conv2d``, ``replace``, ``problems``, ``choices``.

These names are in `convlab.nn.layers`, which is imported at the first use of a name.
"""

from typing import Any

__all__ = ["Conv2d", "choices", "conv2d", "problems", "replace"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"convlab.nn has no {name!r}; it has {', '.join(__all__)}")
    from . import layers

    return getattr(layers, name)
