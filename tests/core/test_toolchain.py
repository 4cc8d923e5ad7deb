"""Finding tools and the cache folder, on machines that differ from this one."""

import errno
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from convlab.core.builds import cache
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


def shared_group(chosen: Path, patch: pytest.MonkeyPatch, members: list[str]) -> None:
    """Let the folder be writable by the user's own group, which has these members."""
    chosen.chmod(0o770)
    patch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=os.getgid()))
    group = SimpleNamespace(gr_name="me", gr_mem=members)
    patch.setattr(grp, "getgrgid", lambda _: group)


def foreign_link(chosen: Path, patch: pytest.MonkeyPatch) -> None:
    """Replace the folder by another user's link to a folder that is ours."""
    chosen.rename(chosen.with_name("target"))
    chosen.symlink_to("target")
    status = SimpleNamespace(st_uid=12345, st_mode=stat.S_IFLNK | 0o777)
    patch.setattr(type(chosen), "lstat", lambda path: status)


# The reason why a folder is not used, and what makes it unusable.
UNUSABLE = {
    "is a file, or": lambda chosen, patch: chosen.touch(),
    "is inside a file": lambda chosen, patch: chosen.parent.touch(),
    "is writable by other users": lambda chosen, patch: chosen.chmod(0o777),
    "belongs to another user": lambda chosen, patch: patch.setattr(os, "geteuid", lambda: -1),
    "`chmod go-w ": lambda chosen, patch: chosen.chmod(0o777),
    "could plant a library": lambda chosen, patch: shared_group(chosen, patch, ["me", "mate"]),
    "because ": lambda chosen, patch: chosen.parent.chmod(0o777),
    "is a link that belongs": lambda chosen, patch: foreign_link(chosen, patch),
    "mounted noexec": lambda chosen, patch: patch.setattr(
        toolchain, "_is_noexec", lambda folder: folder == chosen
    ),
    "is not writable": lambda chosen, patch: patch.setattr(os, "access", lambda *_: False),
    "cannot be created": None,
}


@pytest.mark.parametrize("reason", UNUSABLE)
def test_an_unusable_folder(anew: pytest.MonkeyPatch, tmp_path: Path, reason: str) -> None:
    """A private folder replaces it from then on, and the warning names the variable."""
    chosen = tmp_path / "above" / "chosen" if UNUSABLE[reason] else Path("/proc/convlab")
    if reason != "is inside a file":
        chosen.parent.mkdir(exist_ok=True)
    if reason not in ("is a file, or", "is inside a file", "cannot be created"):
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


def test_a_group_of_ones_own_may_write(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With umask 002 every folder is writable by a group in which the user is alone."""
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    shared_group(chosen, anew, [])
    assert cache_for(anew, chosen) == (chosen, "")
    anew.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="x", pw_gid=os.getgid()))
    assert "`chmod go-w " in cache_for(anew, chosen)[1]


def test_no_folder_at_all(anew: pytest.MonkeyPatch, tmp_path: Path) -> None:
    anew.setattr(toolchain, "_is_noexec", lambda folder: True)
    with pytest.raises(BuildError, match="noexec.*CONVLAB_CACHE"):
        cache_for(anew, tmp_path / "chosen")


# ---- entries of the cache -----------------------------------------------------------------------


@pytest.fixture
def built(anew: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], bytes]:
    """Return a function that builds as a new process would, and returns the library."""
    anew.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))

    def make(folder: Path) -> cache.BuildOutput:
        (folder / "out").write_bytes(b"honest")
        return cache.BuildOutput(folder / "out")

    def build() -> bytes:
        cache._known.clear()
        return cache.build(lambda: cache.Key("entry"), make).library.read_bytes()

    assert build() == b"honest"
    return build


def plant(entry: Path) -> None:
    """Write another library into an entry, with a record that fits."""
    (entry / "kernel.so").write_bytes(b"planted")
    record = {"library": hashlib.sha256(b"planted").hexdigest()}
    (entry / "made.json").write_text(json.dumps(record))


def by_link(entry: Path) -> None:
    entry.rename(entry.with_name("elsewhere"))
    plant(entry.with_name("elsewhere"))
    entry.symlink_to("elsewhere")


def by_a_linked_file(entry: Path) -> None:
    plant(entry)
    (entry / "kernel.so").rename(entry / "other")
    (entry / "kernel.so").symlink_to("other")


def by_mode(entry: Path) -> None:
    plant(entry)
    entry.chmod(0o777)


def by_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("a file")


def by_brackets(entry: Path) -> None:
    plant(entry)
    (entry / "made.json").write_text("[" * 100_000)


def by_half(entry: Path) -> None:
    (entry / "kernel.so").write_bytes(b"hon")


def by_type(entry: Path) -> None:
    (entry / "made.json").write_text("7")


SPOILT = [by_link, by_a_linked_file, by_mode, by_a_file, by_brackets, by_half, by_type]


@pytest.mark.parametrize("spoil", SPOILT)
def test_an_entry_that_is_not_ones_own_is_built_again(
    built: Callable[[], bytes], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "cache" / "entry")
    assert built() == b"honest"
    assert built() == b"honest"


def test_an_entry_of_another_user(
    built: Callable[[], bytes], anew: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One who could once write to the folder may have left an entry there."""
    entry = tmp_path / "cache" / "entry"
    plant(entry)
    assert built() == b"planted"  # nothing tells it from one's own
    assert cache._is_sound(entry)
    anew.setattr(os, "geteuid", lambda: 12345)
    assert not cache._is_sound(entry)


@pytest.mark.parametrize(
    "code, says",
    [
        (errno.ENOSPC, "free some space"),
        (errno.EMFILE, "raise `ulimit -n`"),
        (errno.EACCES, "CONVLAB_CACHE"),
    ],
)
def test_a_build_that_cannot_be_stored(
    built: Callable[[], bytes], tmp_path: Path, code: int, says: str
) -> None:
    def make(folder: Path) -> cache.BuildOutput:
        raise OSError(code, os.strerror(code), "kernel.so")

    with pytest.raises(BuildError, match=f"cannot build in .*{os.strerror(code)}.*{says}"):
        cache.build(lambda: cache.Key("other"), make)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["entry"]


def test_what_cannot_be_replaced_is_not_loaded(
    built: Callable[[], bytes], anew: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(tmp_path / "cache" / "entry")
    (tmp_path / "cache" / "entry").chmod(0o777)
    anew.setattr(cache, "_remove", lambda path: None)
    with pytest.raises(BuildError, match="entry cannot be replaced by a build .*: remove it"):
        built()
