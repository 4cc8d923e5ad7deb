"""Finding tools and the cache folder, on machines that differ from this one."""

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

CACHED = ("cuda", "link_dir", "version", "_private")


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Clear the cached results of the toolchain, before and after the test."""

    def clear() -> None:
        for name in CACHED:
            getattr(toolchain, name).cache_clear()

    clear()
    yield monkeypatch
    monkeypatch.undo()
    clear()


def toolkit(home: Path, release: int) -> Path:
    """Create a folder that looks like a CUDA toolkit."""
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
def test_a_toolkit_that_does_not_match_is_reported(
    anew: pytest.MonkeyPatch, tmp_path: Path, wanted: tuple[int, int], advice: list[str]
) -> None:
    installed = [toolchain.Cuda(toolkit(tmp_path, 13000))] if wanted[0] == 12 else []
    anew.setattr(toolchain, "torch_cuda", lambda: wanted)
    anew.setattr(toolchain, "toolkits", lambda: iter(installed))
    with pytest.raises(BuildError) as raised:
        toolchain.require_cuda()
    for text in [*advice, "CUDA_HOME", 'engine="sim"']:
        assert text in str(raised.value)


# ---- libraries to link ------------------------------------------------------------------------


def test_links_made_by_many_at_once(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many threads ask at once, as in a first parallel build; each process has its own links."""
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


# ---- the cache folder -------------------------------------------------------------------------


def cache_for(monkeypatch: pytest.MonkeyPatch, chosen: Path | str) -> tuple[Path, str]:
    """Return the folder that is used when the user chooses this one, and the warning."""
    monkeypatch.setenv("CONVLAB_CACHE", str(chosen))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = toolchain.cache_dir()
    return folder, "".join(str(warning.message) for warning in caught)


def test_the_chosen_folder(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("here", "a b", "it's", "(x)", "ü", "deep/er"):
        assert cache_for(anew, tmp_path / name) == (tmp_path / name, "")
        assert (tmp_path / name).stat().st_mode & 0o077 == 0  # only for its owner


def test_no_chosen_folder_and_no_home(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME"):
        anew.delenv(name, raising=False)
    anew.setenv("HOME", str(tmp_path))
    assert toolchain.cache_dir() == tmp_path / ".cache" / "convlab"
    anew.setenv("CONVLAB_CACHE", "")  # empty counts as unset
    assert toolchain.cache_dir() == tmp_path / ".cache" / "convlab"

    def unknown(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    anew.setattr(Path, "expanduser", unknown)
    with pytest.warns(UserWarning, match="no home directory.*CONVLAB_CACHE"):
        folder = toolchain.cache_dir()
    assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
    shutil.rmtree(folder)


# The reason why a folder is not used, and what makes it unusable.
UNUSABLE = {
    "is a file, or": lambda chosen, patch: chosen.touch(),
    "is inside a file": lambda chosen, patch: chosen.parent.touch(),
    "is writable by other users": lambda chosen, patch: chosen.chmod(0o777),
    "belongs to another user": lambda chosen, patch: patch.setattr(os, "geteuid", lambda: -1),
    "is not writable": lambda chosen, patch: patch.setattr(os, "access", lambda *_: False),
    "cannot be created": None,
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_an_unusable_folder(anew: pytest.MonkeyPatch, tmp_path: Path, reason: str) -> None:
    """A private folder replaces it from then on, and the warning names the variable."""
    chosen = tmp_path / "above" / "chosen" if UNUSABLE[reason] else Path("/proc/convlab")
    if reason != "is inside a file":
        chosen.parent.mkdir(exist_ok=True)
    if reason in ("is writable by other users", "belongs to another user", "is not writable"):
        chosen.mkdir(mode=0o700)
    if UNUSABLE[reason]:
        UNUSABLE[reason](chosen, anew)
    folder, warning = cache_for(anew, chosen)
    assert folder != chosen and folder.stat().st_mode & 0o077 == 0
    assert reason in warning and str(chosen) in warning and "CONVLAB_CACHE" in warning
    anew.undo()
    anew.setenv("CONVLAB_CACHE", str(folder))
    assert toolchain.cache_dir() == folder
    shutil.rmtree(folder)
