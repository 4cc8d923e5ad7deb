"""Paths that every tool can read: links to those that a shell, ninja or nvcc would misread."""

import contextlib
import functools
import hashlib
import os
import re
import shlex
import tempfile
import time
from pathlib import Path

from ..machine import toolchain

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=,./-]*")
_LINKS = "convlab-links-"
# The path that each link of this process stands for.
_linked: dict[str, str] = {}


def shell_quoted(flag: str) -> str:
    """Return a flag as ninja's file has it for a shell."""
    return shlex.quote(flag).replace("$", "$$")


def plain(path: Path) -> Path:
    """Return the path, or a link to it if a shell, ninja or nvcc would misread it."""
    if _PLAIN.fullmatch(str(path)):
        return path
    link = _links() / hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    with contextlib.suppress(FileExistsError):
        link.symlink_to(path)
    _linked[str(link)] = str(path)
    return link


def real(text: str) -> str:
    """Return the text with each link replaced by the path that it stands for."""
    for link, path in list(_linked.items()):
        text = text.replace(link, path)
    return text


def unlinked(file: str) -> str:
    """Return the file that a library's debug information names, perhaps through a link."""
    if f"/{_LINKS}" not in file or not Path(file).is_relative_to(_links()):
        return file
    target = Path(os.path.realpath(file))
    # If the linked folder is gone, the link leads nowhere, and the name alone is left.
    return target.name if target.is_relative_to(_links()) else str(target)


def plain_temporary() -> str:
    """Return the folder of temporary files, or /tmp if some tool could not read its name."""
    folder = tempfile.gettempdir()
    return folder if _PLAIN.fullmatch(folder) else "/tmp"


@functools.cache
def _links() -> Path:
    """Return the folder of links. Kept libraries name it, so all processes of a user share it."""
    folder = Path(plain_temporary()) / f"{_LINKS}{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        # Another user's folder: its owner could change where links lead.
        return toolchain.temporary(str(folder.parent))
    for link in folder.iterdir():
        if not link.exists() and time.time() - link.lstat().st_mtime > 3600:
            link.unlink(missing_ok=True)
    return folder
