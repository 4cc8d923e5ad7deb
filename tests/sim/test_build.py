"""Builds: reload after an edit, the cache that processes share, and compilers' messages."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import convlab
from convlab.__main__ import main
from convlab.core.builds import build, cache
from convlab.core.builds.compile import exported
from convlab.core.builds.key import key_of
from convlab.core.errors import BuildError, LaunchError
from convlab.core.kernel.catalog import KERNEL_DIR
from convlab.core.kernel.kernel import load, resolve
from convlab.core.machine import toolchain
from convlab.sim import library as simulated
from tests.suites import ENGINES, FOLDER, cubin, needs_nvcc

ROOT = Path(__file__).resolve().parents[2]
X = torch.zeros(1, 1, 4, 5)
W = torch.zeros(2, 1, 1, 1)

# Fills y with VALUE.
FILL = (FOLDER / "fill.cu").read_text()


def value(kernel: convlab.Kernel) -> float:
    """Run a kernel of this file, and return the value with which it filled y."""
    y = kernel(X.to(kernel.device), W.to(kernel.device))
    assert tuple(y.shape) == (1, 2, 4, 5)
    (found,) = set(y.flatten().tolist())
    return found


def filling(number: float | str) -> str:
    """The kernel with another value."""
    return FILL.replace("= VALUE;", f"= {number};")


@pytest.fixture
def fill(tmp_path: Path) -> Path:
    """The kernel on disk."""
    path = tmp_path / "fill.cu"
    path.write_text(FILL)
    return path


# ---- hot reload -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_edit_is_used_by_the_next_call(fill: Path, engine: str) -> None:
    kernel = load(fill, engine=engine)
    assert value(kernel) == 1
    for number in (22, 33):  # the same length, perhaps within one tick of the clock
        fill.write_text(filling(number))
        assert value(kernel) == number
    fill.write_text(FILL)
    assert value(kernel) == 1


def test_after_our_build_a_load_inline_of_the_users_links_torch(fill: Path, tmp_path: Path) -> None:
    fill.write_text(filling(time.time_ns() % 1000003))  # it is built here, and not found
    load(fill, engine="sim").build()
    folder = tmp_path / "theirs"
    folder.mkdir()
    cpp_extension.load_inline(
        "theirs",
        # Of torch's C interface, so that none of its headers is compiled.
        cpp_sources=[
            'extern "C" int aoti_torch_device_type_cpu();\n'
            'extern "C" int theirs() { return 5 + aoti_torch_device_type_cpu(); }'
        ],
        build_directory=str(folder),
        is_python_module=False,
        no_implicit_headers=True,
    )
    assert ctypes.CDLL(str(folder / "theirs.so")).theirs() == 5


def test_a_header_beside_the_file_hides_the_shared_one(fill: Path) -> None:
    shared = (ROOT / "kernels" / "convlab.cuh").read_text()
    kernel = load(fill, engine="sim")
    assert value(kernel) == 1
    fill.with_name("convlab.cuh").write_text(shared + "#define VALUE 9\n")
    fill.write_text(FILL + "\n")
    assert value(kernel) == 9


@pytest.mark.parametrize("engine", ENGINES)
def test_an_edit_that_does_not_compile_can_be_mended(fill: Path, engine: str) -> None:
    kernel = load(fill, engine=engine)
    assert value(kernel) == 1
    fill.write_text(filling("nonsense"))
    for _ in range(2):  # and never an old build
        with pytest.raises(BuildError, match="nonsense"):
            value(kernel)
    fill.unlink()  # nor while there is no file
    with pytest.raises((OSError, convlab.errors.ConvlabError), match=r"fill\.cu"):
        value(kernel)
    fill.write_text(filling(44))
    assert value(kernel) == 44


@pytest.mark.parametrize("engine", ENGINES)
def test_pinned_keeps_the_old_beside_the_new(fill: Path, engine: str) -> None:
    old = load(fill, engine=engine).pinned()
    fill.write_text(filling(2))
    new = load(fill, engine=engine)
    middle = new.pinned()
    fill.write_text(filling(3))
    for _ in range(2):
        assert (value(old), value(middle), value(new)) == (1, 2, 3)
    assert len({old.name, middle.name, new.name}) == 3
    assert re.fullmatch(r"fill#[0-9a-f]{6}", old.name) and new.name == "fill"


@pytest.mark.parametrize("engine", ENGINES)
def test_tunables_make_kernels_of_their_own(fill: Path, engine: str) -> None:
    plain = load(fill, engine=engine)
    named = load(f"{fill}@VALUE=7", engine=engine)
    given = load(fill, engine=engine, defines={"VALUE": 8})
    for _ in range(2):
        assert [value(kernel) for kernel in (plain, named, given)] == [1, 7, 8]
    assert [k.name for k in (plain, named, given)] == ["fill", "fill@VALUE=7", "fill@VALUE=8"]
    assert named.title == "Fill@VALUE=7"
    with pytest.raises(BuildError, match="VALUE: less than 1000"):
        value(load(f"{fill}@VALUE=1000", engine=engine))


@pytest.mark.parametrize("engine", ENGINES)
def test_many_reloads_of_one_file(engine: str) -> None:
    """A library that is loaded takes of what a process has little of: static TLS was used up."""
    source = (ROOT / "kernels" / "02b_im2col_cublas.cu").read_text()
    for number in range(8 if engine == "cuda" else 2):
        kernel = convlab.compile(f"{source}\n// edit {number}\n", name="edited", engine=engine)
        assert value(kernel) == 0


# ---- the key of a build -----------------------------------------------------------------------


def library(path: Path, **options: object) -> Path:
    """Build for the simulator and return the library in the cache."""
    return load(path, engine="sim", **options).build().library


def test_the_key_is_what_decides_the_build(fill: Path) -> None:
    fill.with_name("more.cuh").write_text("// nothing\n")
    fill.write_text('#include "more.cuh"\n' + FILL)
    first = library(fill)
    os.utime(fill, (1, 1))
    again = load(fill, engine="sim").build()
    assert again.library == first and again.seconds == 0
    different = [library(fill, defines={"VALUE": 2})]
    fill.with_name("more.cuh").write_text("// something\n")
    different.append(library(fill))
    fill.write_text(fill.read_text() + "// end\n")
    different.append(library(fill))
    assert len({first, *different}) == 4
    fill.write_text('#include "more.cuh"\n' + FILL)
    fill.with_name("more.cuh").write_text("// nothing\n")
    assert library(fill) == first
    fill.write_text("#ifndef OTHER\n#define OTHER 1\n#endif\n" + FILL)
    one = library(fill, defines={"VALUE": 2, "OTHER": 3})
    assert one == library(fill, defines={"OTHER": 3, "VALUE": 2})


def test_a_simulated_build_has_lines_and_no_variables(fill: Path) -> None:
    command = ["objdump", "--dwarf=info", library(fill)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "DW_TAG_inlined_subroutine" in told and "DW_AT_location" not in told


# ---- headers that the compiler read -----------------------------------------------------------

# The ways to include a header: for each header that the test edits, the kernel's line.
INCLUDED = {
    "brackets": "#include <brackets.cuh>",
    "comments": '#include /* the */ "comments.cuh" // one',
    "continued": '#inc\\\nlude "continued.cuh"',
    "import": '#import "import.cuh"',
    "macro": "#define HEADER <macro.cuh>\n#include HEADER",
    "second/next": '#include "next.cuh"',
    "elsewhere/path": "#include <path.cuh>",
    "nested": '#include "outer.cuh"',
}


def test_an_edit_of_what_was_read_is_used(fill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill.parent

    def write(form: str, number: int) -> None:
        (folder / f"{form}.cuh").write_text(f"#define NUMBER_{Path(form).name} {number}\n")

    for name in ("second", "elsewhere"):
        (folder / name).mkdir()
    monkeypatch.setenv("CPATH", f"{folder / 'elsewhere'}:{folder / 'second'}")
    (folder / "next.cuh").write_text("#include_next <next.cuh>\n")
    (folder / "outer.cuh").write_text("#pragma once\n  #  include <nested.cuh>\n")
    for form in INCLUDED:
        write(form, 1)
    total = " + ".join(f"NUMBER_{Path(form).name}" for form in INCLUDED)
    fill.write_text("\n".join([*INCLUDED.values(), filling(total)]))
    kernel = load(fill, engine="sim")
    assert value(kernel) == len(INCLUDED)
    for form in INCLUDED:
        for number in (2, 1):
            write(form, number)
            assert value(kernel) == value(load(fill, engine="sim")) == len(INCLUDED) - 1 + number


@pytest.mark.parametrize("where", ["beside", "in a folder searched earlier"])
def test_a_header_that_appears_later_is_used(
    fill: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill.parent
    for name in ("early", "late"):
        (folder / name).mkdir()
    monkeypatch.setenv("CPATH", f"{folder / 'early'}:{folder / 'late'}")
    (folder / "late" / "number.cuh").write_text("#define NUMBER 5\n")
    fill.write_text("#include <number.cuh>\n" + filling("NUMBER"))
    kernel = load(fill, engine="sim")
    assert value(kernel) == 5
    new = (folder if where == "beside" else folder / "early") / "number.cuh"
    new.write_text("#define NUMBER 6\n")
    assert value(kernel) == 6
    new.unlink()
    built = kernel.build()
    assert value(kernel) == 5 and built.seconds == 0  # found, not made again


@pytest.mark.parametrize("form", ["quoted", "in brackets", "by a macro", "in a header"])
def test_a_header_that_is_tested_for_and_appears_later(fill: Path, form: str) -> None:
    folder = fill.parent
    name = {"in brackets": "<late.h>", "by a macro": "LATE"}.get(form, '"late.h"')
    test = f"#if __has_include({name})\n#include {name}\n#else\n#define NUMBER 5\n#endif\n"
    if form == "in a header":
        (folder / "outer.cuh").write_text(test)
        test = '#include "outer.cuh"\n'
    fill.write_text('#define LATE "late.h"\n' + test + filling("NUMBER"))
    kernel = load(fill, engine="sim")
    assert value(kernel) == 5
    (folder / "late.h").write_text("#define NUMBER 6\n")
    assert value(kernel) == value(load(fill, engine="sim")) == 6
    (folder / "late.h").unlink()
    assert value(kernel) == 5


def test_a_header_that_is_removed_linked_or_edited_in_secret(fill: Path) -> None:
    """The edit in secret restores the header's time, and keeps its size and its inode."""
    header = fill.with_name("number.h")
    header.write_text("#define NUMBER 5\n")
    fill.write_text('#include "number.h"\n' + filling("NUMBER"))
    kernel = load(fill, engine="sim")
    assert value(kernel) == 5
    before = header.stat()
    header.write_text("#define NUMBER 6\n")
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert value(kernel) == 6
    fill.with_name("other.h").write_text("#define NUMBER 7\n")
    header.unlink()
    with pytest.raises(BuildError, match="number.h"):
        kernel.build()
    header.symlink_to("other.h")
    assert value(kernel) == 7
    fill.with_name("other.h").write_text("#define NUMBER 8\n")
    assert value(kernel) == 8


def test_a_variable_of_the_compiler_that_changes(
    fill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill.parent
    for number in (5, 6):
        (folder / str(number)).mkdir()
        (folder / str(number) / "number.h").write_text(f"#define NUMBER {number}\n")
    fill.write_text("#include <number.h>\n" + filling("NUMBER"))
    kernel = load(fill, engine="sim")
    for number in (5, 6, 5):
        monkeypatch.setenv("CPATH", str(folder / str(number)))
        assert value(kernel) == number


@pytest.mark.parametrize(
    "name", ["CC", "CXX", "CPATH", "NVCC_APPEND_FLAGS", "PYTORCH_NVCC", "LD_RUN_PATH"]
)
def test_the_key_has_the_variables_of_the_compiler(
    fill: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load(fill, engine="sim").file
    names = set()
    for text in ("/one", "/two"):
        monkeypatch.setenv(name, text)
        names.add(key_of(source, "x", []).name)
    assert len(names) == 2


def test_a_folder_among_nvccs_flags_is_searched(
    fill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill.parent / "flags"
    folder.mkdir()
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-G -I{folder}")
    fill.write_text("#include <number.h>\n" + FILL)
    source = load(fill, engine="sim").file
    (folder / "number.h").write_text("1")
    first = key_of(source, "x", [])
    assert folder in first.watched
    (folder / "number.h").write_text("2")
    assert key_of(source, "x", []).name != first.name


def test_finding_a_build_again_reads_nothing_and_from_disk_each_library_once(
    fill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = load(fill, engine="sim")
    read = []
    digest = cache._digest
    assert value(kernel) == 1
    monkeypatch.setattr(cache, "_digest", lambda path: read.append(path) or digest(path))
    kernel.build()
    load(fill, engine="sim").build()
    assert not read
    cache._known.clear()
    load(fill, engine="sim").build()
    libraries = [path for path in read if path.suffix == ".so"]
    assert kernel.build().library in libraries and len(libraries) == len(set(libraries))


# ---- a cache that was damaged, or is full -----------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "one bit": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
}
DAMAGED = [("kernel.so", kind) for kind in DAMAGE] + [("made.json", k) for k in list(DAMAGE)[:3]]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for one test."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_known", {})
    return toolchain.cache_dir()


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test, with the parts of the simulator, which take long to build."""
    parts = [
        simulated.runtime(),
        simulated._precompiled_headers(simulated.compiler(), simulated.FLAGS).library,
    ]
    for folder in (part.parent for part in parts):
        shutil.copytree(folder, tmp_path / "cache" / folder.name)
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_known", {})
    return toolchain.cache_dir()


def built(name: str) -> cache.Build:
    """Make a build without a compiler."""

    def make(folder: Path) -> cache.BuildOutput:
        (folder / "any.so").write_bytes(bytes(range(256)) * 80)
        return cache.BuildOutput(folder / "any.so")

    return cache.build(lambda: cache.Key(name), make)


@pytest.mark.parametrize(("what", "kind"), DAMAGED, ids=" ".join)
def test_a_damaged_build_is_made_again(empty: Path, what: str, kind: str) -> None:
    library = built("fake").library
    cache._known.clear()  # as another process finds it
    assert built("fake") == cache.Build(library, 0.0, (library,))
    file = library.with_name(what)
    file.write_bytes(DAMAGE[kind](file.read_bytes()))
    cache._known.clear()
    again = built("fake")
    assert again.seconds > 0 and again.library.read_bytes() == bytes(range(256)) * 80


def test_a_build_that_was_removed_is_made_again(fill: Path) -> None:
    kernel = load(fill, engine="sim")
    pinned = kernel.pinned()
    for gone in (kernel, pinned):
        shutil.rmtree(gone.build().library.parent)
        assert value(gone) == 1


def test_the_cache_shows_what_it_holds_and_is_bounded(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [built(f"fake{number}").library.parent for number in range(4)]
    for age, folder in zip((9, 8, 7, 0), made, strict=True):
        os.utime(folder, (folder.stat().st_mtime - 3600 * age,) * 2)
    held = cache.contents()
    assert [entry.name for entry in held] == [folder.name for folder in reversed(made)]
    sizes = [sum(f.stat().st_size for f in folder.iterdir()) for folder in reversed(made)]
    assert [entry.bytes for entry in held] == sizes

    monkeypatch.setattr(cache, "LIMIT_BYTES", sizes[0] + sizes[1] + sizes[2] // 2)
    cache._tidy.cache_clear()
    new = built("fake4").library.parent  # the oldest go
    left = {entry.name for entry in cache.contents()}
    assert left == {folder.name for folder in (made[2], made[3], new)}
    monkeypatch.setattr(cache, "LIMIT_BYTES", 1)
    cache._tidy.cache_clear()
    built("fake5")  # what was just used stays
    assert made[3].exists() and not made[2].exists()

    total = sum(entry.bytes for entry in cache.contents())
    assert cache.clear() == total > 0
    assert cache.contents() == [] and not any(empty.glob("fake*"))


def test_old_leftovers_are_swept(empty: Path) -> None:
    (empty / "logs").mkdir()
    for name, days in (("old.log", 8), ("young.log", 6)):
        (empty / "logs" / name).write_text("")
        os.utime(empty / "logs" / name, (now := time.time(), now - days * 86400))
    for name, age in (("unfinished-old", 2 * 3600), ("unfinished-young", 1800)):
        (empty / name).mkdir()
        (empty / name / "main.cpp").write_text("")
        then = (empty / name).stat().st_mtime - age
        os.utime(empty / name, (then, then))
    made = built("fake").library.parent
    assert sorted(p.name for p in empty.iterdir()) == sorted(
        [made.name, "unfinished-young", "logs"]
    )
    assert [log.name for log in (empty / "logs").iterdir()] == ["young.log"]


# ---- no code of a kernel runs in this process -------------------------------------------------


def test_a_build_is_not_loaded(fill: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = load(fill, engine="sim").build()
    assert str(built.library) not in Path("/proc/self/maps").read_text()
    found = exported(built.library)
    assert "conv2d" in found and not {"conv2", "printf"} & found
    monkeypatch.setattr(toolchain, "find", lambda name: None)
    with pytest.raises(BuildError, match="no nm on PATH.*install binutils"):
        exported(built.library)


@needs_nvcc
def test_a_build_for_cuda_follows_its_headers_and_is_not_loaded(
    fill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU, or torch has no CUDA."""
    monkeypatch.setattr(torch.version, "cuda", torch.version.cuda or "13.0")
    header = fill.with_name("number.cuh")
    fill.write_text("#include <number.cuh>\n" + filling("NUMBER"))
    source = build.Source(fill.read_text(), "fill", fill)
    made = []
    for number in (5, 6, 5):
        header.write_text(f"#define NUMBER {number}\n")
        made.append(build._build_cuda(source, [], "90a"))
    assert made[0].library == made[2].library != made[1].library
    assert header in made[0].watched and fill not in made[0].watched
    assert ROOT / "kernels" / "convlab.cuh" in made[0].watched
    for built in made:
        assert str(built.library) not in Path("/proc/self/maps").read_text()
        assert {"conv2d", "convlab_launch_error"} <= exported(built.library)


# ---- at once, and anywhere --------------------------------------------------------------------


@pytest.mark.usefixtures("fresh")
def test_threads_build_one_kernel_once(fill: Path) -> None:
    flags = sys.getdlopenflags()
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: load(fill, engine="sim").build(), range(8)))
    assert len({each.library for each in built}) == 1
    assert sum(each.seconds > 0 for each in built) == 1
    with ThreadPoolExecutor(8) as pool:
        several = list(pool.map(lambda n: library(fill, defines={"VALUE": n % 4}), range(8)))
    assert len(set(several)) == 4
    assert sys.getdlopenflags() == flags


@pytest.mark.parametrize("name", ["par(en)s and quo'te\"s", "spaced (ümläut) do$$llar"])
def test_a_path_with_odd_characters(
    fill: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of the kernel, its header and the cache; messages have the user's own paths."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setenv("CONVLAB_CACHE", str(folder / "cache"))
    path = folder / f"fill {name}.cu"
    header = folder / "number.cuh"
    path.write_text('#include "number.cuh"\n' + filling("NUMBER"))
    for number in (3, 4):
        header.write_text(f"#pragma once\n#define NUMBER {number}\n")
        assert value(load(path, engine="sim")) == number
    header.write_text("#pragma once\n__device__ float half(float v) { return v / two; }\n")
    with pytest.raises(BuildError) as error:
        load(path, engine="sim").build()
    assert f"{header}:2: " in str(error.value)
    assert str(error.value).startswith(f"{path} did not compile")
    stray = path.with_name(f"stray {name}.cu")
    text = path.read_text().partition("\n")[2].replace("NUMBER", "9")
    stray.write_text(text.replace("y[i]", "y[i + (1 << 24)]"))
    line = 1 + stray.read_text()[: stray.read_text().index("y[i")].count("\n")
    with pytest.raises(LaunchError, match=re.escape(f"{stray.name}:{line}:  ")):
        value(load(stray, engine="sim"))
    header.write_text("#define NUMBER 3\n")
    assert len(convlab.inspect(path, "N=1,C=1,H=4,W=4,K=1,R=1,S=1", engine="sim").sass)


def test_headers_that_were_read_before_make_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(first: str, headers: Path) -> bytes:
        """Return a kernel's machine code, with this first line and these precompiled headers."""
        monkeypatch.setattr(simulated, "_FIRST_LINE", first)
        monkeypatch.setattr(simulated, "_precompiled_headers", lambda *_: cache.Build(headers, 0.0))
        monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / f"{first[:9]} {headers.name}"))
        monkeypatch.setattr(cache, "_known", {})
        made = convlab.compile(FILL, name="fill", engine="sim").build()
        assert simulated.INCLUDE / "sim.h" in made.watched or first != text
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made.library, out], check=True)
        return out.read_bytes()

    text = simulated._FIRST_LINE
    out = tmp_path / "code"
    none = tmp_path / "none"
    none.touch()
    precompiled = simulated._precompiled_headers(simulated.compiler(), simulated.FLAGS).library
    runtime = simulated.runtime()
    monkeypatch.setattr(simulated, "runtime", lambda: runtime)
    assert code(text, precompiled) == code(text, none) != b""
    assert code("#error is not read\n", precompiled) == code(text, precompiled)
    with pytest.raises(BuildError, match="is not read"):
        code("#error is not read\n", none)


# ---- processes that share a cache -------------------------------------------------------------

# A compiler that the test controls. If $GATE is set, it reports when it begins to compile the kernel,
# and blocks until the test lets it go on. If $BROKEN is set, it fails.
WRAPPER = """\
#!/bin/sh
if [ -n "$BROKEN" ]; then echo "$*" >> "$BROKEN"; exit 1; fi
case "$*" in
  *"NAME=convlab_fill"*" -c "*)
    if [ -n "$GATE" ]; then
      echo x > "$GATE/started"
      dd bs=1 count=1 of=/dev/null status=none < "$GATE/go"
    fi;;
  *"NAME=convlab_simulator"*" -c "*) set -- "$@" -O0;;  # quick, and twice
esac
exec c++ "$@"
"""
PATIENCE = 400  # seconds; each process builds the simulator first, on two cores with other work


class Shared:
    """A new cache, a compiler that the test can stop, and processes that use them."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.gate = folder / "gate"
        self.gate.mkdir()
        self.compiler = folder / "compiler"
        self.compiler.write_text(WRAPPER)
        self.compiler.chmod(self.compiler.stat().st_mode | stat.S_IXUSR)
        for name in ("started", "go"):
            os.mkfifo(self.gate / name)
        self.started = os.open(self.gate / "started", os.O_RDWR)  # both ends: never an end of file
        self.go = os.open(self.gate / "go", os.O_RDWR)
        self.processes: list[BaseProcess] = []

    def start(self, path: Path, **environment: Path) -> BaseProcess:
        """Start a fork of this process that loads a kernel and sends the value that fills y."""
        variables = {"CONVLAB_CACHE": self.cache, "CXX": self.compiler} | environment
        here, there = multiprocessing.Pipe(duplex=False)

        def fills() -> None:
            os.setsid()
            cache._known.clear()
            os.environ.update({key: str(value) for key, value in variables.items()})
            try:
                there.send(value(load(path, engine="sim")))
            except BuildError as error:
                there.send(str(error))

        process = multiprocessing.get_context("fork").Process(target=fills)
        process.start()
        there.close()
        process.connection = here
        self.processes.append(process)
        return process

    def wait_for_compilers(self, count: int) -> None:
        """Return when `count` compilers wait at the gate."""
        seen = b""
        while len(seen) < 2 * count:
            ready, _, _ = select.select([self.started], [], [], PATIENCE)
            ended = [process.exitcode for process in self.processes]
            assert ready, f"no compiler was started; exit codes: {ended}"
            seen += os.read(self.started, 2)

    def result(self, process: BaseProcess) -> object:
        """Return what a process sent; it must have ended without an error."""
        assert process.connection.poll(PATIENCE)
        sent = process.connection.recv()
        process.join(PATIENCE)
        assert process.exitcode == 0
        return sent

    def left(self, pattern: str) -> list[str]:
        """Return the names in the cache that match a pattern."""
        return sorted(path.name for path in self.cache.glob(pattern))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A separate cache, shared by processes."""
    made = Shared(tmp_path_factory.mktemp("shared"))
    yield made
    for process in made.processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    os.close(made.started)
    os.close(made.go)


def test_another_checkout_has_headers_of_its_own(tmp_path: Path) -> None:
    for part in ("convlab", "kernels"):
        shutil.copytree(ROOT / part, tmp_path / part)
    header = tmp_path / "kernels" / "convlab.cuh"
    header.write_text(f"#error of another checkout\n{header.read_text()}")
    kernel = convlab.load("01_direct", engine="sim")
    kernel.build()  # it is in the cache, which both share
    asks = "import convlab; convlab.load('01_direct', engine='sim').build()"
    done = subprocess.run(
        [sys.executable, "-c", asks], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "of another checkout" in done.stderr, done.stderr


@pytest.mark.xdist_group("shared cache")
def test_two_processes_build_the_same_kernel_at_once(shared: Shared, fill: Path) -> None:
    both = [shared.start(fill, GATE=shared.gate) for _ in range(2)]
    shared.wait_for_compilers(2)
    assert shared.left("fill-sim-*") == []
    os.write(shared.go, b"gg")
    assert [shared.result(process) for process in both] == [1, 1]
    assert [
        len(shared.left(f"{name}-*"))
        for name in ("fill-sim", "simulator-headers", "simulator-runtime")
    ] == [1, 1, 1]
    assert shared.left("unfinished-*") == []

    log = fill.with_name("log")
    fill.write_text(filling(2))
    assert "did not build" in shared.result(shared.start(fill, BROKEN=log))
    assert log.exists()


@pytest.mark.xdist_group("shared cache")
def test_a_killed_build_harms_nothing(shared: Shared, fill: Path) -> None:
    path = fill.rename(fill.with_name("filler.cu"))
    killed = shared.start(path, GATE=shared.gate)
    shared.wait_for_compilers(1)
    killed.kill()  # only this process: ninja and the compiler run on, as after kill -9
    killed.join()
    (left,) = shared.left("unfinished-*")
    assert shared.left("filler-sim-*") == []

    assert shared.result(shared.start(path)) == 1
    assert len(shared.left("filler-sim-*")) == 1
    assert shared.left("unfinished-*") == [left]  # another process might still use it
    os.write(shared.go, b"g")  # the orphan finishes in its own folder, where it does no harm
    log = path.with_name("log")  # no process compiles the finished build again
    assert shared.result(shared.start(path, BROKEN=log)) == 1 and not log.exists()


def test_a_failed_build_leaves_only_its_log(fresh: Path) -> None:
    before = {path.name for path in fresh.iterdir()}
    with pytest.raises(BuildError):
        convlab.compile("nonsense\n", name="bad", engine="sim")
    assert {path.name for path in fresh.iterdir()} - before == {"logs"}


@needs_nvcc
def test_device_code_alone_is_compiled_in_folders_of_any_name(tmp_path: Path) -> None:
    odd = tmp_path / "o'dd (ü) $x"
    (odd / "out").mkdir(parents=True)
    (odd / "own.cuh").write_text("#define VALUE 7\n")
    source = build.Source('#include "own.cuh"\n' + FILL, "fi'll", odd / "fi'll.cu")
    made, _ = cubin(source, "80", odd / "out")
    assert made.parent == odd / "out" and made.stat().st_size > 0


# ---- compilers' messages ----------------------------------------------------------------------

COMPILERS = ["sim", pytest.param("nvcc", marks=needs_nvcc), ENGINES[1]]


def failure(path: Path, compiler: str, folder: Path) -> str:
    """Build a kernel that does not compile, and return the message."""
    with pytest.raises(BuildError) as error:
        if compiler == "nvcc":
            (folder / "out").mkdir()
            cubin(build.Source(path.read_text(), path.stem, path), "80", folder / "out")
        else:
            load(path, engine=compiler).build()
    return short_with_a_log(error)


def short_with_a_log(error: pytest.ExceptionInfo[BuildError]) -> str:
    """Return the message. It has at most 14 lines; the last one has the path of the whole log."""
    lines = str(error.value).splitlines()
    assert len(lines) <= 14, str(error.value)
    if "full log" in lines[-1]:
        assert Path(lines[-1].removeprefix("full log: ")).stat().st_size > 0
    return str(error.value)


def caret(message: str, number: int) -> str:
    """Return the text of the quoted line from the caret on."""
    lines = message.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{number:5} | "))
    assert re.fullmatch(r" {5} \| +\^", lines[at + 1])
    return lines[at][lines[at + 1].index("^") :]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_compile_errors_quote_their_lines(fill: Path, compiler: str, tmp_path: Path) -> None:
    """In a header and in the kernel; the caret is right also after tabs and macros."""
    header = fill.with_name("broken.cuh")
    header.write_text("#pragma once\n\n__device__ float half(float v) { return v / two; }\n")
    text = FILL.replace("    if (i < count)", "\tif (i < count && VALUE + VALUE >\ti_ + i)")
    fill.write_text('#include "broken.cuh"\n' + text)
    lines = fill.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "i_" in line)
    message = failure(fill, compiler, tmp_path)
    assert message.startswith(f"{fill} did not compile\n") and "\nfull log: " in message
    assert re.search(rf"{header}:3: .*two", message) and caret(message, 3).startswith("two;")
    assert re.search(rf"{fill}:{number}: .*i_", message)
    assert caret(message, number).startswith("i_ + i)")
    for beside in (number - 1, number + 1):
        assert f"{beside:5} | {lines[beside - 1]}" in message
    assert "ninja" not in message.lower()


def test_a_header_that_the_simulator_lacks_is_told_from_a_mistake(fill: Path) -> None:
    fill.write_text("#include <curand_kernel.h>\n" + FILL)
    with pytest.raises(
        BuildError, match=r"use a GPU\n.*the simulator has only .*cublas_v2.h, .*cuda_runtime.h"
    ):
        load(fill, engine="sim").build()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_many_errors_are_counted_not_shown(fill: Path, compiler: str, tmp_path: Path) -> None:
    wrong = "".join(f"    wrong_{i} = {i};\n" for i in range(30))
    fill.write_text(FILL.replace("    const int64_t i =", wrong + "    const int64_t i ="))
    message = failure(fill, compiler, tmp_path)
    assert "wrong_0" in message and "wrong_1" in message and "wrong_7" not in message
    assert re.search(r"\nand \d+ more\n", message)


def test_kernels_of_one_name_have_logs_of_their_own(tmp_path: Path) -> None:
    logs = []
    for folder, wrong in (("a", "first"), ("b", "second"), ("b", "third")):
        path = tmp_path / folder / "fill.cu"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            FILL.replace("    const int64_t i =", f"    {wrong} = 1;\n    const int64_t i =")
        )
        with pytest.raises(BuildError) as error:
            load(path, engine="sim").build()
        logs.append(Path(str(error.value).rpartition("full log: ")[2]))
    for log, wrong in zip(logs, ("first", "second", "third"), strict=True):
        assert wrong in log.read_text()


INCLUDE = '#include "convlab.cuh"\n'
INVALID = {  # the old text, the new one, and the first line of the message
    "header": (
        INCLUDE,
        '#include "tenzor.cuh"\n',
        r":\d+: .*tenzor\.cuh(.*\n)*.*did you mean tensor.cuh",
    ),
    "torch": (
        INCLUDE,
        "#include <torch/extension.h>\n",
        r":\d+: .*\n(.*\n)*no torch header is needed",
    ),
    "word": (
        "    const int64_t i",
        "    __half j; const int64_t i",
        r":\d+: .*\n(.*\n)*__half needs #include <cuda_fp16.h>",
    ),
    "brace": ("[i] = VALUE;", "[i] = VALUE; {", r":\d+: this { is never closed\n"),
    "brace above": (
        INCLUDE,
        "inline int one() {\n" + INCLUDE,
        r"cu:\d+: (this { is never|what stands)",
    ),
    "semicolon above": (
        INCLUDE,
        "constexpr int kOne = 1\n" + INCLUDE,
        r"fill.cu:\d+: the code above",
    ),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("what", INVALID)
def test_invalid_code_has_a_clear_message(
    fill: Path, compiler: str, what: str, tmp_path: Path
) -> None:
    old, new, message = INVALID[what]
    assert FILL.count(old) == 1
    fill.write_text(FILL.replace(old, new))
    assert re.search(rf"did not compile\n\S*{message}", failure(fill, compiler, tmp_path))


def test_a_file_in_kernels_is_named_from_the_repository() -> None:
    path = ROOT / "kernels" / "01_direct.cu"
    assert build.Source("", "01_direct", path).label == "kernels/01_direct.cu"
    with pytest.raises(BuildError) as error:
        load("01_direct@THREADS=33", engine="sim").build()
    assert "kernels/01_direct.cu:" in str(error.value)
    assert str(ROOT) not in str(error.value).rpartition("full log")[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_entry_point_or_one_without_c_linkage(fill: Path, engine: str) -> None:
    for text in (FILL.partition("CONVLAB_ENTRY")[0], FILL.replace("CONVLAB_ENTRY ", "")):
        fill.write_text(text)
        message = failure(fill, engine, fill.parent)
        assert "no entry point" in message and "conv2d(const ConvProblem*" in message
        assert "kernels/convlab.cuh" in message
    line = FILL.partition("conv2d(")[0].count("\n") + 1
    assert f"line {line} has no CONVLAB_ENTRY" in message
    for old, new, told in (
        (
            "const char* conv2d",
            "void conv2d",
            "returns void, but must return const char.*or nullptr",
        ),
        ("size_t workspace_bytes, ", "", "has 7 parameters, but must have 8"),
    ):
        fill.write_text(FILL.replace(old, new).replace("return launch", "if (0) launch"))
        with pytest.raises(BuildError, match=rf":{line}: conv2d .*{told}"):
            load(fill, engine=engine).build()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_undefined_function_is_named(engine: str) -> None:
    source = "void nowhere();\n" + FILL.replace(
        "    return launch", "    nowhere();\n    return launch"
    )
    with pytest.raises(BuildError, match=r"linked\.cu .*nowhere"):
        convlab.compile(source, name="linked", engine=engine)


# ---- missing tools ----------------------------------------------------------------------------


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Change the places where tools are searched, and search anew before and after the test."""
    looked_up = (toolchain.cuda, toolchain.version)
    with monkeypatch.context() as patch:
        for tool in looked_up:
            tool.cache_clear()
        yield patch
    for tool in looked_up:
        tool.cache_clear()


def test_no_compiler(fill: Path, tools: pytest.MonkeyPatch) -> None:
    tools.setenv("CXX", "/nonexistent/c++")
    message = failure(fill, "sim", fill.parent)
    assert "no C++ compiler: /nonexistent/c++ is not on PATH" in message
    assert "apt-get install g++" in message and "set CXX" in message


def test_no_ninja(fill: Path, tools: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fill.write_text(FILL + f"// {tmp_path}\n")  # not built before
    compiler = toolchain.require_host_compiler()
    tools.setenv("PATH", str(compiler.parent) if not (compiler.parent / "ninja").exists() else "")
    tools.setenv("CXX", str(compiler))
    tools.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    message = failure(fill, "sim", tmp_path)
    assert "no ninja" in message and "pip install -r requirements.txt" in message


def test_no_nvcc(fill: Path, tools: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools.setattr(toolchain, "toolkits", lambda: iter(()))
    message = failure(fill, "nvcc", tmp_path)
    assert "no nvcc" in message and "CUDA_HOME" in message and 'engine="sim"' in message


def test_importing_convlab_compiles_nothing_nor_loads_a_compiler(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, convlab.nn
        assert not {"torch.utils.cpp_extension", "torch._dynamo"} & set(sys.modules)
        import torch
        assert not torch.cuda.is_initialized()
    """)
    environment = os.environ | {"CONVLAB_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0 and not (tmp_path / "cache").exists()


def test_a_later_process_finds_the_header_in_a_folder_of_an_odd_name(tmp_path, capfd):
    folder = tmp_path / "in two words"
    folder.mkdir()
    (folder / "put.cuh").write_text(
        "__device__ inline void put(float* y, int64_t i, float v) {\n    y[i + 1] = v;\n}\n"
    )
    text = (ROOT / "kernels" / "01_direct.cu").read_text()
    text, stores = re.subn(r"g_y\[(\w+)\] = (.*);", r"put(g_y, \1, \2);", text)
    assert stores == 1
    head = '#include "convlab.cuh"\n'
    (folder / "past.cu").write_text(text.replace(head, head + '#include "put.cuh"\n'))
    words = ["check", str(folder / "past.cu"), "--problem", "N1 C1 H4 W4 K1 R3 S3"]
    words += ["--json", "--engine", "sim"]
    assert main(words) == 1
    done = subprocess.run(  # which finds it built
        [sys.executable, "-m", "convlab", *words], cwd=ROOT, capture_output=True, text=True
    )
    for told in (capfd.readouterr().out, done.stdout):
        assert f'"file": "{folder / "put.cuh"}"' in told and '"line": 2' in told


def test_a_path_may_have_any_characters(tmp_path, monkeypatch):
    source = (KERNEL_DIR / "01_direct.cu").read_text()
    monkeypatch.chdir(tmp_path)
    for name in ("k at@x.cu", "a:b.cu", "N1.cu", "K=8.cu", "new\nline.cu", "é.cu"):
        Path(name).write_text(source)
        for text in (name, str(tmp_path / name)):
            assert resolve(text, "sim").source == source
        assert resolve(f"{name}@THREADS=64", "sim").path == tmp_path / name
