"""Where tools and builds are looked for, on machines unlike this one."""

import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convlab.machine import toolchain
from convlab.words.errors import BuildError

ROOT = Path(__file__).resolve().parent.parent
REMEMBERED = ("cuda", "link_dir", "version", "_private")


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What is looked for once is looked for anew, before and after."""

    def forget() -> None:
        for name in REMEMBERED:
            getattr(toolchain, name).cache_clear()

    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def toolkit(home: Path, release: int) -> Path:
    """A folder that looks like a CUDA toolkit."""
    for folder in ("bin", "include", "lib64"):
        (home / folder).mkdir(parents=True)
    (home / "bin" / "nvcc").write_text("#!/bin/sh\n")
    (home / "bin" / "nvcc").chmod(0o755)
    (home / "include" / "cuda_runtime.h").touch()
    text = f"#define CUDART_VERSION  {release}\n"
    (home / "include" / "cuda_runtime_api.h").write_text(text)
    for name in ("cudart", "cublas"):
        (home / "lib64" / f"lib{name}.so.{release // 1000}").touch()
    return home


# ---- nvcc fits torch --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "chosen"), [((12, 8), "old"), ((13, 0), "new"), ((12, 6), "old"), (None, "new")]
)
def test_nvcc_is_of_torchs_major_release(
    anew: pytest.MonkeyPatch, tmp_path: Path, wanted: tuple[int, int] | None, chosen: str
) -> None:
    anew.setenv("CUDA_HOME", str(toolkit(tmp_path / "new", 13000)))
    anew.setenv("CUDA_PATH", str(toolkit(tmp_path / "old", 12080)))
    anew.setattr(toolchain, "torch_cuda", lambda: wanted)
    assert toolchain.require_cuda().home == tmp_path / chosen
    assert toolchain.find("nvcc") == tmp_path / chosen / "bin" / "nvcc"


@pytest.mark.parametrize(("wanted", "advice"), [
    ((12, 8), ["fits torch's CUDA 12.8", "13.0 (", "install CUDA toolkit 12.8", "cuda-toolkit-12-8"]),
    ((13, 0), ["pip install -r requirements.txt"]),
])  # fmt: skip
def test_a_toolkit_that_does_not_fit_is_told(
    anew: pytest.MonkeyPatch, tmp_path: Path, wanted: tuple[int, int], advice: list[str]
) -> None:
    there = [toolchain.Cuda(toolkit(tmp_path, 13000), "PATH")] if wanted[0] == 12 else []
    anew.setattr(toolchain, "torch_cuda", lambda: wanted)
    anew.setattr(toolchain, "toolkits", lambda: iter(there))
    with pytest.raises(BuildError) as raised:
        toolchain.require_cuda()
    for text in [*advice, "CUDA_HOME", 'engine="sim"']:
        assert text in str(raised.value)


# ---- libraries to link ------------------------------------------------------------------------


def links(folder: Path) -> dict[str, Path]:
    return {path.name: path.resolve() for path in folder.iterdir()}


def test_links_made_by_many_at_once(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads and processes on an empty cache, as in a first parallel build."""
    home = toolkit(tmp_path / "cuda", 13000)
    anew.setenv("CUDA_HOME", str(home))
    anew.setattr(toolchain, "torch_cuda", lambda: (13, 0))
    anew.setattr(toolchain, "_wheels", list)
    made = toolchain.link_dir.__wrapped__
    for turn in range(25):
        anew.setenv("CONVLAB_CACHE", str(tmp_path / f"cache{turn}"))
        with ThreadPoolExecutor(8) as pool:
            folders = set(pool.map(lambda _: made(), range(8)))
        (folder,) = folders
        assert links(folder) == {
            f"lib{name}.so": home / "lib64" / f"lib{name}.so.13" for name in ("cudart", "cublas")
        }
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_links_made_by_many_processes(tmp_path: Path) -> None:
    home = toolkit(tmp_path / "cuda", 13000)
    script = textwrap.dedent("""
        from convlab.machine import toolchain
        toolchain.torch_cuda = lambda: (13, 0)
        toolchain._wheels = list
        print(sorted(path.name for path in toolchain.link_dir().iterdir()))
    """)
    environment = os.environ | {"CONVLAB_CACHE": str(tmp_path / "cache"), "CUDA_HOME": str(home)}
    command = [sys.executable, "-c", script]
    many = [subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(8)]  # fmt: skip
    assert {one.communicate()[0] for one in many} == {"['libcublas.so', 'libcudart.so']\n"}
    assert all(one.returncode == 0 for one in many)


# ---- where builds are kept --------------------------------------------------------------------


def kept(monkeypatch: pytest.MonkeyPatch, asked: Path | str) -> tuple[Path, str]:
    """The folder that is used when this one is asked for, and the warning."""
    monkeypatch.setenv("CONVLAB_CACHE", str(asked))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = toolchain.cache_dir()
    return folder, "".join(str(one.message) for one in caught)


def test_the_folder_asked_for(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("here", "a b", "it's", "(x)", "ü", "deep/er"):
        assert kept(anew, tmp_path / name) == (tmp_path / name, "")
        assert (tmp_path / name).stat().st_mode & 0o077 == 0  # its owner's alone


@pytest.mark.parametrize("unset", ["", None])
def test_empty_is_unset(anew: pytest.MonkeyPatch, tmp_path: Path, unset: str | None) -> None:
    anew.setenv("CONVLAB_CACHE", "") if unset == "" else anew.delenv("CONVLAB_CACHE", False)
    anew.delenv("XDG_CACHE_HOME", raising=False)
    anew.setenv("HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / ".cache" / "convlab"


def test_no_home(anew: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "CONVLAB_CACHE", "XDG_CACHE_HOME"):
        anew.delenv(name, raising=False)

    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    anew.setattr(Path, "expanduser", unknown)
    with pytest.warns(UserWarning, match="no home directory.*CONVLAB_CACHE"):
        folder = toolchain.cache_dir()
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    shutil.rmtree(folder)


@pytest.mark.parametrize(("case", "reason"), [
    ("a file", "is a file"), ("below a file", "is a file"), ("others write", "written by others"),
    ("another user", "another user"), ("unwritable", "cannot be written"),
    ("beyond root", "cannot be made"),
])  # fmt: skip
def test_what_cannot_be_used(
    anew: pytest.MonkeyPatch, tmp_path: Path, case: str, reason: str
) -> None:
    """Another folder is used, private, the same from then on, and the warning names the variable."""
    asked = tmp_path / "asked"
    if "file" in case:
        asked.touch()
        asked = asked / "below" if case == "below a file" else asked
    elif case == "beyond root":
        asked = Path("/proc/convlab")
        anew.setattr(os, "access", lambda path, mode: True)  # as it is to root
    else:
        asked.mkdir(mode=0o700)
    if case == "others write":
        asked.chmod(0o777)
    elif case == "another user":
        anew.setattr(os, "geteuid", lambda: asked.stat().st_uid + 1)
    elif case == "unwritable":
        anew.setattr(os, "access", lambda path, mode: False)
    folder, told = kept(anew, asked)
    assert folder != asked and folder.stat().st_mode & 0o077 == 0
    assert reason in told and str(asked) in told and "CONVLAB_CACHE" in told
    anew.undo()
    os.environ["CONVLAB_CACHE"] = str(folder)
    assert toolchain.cache_dir() == folder
    del os.environ["CONVLAB_CACHE"]
    shutil.rmtree(folder)
