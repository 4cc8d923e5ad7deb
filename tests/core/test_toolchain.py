"""Where tools and builds are looked for, on machines unlike this one."""

import os
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from convlab.core.errors import BuildError
from convlab.core.machine import toolchain

pytestmark = pytest.mark.pure

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


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        (
            (12, 8),
            ["fits torch's CUDA 12.8", "13.0 (", "install CUDA toolkit 12.8", "cuda-toolkit-12-8"],
        ),
        ((13, 0), ["pip install -r requirements.txt"]),
    ],
)
def test_a_toolkit_that_does_not_fit_is_told(
    anew: pytest.MonkeyPatch, tmp_path: Path, wanted: tuple[int, int], advice: list[str]
) -> None:
    there = [toolchain.Cuda(toolkit(tmp_path, 13000))] if wanted[0] == 12 else []
    anew.setattr(toolchain, "torch_cuda", lambda: wanted)
    anew.setattr(toolchain, "toolkits", lambda: iter(there))
    with pytest.raises(BuildError) as raised:
        toolchain.require_cuda()
    for text in [*advice, "CUDA_HOME", 'engine="sim"']:
        assert text in str(raised.value)


# ---- libraries to link ------------------------------------------------------------------------


def test_links_made_by_many_at_once(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads, as in a first parallel build; a process has links of its own."""
    home = toolkit(tmp_path / "cuda", 13000)
    anew.setenv("CUDA_HOME", str(home))
    anew.setattr(toolchain, "torch_cuda", lambda: (13, 0))
    anew.setattr(toolchain, "_wheels", list)
    with ThreadPoolExecutor(8) as many:
        folders = [*many.map(lambda _: toolchain.link_dir(), range(32))]
    for folder in folders:
        assert {path.name: path.resolve() for path in folder.iterdir()} == {
            f"lib{name}.so": home / "lib64" / f"lib{name}.so.13" for name in ("cudart", "cublas")
        }


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


def test_neither_asked_for_nor_at_home(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME"):
        anew.delenv(name, raising=False)
    anew.setenv("HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / ".cache" / "convlab"
    anew.setenv("CONVLAB_CACHE", "")  # empty is unset
    assert toolchain.cache_dir() == tmp_path / ".cache" / "convlab"

    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    anew.setattr(Path, "expanduser", unknown)
    with pytest.warns(UserWarning, match="no home directory.*CONVLAB_CACHE"):
        folder = toolchain.cache_dir()
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    shutil.rmtree(folder)


UNUSABLE = {  # what is done to the folder asked for, and why it is not used then
    "is a file": lambda asked, patch: asked.touch(),
    "lies below one": lambda asked, patch: asked.parent.touch(),
    "written by others": lambda asked, patch: asked.chmod(0o777),
    "another user": lambda asked, patch: patch.setattr(os, "geteuid", lambda: -1),
    "cannot be written": lambda asked, patch: patch.setattr(os, "access", lambda *_: False),
    "cannot be made": None,
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_what_cannot_be_used(anew: pytest.MonkeyPatch, tmp_path: Path, reason: str) -> None:
    """Another folder is used, private, the same from then on, and the warning names the variable."""
    asked = tmp_path / "above" / "asked" if UNUSABLE[reason] else Path("/proc/convlab")
    if reason != "lies below one":
        asked.parent.mkdir(exist_ok=True)
    if reason in ("written by others", "another user", "cannot be written"):
        asked.mkdir(mode=0o700)
    if UNUSABLE[reason]:
        UNUSABLE[reason](asked, anew)
    folder, told = kept(anew, asked)
    assert folder != asked and folder.stat().st_mode & 0o077 == 0
    assert reason in told and str(asked) in told and "CONVLAB_CACHE" in told
    anew.undo()
    anew.setenv("CONVLAB_CACHE", str(folder))
    assert toolchain.cache_dir() == folder
    shutil.rmtree(folder)
