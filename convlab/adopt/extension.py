"""An extension of an answer: the strings of one ``load_inline``, and its build with convlab's headers.

The C++ and the CUDA text become one text, which includes the small ``torch::Tensor`` in
``include/`` instead of torch's headers. So it compiles in one to three seconds, with g++ for the
simulator and with nvcc. Compilers report the lines of the answer's file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..core import rooms
from ..core.arguments import nearest
from ..core.builds.cache import Build, BuildOutput
from ..core.builds.plain_paths import plain
from ..core.builds.source import Source
from ..core.errors import BuildError
from .answer import Answer, Text
from .cpp_functions import blanked, functions
from .mistake import Mistake
from .tunables import with_values

INCLUDE = Path(__file__).parent / "include"
ENTRY = "sim_entry"
_PRELUDE = "#include <torch/extension.h>\n"
# If g++ links its runtime statically, the runtime's symbols stay in the library: mixed with those of the
# runtime that Python has loaded, the text of a TORCH_CHECK loses its numbers, or the process crashes.
_LIBRARIES = ("-lcudart", "-Wl,--exclude-libs,libstdc++.a")
# The limits of each compiler process.
_COMPILER_GIBIBYTES = 8
_COMPILER_SECONDS = 120
# What compilers say when they reach one.
_STOPPED = re.compile(
    r"[Oo]ut of memory|Cannot allocate memory|CPU time limit|Killed signal|File size limit|bad_alloc"
)
# In place of a library: the small torch::Tensor lacks something, and torch's headers are used.
WITH_TORCH = "with torch's headers"
_BIND = """
#line 1 "convlab's bindings"
{bind}
extern "C" const char* {entry}(const adopt::Word* words, const unsigned*) {{
    return adopt::entry(words, [](adopt::Module& module) {{ adopt_bind(module); }});
}}
"""
# What a compiler says of a name that the small torch::Tensor does not have.
_LACKING = (
    # g++ says: 'class at::Tensor' has no member named 'sum'; nvcc: class "at::Tensor" has no member "sum".
    re.compile(
        r"(?:class|struct) \W?(?:at|c10|torch)::(?P<owner>\w+)\S* has no member (?:named )?\W(?P<name>\w+)"
    ),
    re.compile(
        r".(?P<name>\w+). (?:is not a member of|in namespace) .(?P<owner>(?:torch|at|c10|pybind11)(?:::\w+)*)"
    ),
    re.compile(
        r"(?:namespace|name followed by).*.(?P<owner>torch|at|c10|pybind11)\S* has no member .(?P<name>\w+)"
    ),
    re.compile(r".(?P<name>(?:py|pybind11)::\w+). has not been declared"),
    re.compile(r"(?P<name>(?:torch|ATen|c10|pybind11)/[\w./]+): No such file"),
    re.compile(r"cannot open source file .(?P<name>(?:torch|ATen|c10|pybind11)/[\w./]+)"),
    re.compile(r"incomplete type .*adopt::From<(?P<name>.+?)>"),
)


@dataclass(frozen=True)
class Extension:
    """The constant arguments of a ``load_inline`` that decide its build.

    Attributes
    ----------
    path : the answer's file.
    cpp, cuda : the texts, with the lines of the file.
    exports : the exported functions; empty if the sources have a PYBIND11_MODULE.
    flags : definitions of macros and folders of headers: -DNAME=VALUE, -IFOLDER.
    """

    path: Path
    cpp: Text
    cuda: Text
    exports: tuple[str, ...]
    flags: tuple[str, ...]

    @classmethod
    def of(
        cls,
        answer: Answer,
        cpp: str | Sequence[str],
        cuda: str | Sequence[str] | None,
        exports: Sequence[str],
        flags: Sequence[str],
        line: int,
        values: Mapping[str, int] = MappingProxyType({}),
    ) -> Extension:
        """Return the extension for the arguments of a call of ``load_inline`` at a line.

        `values` are those of tunables that differ from the text; see `tunables`.
        """
        kept = tuple(flag for flag in flags if re.match(r"-[DUI]\S", flag))
        whole = [
            answer.located(text if isinstance(text, str) else "\n".join(text), line)
            for text in (cpp, cuda or "")
        ]
        if values:
            whole = [with_values(text, values) for text in whole]
        return cls(answer.path, *whole, tuple(exports), kept)

    @property
    def digest(self) -> str:
        """A digest of everything that decides the build."""
        return hashlib.sha256(repr((self.text, self.flags)).encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """The one text that is compiled."""
        file = str(self.path)
        bind = ""
        if self.exports:
            lines = [f'    module.def("{name}", &{name});' for name in self.exports]
            bind = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {\n" + "\n".join(lines) + "\n}"
        return "".join(
            [
                _PRELUDE,
                self._without_prototypes().marked(file),
                self.cuda.marked(file),
                _BIND.format(bind=bind, entry=ENTRY),
            ]
        )

    def _without_prototypes(self) -> Text:
        """Return the C++ text without needless declarations of functions that the CUDA text defines.

        In one text, a second declaration may repeat a default, or be ambiguous. The C++ text needs
        it only if it calls the function.
        """
        defined = {each.name for each in functions(self.cuda.text) if each.defined}
        text = self.cpp.text
        for each in functions(text):
            is_called = len(re.findall(rf"\b{each.name}\b", blanked(text))) > 1
            if each.name in defined and not each.defined and not is_called:
                blank = re.sub(r"[^\n]", " ", text[each.position : each.end])
                text = text[: each.position] + blank + text[each.end :]
        return Text(text, self.cpp.lines)

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return the names of an exported function's parameters."""
        for text in (self.cuda.text, self.cpp.text):
            for each in functions(text):
                if each.name == name and each.defined:
                    return each.names
        return ()

    def build(self, engine: str) -> Build:
        """Compile for an engine, "sim" or "cuda", or return the cached build.

        Raises
        ------
        BuildError
            With the places of the compiler's errors. Its kind is "not simulated" if the small
            torch::Tensor lacks a name.
        """
        source = Source(self.text, self.path.stem, self.path)
        flags = [f"-I{INCLUDE}", *self.flags]
        from ..core.builds.compile import limited

        try:
            with limited(_COMPILER_GIBIBYTES, _COMPILER_SECONDS):
                if engine == "sim":
                    from ..sim import library

                    return library.build(source, flags, entry=ENTRY, first=_PRELUDE)
                return _with_nvcc(source, flags)
        except BuildError as error:
            raise _over_limit(error) or _lacking(error) or error from None

    def machine_code(self, arch: str) -> tuple[bytes, str]:
        """Return the cubin that nvcc makes for "80" or "90a", and what ptxas reports of it.

        Raises BuildError.
        """
        from ..core.builds import cache, compile
        from ..core.builds.build import CUBLAS_DECLARATIONS
        from ..core.builds.compile_error import compile_error
        from ..core.builds.key import key_of
        from ..core.machine import toolchain

        source = Source(self.text, self.path.stem, self.path)
        cuda = toolchain.require_cuda()
        folders = [INCLUDE, CUBLAS_DECLARATIONS, source.folder]
        options = [*_nvcc_options(arch), *self.flags]

        def make(folder: Path) -> BuildOutput:
            (folder / "answer.cu").write_text(source.text)
            includes = [f"-I{plain(path)}" for path in folders]
            command = [cuda.nvcc, "-cubin", "-Xptxas", "-v", *options, *includes, "answer.cu"]
            done = compile.run_compiler([*command, "-o", "answer.cubin"], folder)
            log = done.stdout + done.stderr
            if done.returncode:
                raise compile_error(source, log)
            made = folder / "made"
            made.write_bytes(pickle.dumps(((folder / "answer.cubin").read_bytes(), log)))
            return BuildOutput(made)

        parts = ["-cubin", "-v", *options, toolchain.identity(cuda.nvcc)]
        built = cache.build(lambda: key_of(source, f"cubin_{arch}", parts, [INCLUDE]), make)
        return pickle.loads(built.library.read_bytes())


def has_simulator() -> bool:
    """Return whether the room of the simulator is there."""
    return "sim" in rooms.names("engine")


def _with_nvcc(source: Source, flags: Sequence[str]) -> Build:
    """Compile with nvcc for this machine's GPU."""
    import torch

    from ..core.builds import cache
    from ..core.builds.build import CUBLAS_DECLARATIONS
    from ..core.builds.compile import Compilation, compile_library
    from ..core.builds.key import key_of
    from ..core.machine import toolchain

    cuda = toolchain.cuda()
    if cuda is None:
        raise BuildError("no nvcc was found: `python -m convlab doctor`", kind="not run")
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    arch = f"{major}{minor}" + ("a" if major >= 9 else "")
    options = [*_nvcc_options(arch), *flags]

    def make(folder: Path) -> BuildOutput:
        compilation = Compilation(
            source,
            source.text,
            flags=options,
            include=[INCLUDE, CUBLAS_DECLARATIONS, source.folder],
            libraries=[*_LIBRARIES, *(["-lcublas"] if "cublas" in source.text else [])],
            library_folders=[
                folder for folder in (cuda.home / "lib64", cuda.home / "lib") if folder.is_dir()
            ],
            cuda=cuda,
            entry=ENTRY,
        )
        return compile_library(compilation, folder)

    return cache.build(
        lambda: key_of(source, "adopt", [*options, *_LIBRARIES, toolchain.identity(cuda.nvcc)], [INCLUDE]), make
    )


def _nvcc_options(arch: str) -> list[str]:
    """Return nvcc's options. -O0 is for the host's code only, which is half of nvcc's time."""
    return [
        "-O0",
        "-std=c++17",
        "-w",
        "--expt-relaxed-constexpr",
        "--extended-lambda",
        "-lineinfo",
        f"-gencode=arch=compute_{arch},code=sm_{arch}",
    ]


def _over_limit(error: BuildError) -> BuildError | None:
    """Return the error of a compiler that was stopped by its limits; None for other errors."""
    if not _STOPPED.search(str(error)):
        return None
    return BuildError(
        f"the compiler was stopped: it needs more than {_COMPILER_GIBIBYTES} GiB of memory or "
        f"{_COMPILER_SECONDS} s of CPU time for this text"
    )


def _lacking(error: BuildError) -> BuildError | None:
    """Return the error for a name that the small torch::Tensor lacks; None if there is none."""
    for file, line, text in error.places:
        for pattern in _LACKING:
            found = pattern.search(text)
            if not found:
                continue
            name = found["name"]
            owner = found.groupdict().get("owner") or ""
            if owner and (_is_typo(name) or not _torch_has(owner, name)):
                return None
            shown = f"{owner}::{name}" if owner else name
            what = f"convlab's small torch::Tensor has no {shown}, so it cannot run this answer"
            missing = BuildError(
                f"{file}:{line}: {what}", [(file, line, what)], kind="not simulated"
            )
            missing.name = name
            return missing
    return None


def _torch_has(owner: str, name: str) -> bool:
    """Return whether torch's own class has a member; True if torch's headers cannot tell."""
    if owner != "Tensor":
        return True
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    headers = [Path(folder) / "include" / "ATen" / "core" for folder in folders or ()]
    texts = [file.read_text() for folder in headers for file in folder.glob("TensorB*.h")]
    return not texts or any(re.search(rf"\b{name}\b", text) for text in texts)


def _is_typo(name: str) -> bool:
    """Return whether a name resembles one that the small torch::Tensor has."""
    import difflib

    text = (INCLUDE / "adopt" / "tensor.h").read_text()
    known = set(re.findall(r"\b([a-z]\w{3,})\s*\(", text))
    near = nearest(name, known)
    return any(difflib.SequenceMatcher(None, name, each).ratio() > 0.85 for each in near)


def mistakes(error: BuildError, path: Path) -> list[Mistake]:
    """Return the mistakes in an answer's file for a build that failed."""
    lacking = error.kind == "not simulated"
    kind = error.kind if error.kind in ("not run", "not simulated") else "build"
    todo = (
        "check it on a GPU with `--engine cuda`, or replace the name"
        if lacking
        else "correct this line; later errors often follow from the first"
    )
    found = []
    for file, line, text in error.places[:3]:
        own = Path(file).name == path.name
        found.append(Mistake(kind, line if own else 0, _plain(text), todo))
    if not found:
        text = str(error).split("\nfull log")[0]
        undefined = re.search(r"undefined (?:reference to|symbol:?) .*", text)
        found.append(Mistake(kind, 0, undefined[0] if undefined else text, "correct the sources"))
    return found


def _plain(text: str) -> str:
    """Return a compiler's message without its names of templates' arguments."""
    return re.sub(r"\s*\[-W[\w=-]+\]$", "", text)
