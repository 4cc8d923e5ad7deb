"""Compute the key of a build: a hash of the text, the headers, the flags and the compiler."""

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ..kernel.catalog import KERNEL_DIR, uncommented
from .cache import Key
from .compile import LINK_FLAGS
from .source import Source

# Environment variables with folders that compilers search for headers before their own.
_FOLDER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH")
# Environment variables with flags for nvcc, among them perhaps -I.
_FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
# All environment variables that change what a compiler, torch's builder or the linker does.
_VARIABLES = (
    *_FOLDER_VARIABLES,
    *_FLAG_VARIABLES,
    "LIBRARY_PATH",
    "LD_RUN_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "SOURCE_DATE_EPOCH",
    "CC",
    "CXX",
    "NVCC_CCBIN",
    "PYTORCH_NVCC",
)
_INCLUDE_FLAG = re.compile(r"(?:-I|-isystem|--include-path|--system-include)[\s=]*(\S+)")
# Headers in these folders belong to the compiler. Its identity is part of the key.
_SYSTEM = ("/usr/include", "/usr/lib", "/usr/local/cuda")
# What may name a header: an #include, a macro that an #include may use, a test whether it exists,
# and the assembler's .incbin.
_HEADER_NAME = re.compile(
    r"(?:^[ \t]*#[ \t]*(?:include|include_next|import|embed|define[ \t]+\w+)[ \t]*"
    r"|\b__has_(?:include|include_next|embed)[ \t]*\([ \t]*|\.incbin[ \t]+\\?)"
    r'[<"]([^>"\\\n]+)\\?[>"]',
    re.MULTILINE,
)


def key_of(source: Source, kind: str, parts: Iterable[str], include: Sequence[Path] = ()) -> Key:
    """Return the key of a build, for the present text of its headers.

    Parameters
    ----------
    source
        The source to build.
    kind
        A readable part of the name in the cache: "sim", "sm_90a".
    parts
        Everything else that determines the build: flags, the identity of the compiler.
    include
        Folders in which the compiler looks for headers, besides the source's and ``kernels/``.
    """
    texts, folders = _possible_headers(source, include)
    headers = [part for path in sorted(texts) for part in (str(path), texts[path])]
    name = name_of(source, kind, [*parts, *headers])
    return Key(name, (*texts, *folders))


def name_of(source: Source, kind: str, parts: Iterable[str], home: str = str(KERNEL_DIR)) -> str:
    """Return the name of a build; `parts` contains the text of its headers, if any.

    `home` is part of the name, because another checkout has other headers. It is empty if the parts
    identify the checkout.
    """
    digest = hashlib.sha256()
    own = (source.text, source.label)
    for part in (*own, *parts, home, *environment(), *LINK_FLAGS, torch.__version__):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    return f"{source.name[:80]}-{kind}-{digest.hexdigest()[:16]}"


def environment() -> tuple[str, ...]:
    """Return the environment variables that change a build, with their values."""
    return tuple(f"{key}={os.environ.get(key)}" for key in _VARIABLES)


def all_variables() -> dict[bytes, bytes]:
    """Return all environment variables; two results are equal if nothing changed in between.

    Each call of a kernel asks, and 15 lookups in os.environ take ten times as long as this copy.
    """
    return dict(os.environ._data)


def _possible_headers(
    source: Source, include: Sequence[Path]
) -> tuple[dict[Path, str], dict[Path, None]]:
    """Return the headers that the compiler may read, with their texts, and the folders searched.

    There may be more headers than the compiler reads. Conditions are not evaluated. If several
    folders have a header of one name, all of them count. So the key also changes if such a header
    appears in a folder that is searched earlier.
    """
    variables = [os.environ.get(name, "").split(os.pathsep) for name in _FOLDER_VARIABLES]
    for name in _FLAG_VARIABLES:
        variables.append(_INCLUDE_FLAG.findall(os.environ.get(name, "")))
    others = [
        *include,
        *(Path(entry).absolute() for entries in variables for entry in entries if entry),
    ]
    common = [source.folder, KERNEL_DIR]
    common += [folder for folder in others if not any(map(folder.is_relative_to, _SYSTEM))]
    texts: dict[Path, str] = {}
    folders: dict[Path, None] = {}
    todo = [(source.text, source.folder)]
    while todo:
        text, own_folder = todo.pop()
        for name in _header_names(text):
            for folder in (own_folder, *common):
                path = Path(os.path.normpath(folder / name))
                folders[path.parent] = None
                if path not in texts and os.path.isfile(path):
                    texts[path] = path.read_text(errors="surrogateescape")
                    todo.append((texts[path], path.parent))
    return texts, folders


@functools.lru_cache(512)
def _header_names(text: str) -> tuple[str, ...]:
    """Return the names of headers that a text may include, each once."""
    joined = uncommented(text.replace("\\\n", ""))
    return tuple(dict.fromkeys(_HEADER_NAME.findall(joined)))
