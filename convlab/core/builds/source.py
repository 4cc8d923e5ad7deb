"""The source of a kernel: its text, its path, and the headers that it includes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import CatalogError
from ..kernel.catalog import KERNEL_DIR, parse_header
from ..problem.computation import COMPUTATIONS, FORWARD
from .plain_paths import plain

INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Source:
    """The text to build, with its name and its path."""

    text: str
    # The name in messages and file names: "03_smem_tile".
    name: str
    # The file; None for a string.
    path: Path | None = None

    @property
    def label(self) -> str:
        """The file's name for messages: kernels/03_smem_tile.cu."""
        if self.path is None:
            return f"{self.name}.cu"
        with contextlib.suppress(ValueError):
            return str(self.path.relative_to(KERNEL_DIR.parent))
        return str(self.path)

    @property
    def entry(self) -> str:
        """The entry point that the file must define, according to its header."""
        try:
            computes = parse_header(self.text, self.label).computes
        except CatalogError:
            # Whoever needs the header reports its mistake.
            computes = FORWARD.name
        return COMPUTATIONS[computes].entry

    @property
    def folder(self) -> Path:
        """The folder that is searched first for headers."""
        return self.path.parent if self.path else KERNEL_DIR

    @property
    def marked(self) -> str:
        """The text, after a #line directive with the file's name."""
        name = self.label
        if self.path and (
            _CONTROL.search(name) or name.encode("utf-8", "replace").decode() != name
        ):
            # A #line directive is one line of UTF-8.
            name = str(plain(self.path))
        name = name.replace("\\", r"\\").replace('"', r"\"")
        return f'#line 1 "{name}"\n{self.text}'

    @property
    def for_nvcc(self) -> Source:
        """This source, with a link if its path has a double quote, which ptxas cannot read."""
        return replace(self, path=plain(self.path)) if '"' in self.label else self

    @property
    def whole(self) -> str:
        """The text, with each #include of a .cu file replaced by that file's text."""
        texts = {f'"{name}"': text.rstrip() for name, text in self.headers().values()}

        def included(line: re.Match) -> str:
            return texts.get(line[1], line[0])

        return re.sub(r'^#include ("[^"]+\.cu").*$', included, self.text, flags=re.MULTILINE)

    @property
    def code(self) -> tuple[str, str]:
        """The name and the text of the file with the code: an included .cu file, or this file."""
        for path, (_, text) in self.headers().items():
            if path.suffix == ".cu":
                return path.name, text
        return Path(self.label).name, self.text

    def headers(self, folders: Sequence[Path] = ()) -> dict[Path, tuple[str, str]]:
        """Return the local headers that it includes, directly or indirectly, by path.

        Each value is (the name in the first #include, the text). Conditions are not evaluated: an
        #include inside an #if counts. `folders` are searched last, as those of -I.
        """
        headers: dict[Path, tuple[str, str]] = {}
        todo = [(self.text, self.folder)]
        while todo:
            text, own_folder = todo.pop()
            for name in INCLUDE.findall(text):
                searched = (own_folder, KERNEL_DIR, *folders)
                paths = [(folder / name).resolve() for folder in searched]
                path = next((path for path in paths if path.is_file()), None)
                if path and path not in headers:
                    header = path.read_text(errors="replace")
                    headers[path] = name, header
                    todo.append((header, path.parent))
        return headers
