"""Source text to a shared library: the compiler and the linker, and what they say of errors.

Nothing that is built is loaded here: a learner's static initialisers run where the kernel does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..words.catalog import KERNEL_DIR, uncommented
from ..words.errors import BuildError
from . import toolchain
from .cache import Made
from .messages import Message, messages, quoted

CXX_FLAGS = ["-std=c++17", "-w"]
LINK_FLAGS = ["-shared", "-Wl,--as-needed", "-lstdc++", "-Wl,-z,defs"]
# What else decides what compilers do.
_VARIABLES = (
    "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS", "NVCC_CCBIN",
)  # fmt: skip
_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import)[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE
)


@dataclass(frozen=True)
class Source:
    """The text to build and where it came from."""

    text: str
    name: str  # for messages and file names: "03_smem_tile"
    path: Path | None = None  # None: a string, not a file

    @property
    def label(self) -> str:
        """The file's name as messages show it: kernels/03_smem_tile.cu."""
        if self.path is None:
            return f"{self.name}.cu"
        with contextlib.suppress(ValueError):
            return str(self.path.relative_to(KERNEL_DIR.parent))
        return str(self.path)

    @property
    def folder(self) -> Path:
        """Where its local includes are looked for first."""
        return self.path.parent if self.path else KERNEL_DIR

    @property
    def marked(self) -> str:
        """The text, with a line before it that tells the compiler where it is from."""
        name = self.label.replace("\\", r"\\").replace('"', r"\"")
        return f'#line 1 "{name}"\n{self.text}'

    @property
    def for_nvcc(self) -> Source:
        """The same, by a link where its path has a double quote, which ptxas cannot read."""
        return replace(self, path=plain(self.path)) if '"' in self.label else self

    @property
    def whole(self) -> str:
        """The text, with each .cu file that it includes in the place of the #include."""
        texts = {f'"{name}"': text.rstrip() for name, text in self.headers().values()}
        return re.sub(r'^#include ("[^"]+\.cu").*$', lambda said: texts.get(said[1], said[0]),
                      self.text, flags=re.MULTILINE)  # fmt: skip

    @property
    def code(self) -> tuple[str, str]:
        """The name and the text of the file that its code stands in: a .cu that it includes, or it."""
        cu = [(p.name, text) for p, (_, text) in self.headers().items() if p.suffix == ".cu"]
        return cu[0] if cu else (Path(self.label).name, self.text)

    def headers(self) -> dict[Path, tuple[str, str]]:
        """For each local header that it includes, directly or not: the name used first, the text.

        As written, whatever the preprocessor makes of it.
        """
        found: dict[Path, tuple[str, str]] = {}
        todo = [(self.text, self.folder)]
        while todo:
            text, folder = todo.pop()
            for name in _INCLUDE.findall(text):
                paths = [(base / name).resolve() for base in (folder, KERNEL_DIR)]
                path = next((path for path in paths if path.is_file()), None)
                if path and path not in found:
                    found[path] = name, path.read_text(errors="replace")
                    todo.append((found[path][1], path.parent))
        return found


def name_of(source: Source, kind: str, parts: Iterable[str], home: str = str(KERNEL_DIR)) -> str:
    """Return what a build is called in the cache: by all that decides it but what is read.

    In another checkout that lies elsewhere: `home` is in the name, unless the parts say it.
    """
    digest = hashlib.sha256()
    environment = [home, *(f"{key}={os.environ.get(key)}" for key in _VARIABLES)]
    for part in (source.text, source.label, *parts, *environment, *LINK_FLAGS):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    return f"{source.name[:80]}-{kind}-{digest.hexdigest()[:16]}"


def compile_library(
    source: Source, folder: Path, text: str, *, flags: Sequence[str], include: Sequence[Path],
    libraries: Sequence[str] = (), folders: Sequence[Path] = (), cuda: toolchain.Cuda | None = None,
    copies: Mapping[Path, Path] | None = None, entry: str | None = None,
) -> Made:  # fmt: skip
    """Compile and link a library, in a folder, without loading it.

    The text is CUDA C++ for nvcc where `cuda` is given, else C++; `libraries`, as ``-lcublas`` or a
    path, are looked for in `folders`; `copies` are headers of which `include` has another version,
    by that version's path; `entry` is the C function that it must have.
    """
    linker = toolchain.require_host_compiler()
    text_file, compiler = folder / "main.cpp", [linker, "-fPIC"]
    if cuda is not None:
        text_file = folder / "main.cu"
        compiler = [plain(cuda.nvcc), "-Xcompiler=-fPIC"]
        include, libraries = [plain(path) for path in include], [*libraries, "-lcudart"]
    text_file.write_text(text)
    library = folder / "made.so"
    for command in (
        [*compiler, *flags, *(f"-I{path}" for path in include), "-MMD", "-MF", "main.d",
         "-c", text_file.name, "-o", "main.o"],
        [linker, "main.o", *LINK_FLAGS, *(f"-L{path}" for path in folders), *libraries,
         "-o", library.name],
    ):  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
        if done.returncode:
            said = done.stdout + done.stderr
            raise compile_error(source, said.decode(errors="replace"))
    if entry and entry not in exported(library):
        raise BuildError(
            f"{source.label} has no entry point: it must end with `CONVLAB_ENTRY const char* "
            f"{entry}(const ConvProblem*, ...)`; see kernels/convlab.cuh"
        )
    if entry == "conv2d":
        _must_take_all(source)
    # nvcc lists what `Source.marked` names too
    own = (Path(os.path.normpath(folder / source.label)), source.path)
    headers = [(copies or {}).get(path, path) for path in _listed(folder / "main.d")
               if path.parent != folder and path not in own]  # fmt: skip
    read = [path for path in headers if not cuda or not path.is_relative_to(cuda.home)]
    there = [Path(p).absolute() for p in os.environ.get("CPATH", "").split(os.pathsep) if p]
    searched = [path for path in (*include, *there) if not path.is_relative_to(folder)]
    searched += [path.parent for path in read]
    return Made(library, *(tuple(dict.fromkeys(p)) for p in (read, searched)))


def _must_take_all(source: Source) -> None:
    """Raise BuildError where the entry point's parameters are not as many: no linker compares."""
    blank = uncommented(source.text)
    found = re.search(r"\bCONVLAB_ENTRY\s+const\s+char\s*\*\s*conv2d\s*\(([^()]*)\)", blank)
    if found and (count := found[1].count(",") + 1) != 8:
        line = blank.count("\n", 0, found.start()) + 1
        raise BuildError(
            f"{source.label}:{line}: conv2d takes 8 parameters, and this one has {count}: problem, x, "
            "w, bias, y, workspace, workspace_bytes, stream, as kernels/convlab.cuh declares it"
        )


def exported(library: Path) -> set[str]:
    """The symbols that a library defines for others to call, without loading it."""
    if (nm := toolchain.find("nm")) is None:
        raise BuildError("no nm on PATH, to look into libraries; install binutils, as for g++")
    command = [str(nm), "-D", "--defined-only", "--format=posix", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


def _listed(rule: Path) -> list[Path]:
    """The headers that a compiler read, but the system's, as its rule for make lists them."""
    text = rule.read_text(errors="surrogateescape").partition(": ")[2].replace("\\\n", " ")
    words = re.findall(r"(?:\\[ #]|\S)+", text)
    names = [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]
    return [Path(os.path.normpath(rule.parent / real(name))) for name in names]


# ---- what compilers say: the first errors, at the user's lines ---------------------------------

_SHOWN = 2  # errors
_CUT_SHORT = re.compile(r"expected|.*(declaration|definition|specification).* (at block|not all)")
_TORCH = re.compile(r'# *include *[<"](torch|ATen|c10|pybind11)/|\b(torch|at)::|PYBIND11_MODULE')


def compile_error(source: Source, log: str) -> BuildError:
    """The first errors in a compiler's log, with the lines they are about, and where all is."""
    log, label = real(log), source.label
    texts = {str(path): text for path, (_, text) in source.headers().items()}
    texts[source.label] = source.text
    path = toolchain.cache_dir() / "logs" / f"{source.name[:80]}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_text(log, errors="replace")
    found = [said for said in dict.fromkeys(messages(log)) if said.kind == "error"]
    first = next(iter(found), Message("", 0, None, "", ""))
    ours = first.file not in texts or first.file == str(KERNEL_DIR / "convlab.cuh")
    if ours and _CUT_SHORT.match(first.text) and (include := _INCLUDE.search(source.text)):
        line = source.text.count("\n", 0, include.start(1)) + 1
        text = "what stands above this #include is not complete: a ; or a closing brace is missing"
        found.insert(0, Message(source.label, line, None, "error", text))
    heading, shown = f"{label} did not compile", []
    if not found and (undefined := re.search(r"undefined reference to .*", log)):
        heading = f"{label} does not link: {undefined[0]}"
    elif not found:
        heading, shown = f"{label} did not build", [s for s in log.splitlines() if s.strip()][-6:]
    for file, line, place, _, message in found[:_SHOWN]:
        short = file
        with contextlib.suppress(ValueError):
            short = Path(file).relative_to(KERNEL_DIR.parent)
        shown += [f"{short}:{line}: {message}", *quoted(texts.get(file), line, place)]
    if len(found) > _SHOWN:
        shown.append(f"and {len(found) - _SHOWN} more")
    if found and _TORCH.search(source.text):
        shown.append("no torch header can be had, nor is needed: conv2d gets raw pointers")
    places = [(said.file, said.line, said.text) for said in found]
    return BuildError("\n".join([heading, *shown, f"full log: {path}"]), places)


# ---- names that nvcc can read ------------------------------------------------------------------


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=,./-]*")
_linked: dict[str, str] = {}  # what each link stands for


def plain(path: Path) -> Path:
    """The path, or a link to it where nvcc would misread it."""
    if _PLAIN.fullmatch(str(path)):
        return path
    link = _links() / hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    with contextlib.suppress(FileExistsError):
        link.symlink_to(path)
    _linked[str(link)] = str(path)
    return link


def real(text: str) -> str:
    """The text with each link's name replaced by that of what it stands for."""
    for link, path in list(_linked.items()):
        text = text.replace(link, path)
    return text


@functools.cache
def _links() -> Path:
    found = tempfile.gettempdir()
    return toolchain.temporary(found if _PLAIN.fullmatch(found) else "/tmp")
