"""Source text to a shared library, through torch's ``load_inline``; the only caller of it.

`load_inline` loads what it built. Of what is built here it may not: a learner's static initialisers
run where the kernel does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..arguments import hint
from ..errors import BuildError
from ..kernel.catalog import KERNEL_DIR, uncommented
from ..machine import child, toolchain
from .cache import Made
from .compiler_messages import Message, messages, quoted

CXX_FLAGS = ["-std=c++17", "-w"]
# No library of torch's is needed, and none is read: see `_no_libraries`.
LINK_FLAGS = ["-Wl,--as-needed", "-lstdc++", "-Wl,-z,defs"]
_OURS = "convlab_"  # begins the name of a library that is not loaded
# What else decides what compilers do.
_VARIABLES = (
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "C_INCLUDE_PATH",
    "LIBRARY_PATH",
    "CC",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
)
_SYSTEM = ("/usr/include/", "/usr/lib/", "/usr/local/cuda")  # the compiler stands for these
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
        return re.sub(
            r'^#include ("[^"]+\.cu").*$',
            lambda said: texts.get(said[1], said[0]),
            self.text,
            flags=re.MULTILINE,
        )

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
    for part in (source.text, source.label, *parts, *environment, *LINK_FLAGS, torch.__version__):
        digest.update(part.encode(errors="surrogateescape") + b"\0")
    return f"{source.name[:80]}-{kind}-{digest.hexdigest()[:16]}"


def compile_library(
    source: Source,
    folder: Path,
    text: str,
    *,
    flags: Sequence[str],
    include: Sequence[Path],
    libraries: Sequence[str] = (),
    folders: Sequence[Path] = (),
    cuda: toolchain.Cuda | None = None,
    copies: Mapping[Path, Path] | None = None,
    entry: str | None = None,
) -> Made:
    """Compile and link a library, in a folder, without loading it.

    The text is CUDA C++ for nvcc where `cuda` is given, else C++; `libraries`, as ``-lcublas`` or a
    path, are looked for in `folders`; `copies` are headers of which `include` has another version,
    by that version's path; `entry` is the C function that it must have.
    """
    ninja_on_path()
    cpp_extension = _cpp_extension()
    toolchain.require_host_compiler()
    if cuda is not None:
        cpp_extension.CUDA_HOME = str(plain(cuda.home))
    home = plain(Path(torch.__file__).parent)  # load_inline writes these as they are
    cpp_extension._TORCH_PATH = str(home)
    cpp_extension.TORCH_LIB_PATH = str(_no_libraries())
    flags = [_quoted(flag) for flag in flags]
    linking = [*LINK_FLAGS, *(f"-L{plain(path)}" for path in folders), *map(_quoted, libraries)]
    try:
        cpp_extension.load_inline(
            f"{_OURS}{re.sub(r'[^0-9A-Za-z]', '_', source.name)}_{folder.name[-8:]}",
            cpp_sources=["" if cuda else text],
            cuda_sources=[text] if cuda else None,
            extra_cflags=[] if cuda else flags,
            extra_cuda_cflags=flags if cuda else None,
            extra_ldflags=linking,
            extra_include_paths=[str(plain(path)) for path in include],
            build_directory=str(plain(folder)),
            with_cuda=cuda is not None,
            is_python_module=False,
            no_implicit_headers=True,
        )
    except (RuntimeError, subprocess.SubprocessError) as error:  # the latter: from `c++ --version`
        raise compile_error(source, str(error)) from None
    (library,) = folder.glob("*.so")
    if entry and entry not in exported(library):
        where = ""
        if found := re.search(rf"\b{entry}\s*\(", uncommented(source.text)):
            line = source.text.count("\n", 0, found.start()) + 1
            where = f". Line {line} has no CONVLAB_ENTRY"
        raise BuildError(
            f"{source.label} has no entry point: it must end with `CONVLAB_ENTRY const char* "
            f"{entry}(const ConvProblem*, ...)`; see kernels/convlab.cuh{where}"
        )
    if entry == "conv2d":
        _must_fit(source)
    # nvcc lists what `Source.marked` names too
    own = (Path(os.path.normpath(folder / source.label)), source.path)
    headers = [
        (copies or {}).get(path, path)
        for path in _listed(folder)
        if path.parent != folder and path not in own
    ]
    system = (*_SYSTEM, f"{cuda.home}/") if cuda else _SYSTEM
    read = [path for path in headers if not str(path).startswith(system)]
    there = [Path(p).absolute() for p in os.environ.get("CPATH", "").split(os.pathsep) if p]
    searched = [path for path in (*include, *there) if not path.is_relative_to(folder)]
    searched += [path.parent for path in read]
    return Made(library, *(tuple(dict.fromkeys(p)) for p in (read, searched)))


def _must_fit(source: Source) -> None:
    """Raise BuildError where the entry point returns or takes something else: no linker compares."""
    blank = uncommented(source.text)
    entry = r"\bCONVLAB_ENTRY\s+([\w\s]+?)[\s*]*\bconv2d\s*\(([^()]*)\)"
    for found in re.finditer(entry, blank):
        line = blank.count("\n", 0, found.start()) + 1
        count = found[2].count(",") + 1
        wrong = f"takes 8 parameters, and this one has {count}"
        if found[1] in ("void", "int", "bool", "cudaError_t"):
            wrong = f"returns const char*, an error's text or nullptr, and this one {found[1]}"
        elif count == 8:
            return
        raise BuildError(
            f"{source.label}:{line}: conv2d {wrong}: const char* conv2d(problem, x, w, bias, y, "
            "workspace, workspace_bytes, stream), as kernels/convlab.cuh declares it"
        )


def ninja_on_path() -> None:
    """Have torch's builder find the running environment's ninja: its folder is the last on PATH."""
    if (ninja := toolchain.find("ninja")) is None:
        raise BuildError("no ninja: `pip install -r requirements.txt` brings it")
    folders = [*filter(None, os.environ.get("PATH", "").split(os.pathsep))]
    if str(ninja.parent) not in folders:
        os.environ["PATH"] = os.pathsep.join([*folders, str(ninja.parent)])


@functools.cache
def _cpp_extension() -> ModuleType:
    """torch's builder, which loads nothing of ours; slow to import, so only when it is needed."""
    # a CUDA build of torch warns at its import that there is no GPU, wherever it looks for nvcc; and
    # that `c++ --version` ended, when Ctrl-C ended it
    unasked = re.compile("No CUDA runtime|Error checking compiler version")
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(lambda record: not unasked.match(record.msg))
    builder = importlib.import_module("torch.utils.cpp_extension")
    load = builder._import_module_from_library
    builder._import_module_from_library = lambda name, *rest: (
        None if name.startswith(_OURS) else load(name, *rest)
    )
    ninja = builder._run_ninja_build

    def run_ninja(folder: str, verbose: bool, error_prefix: str, *rest: Any) -> None:
        if f"'{_OURS}" not in error_prefix:
            return ninja(folder, verbose, error_prefix, *rest)
        done = run_compiler([toolchain.find("ninja"), "-v"], Path(folder))
        if done.returncode:
            raise RuntimeError(f"{error_prefix}: {done.stdout}{done.stderr}")

    builder._run_ninja_build = run_ninja
    return builder


@functools.cache
def _no_libraries() -> Path:
    """A folder where torch's libraries, which the linker is slow to read, are empty."""
    folder = toolchain.temporary(_plain_temporary())
    for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python"):
        (folder / f"lib{name}.so").write_text("/* a linker script that brings nothing */\n")
    return folder


def run_compiler(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a folder, where its temporary files go as well; Ctrl-C ends it."""
    return child.run(command, None, os.environ | {"TMPDIR": str(plain(folder))}, folder)


def exported(library: Path) -> set[str]:
    """The symbols that a library defines for others to call, without loading it."""
    if (nm := toolchain.find("nm")) is None:
        raise BuildError("no nm on PATH, to look into libraries; install binutils, as for g++")
    command = [str(nm), "-D", "--defined-only", "--format=posix", str(library)]
    done = toolchain.asked(command)
    done.check_returncode()
    listed = done.stdout
    return {line.split()[0] for line in listed.splitlines()}


def _listed(folder: Path) -> list[Path]:
    """The headers that the compiler read, as ninja keeps them."""
    done = toolchain.asked([toolchain.find("ninja"), "-t", "deps"], cwd=folder)
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    return [Path(os.path.normpath(folder / real(line))) for line in lines]


# ---- what compilers say: the first errors, at the user's lines ---------------------------------

_SHOWN = 2  # errors
_CUT_SHORT = re.compile(r"expected|.*(declaration|definition|specification).* (at block|not all)")
# What a word comes with, where nothing that was included declares it.
_FROM = {
    r"(__)?nv_bfloat\w+": "<cuda_bf16.h>",
    r"__half2?": "<cuda_fp16.h>",
    "cooperative_groups": "<cooperative_groups.h>",
    r"__pipeline_\w+": "<cuda_pipeline.h>",
    r"cublas\w+": "<cublas_v2.h>",
    r"ConvProblem|CONVLAB_ENTRY": '"convlab.cuh"',
}
_TORCH = re.compile(r'# *include *[<"](torch|ATen|c10|pybind11)/|\b(torch|at)::|PYBIND11_MODULE')


def compile_error(source: Source, log: str, label: str = "") -> BuildError:
    """The first errors in a compiler's log, with the lines they are about, and where all is."""
    log = real(log)
    label = label or source.label
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
    heading = f"{label} did not compile"
    shown = []
    if not found and (undefined := re.search(r"undefined reference to .*", log)):
        heading = f"{label} does not link: {undefined[0]}"
    elif not found:
        heading = f"{label} did not build"
        shown = [s for s in log.splitlines() if s.strip()][-6:]
    for file, line, place, _, message in found[:_SHOWN]:
        short = file
        with contextlib.suppress(ValueError):
            short = Path(file).relative_to(KERNEL_DIR.parent)
        shown += [f"{short}:{line}: {message}", *quoted(texts.get(file), line, place)]
    if len(found) > _SHOWN:
        shown.append(f"and {len(found) - _SHOWN} more")
    shown += _advice(source, found)
    places = [(said.file, said.line, said.text) for said in found]
    return BuildError("\n".join([heading, *shown, f"full log: {path}"]), places)


def _advice(source: Source, errors: Sequence[Message]) -> Iterator[str]:
    """What to include, or not."""
    told = "\n".join(error.text for error in errors)
    if errors and _TORCH.search(source.text):
        yield "no torch header is needed, nor can be had: conv2d gets raw pointers, see convlab.cuh"
    for name in re.findall(r"([\w./-]+): No such file", told):
        if f'"{name}"' in source.text:
            near = [path.name for base in (source.folder, KERNEL_DIR) for path in base.glob("*.*h")]
            yield f"{name} is looked for beside the kernel, and in convlab's kernels/{hint(name, near)}"
    for word in dict.fromkeys(re.findall(r"[‘\"'](\w+)", told)):
        header = next((known for name, known in _FROM.items() if re.fullmatch(name, word)), None)
        if header and header[1:-1] not in source.text:
            yield f"{word} comes with #include {header}"


# ---- names that every tool can read ------------------------------------------------------------


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=,./-]*")
_LINKS = "convlab-links-"
_linked: dict[str, str] = {}  # what each link stands for


def _quoted(flag: str) -> str:
    """A flag as ninja's file has it for a shell."""
    return shlex.quote(flag).replace("$", "$$")


def plain(path: Path) -> Path:
    """The path, or a link to it where a shell, ninja or nvcc would misread it."""
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


def unlinked(file: str) -> str:
    """The file that a library's debug information names, perhaps through a link to its folder."""
    if f"/{_LINKS}" not in file or not Path(file).is_relative_to(_links()):
        return file
    found = Path(os.path.realpath(file))
    return found.name if found.is_relative_to(_links()) else str(found)  # of a folder that is gone


def _plain_temporary() -> str:
    """The folder of temporary files, or another one where every tool could not read its name."""
    found = tempfile.gettempdir()
    return found if _PLAIN.fullmatch(found) else "/tmp"


@functools.cache
def _links() -> Path:
    """Where links are: the same for all processes of a user, as libraries that are kept name them."""
    folder = Path(_plain_temporary()) / f"{_LINKS}{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():  # another's, who could change where links lead
        return toolchain.temporary(str(folder.parent))
    for link in folder.iterdir():
        if not link.exists() and time.time() - link.lstat().st_mtime > 3600:
            link.unlink(missing_ok=True)
    return folder
