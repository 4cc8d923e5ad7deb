"""Make paths readable for every tool: link to those that a shell, ninja or nvcc would misread."""

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
# The target of each link that this process uses.
_linked: dict[str, str] = {}


def shell_quoted(flag: str) -> str:
    """Return a flag quoted for the shell in a ninja file."""
    return shlex.quote(flag).replace("$", "$$")


def plain(path: Path) -> Path:
    """Return the path, or a link to it if a shell, ninja or nvcc would misread the path."""
    if _PLAIN.fullmatch(str(path)):
        return path
    link = _links() / hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    with contextlib.suppress(FileExistsError):
        link.symlink_to(path)
    _linked[str(link)] = str(path)
    return link


def real(text: str) -> str:
    """Return the text with each link replaced by its target."""
    for link, path in list(_linked.items()):
        text = text.replace(link, path)
    return text


def unlinked(file: str) -> str:
    """Return the file behind a path in a library's debug information, which may use a link."""
    if f"/{_LINKS}" not in file or not Path(file).is_relative_to(_links()):
        return file
    target = Path(os.path.realpath(file))
    # If the linked folder no longer exists, only the name is known.
    return target.name if target.is_relative_to(_links()) else str(target)


def plain_temporary() -> str:
    """Return the folder for temporary files, or /tmp if a tool would misread its name."""
    folder = tempfile.gettempdir()
    return folder if _PLAIN.fullmatch(folder) else "/tmp"


@functools.cache
def _links() -> Path:
    """Return the folder of links. Cached libraries refer to it, so a user's processes share it."""
    folder = Path(plain_temporary()) / f"{_LINKS}{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if not toolchain.is_yours(folder):
        # Another user could change the links.
        return toolchain.temporary(str(folder.parent))
    for link in folder.iterdir():
        if not link.exists() and time.time() - link.lstat().st_mtime > 3600:
            link.unlink(missing_ok=True)
    return folder
