"""Tell what the simulator lacks from a compiler's errors: the fourth outcome, "not simulated".

A kernel that the simulator's compiler rejects is incorrect CUDA, or correct CUDA of which the
simulator lacks a part. The errors tell the two apart. A refused function names itself
(``SIM_REFUSED`` in include/sim.h); a missing header or name of CUDA is one that the simulator lacks.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..core.builds.borrowed_macros import instead_of
from ..core.errors import BuildError, NotSimulated
from ..core.machine import toolchain

# Refused by a function of the simulator's headers. The text says why.
_REFUSED = re.compile(r"call to ‘(?P<name>.+?)’ declared with attribute error: (?P<why>.*?);")
_ASSERTED = re.compile(r"static assertion failed: (?P<why>.*?); the simulator does not support")
# The libraries and headers that come with CUDA.
_HEADER = re.compile(
    r"(?P<name>(?:cu|nv|sm_|device_|channel_|texture_|surface_|vector_|driver_)\w*\.h(?:pp)?|mma\.h|"
    r"crt/\S+|cooperative_groups\S*|(?:cub|cuda|thrust|cutlass|cute|cooperative_groups|nvtx3)/\S+)"
    r": No such file"
)
_MISSING = re.compile(
    r"‘(?:\w+::)*(?P<name>\w+)(?:<.*>)?’ (?:was not declared|does not name a|has not been declared|"
    r"is not a member of|is not a type|was not declared|is not a class template)|"
    r"‘(?:struct|class) (?P<of>cuda\w+|cooperative_groups::\S+|cuda::\S+|nvcuda::\S+)’ has no "
    r"member named ‘(?P<member>\w+)’|‘(?P<space>nvcuda|cub|thrust|cute|cutlass)’ (?:has not been|is "
    r"not a|was not)"
)
_CUDA_NAME = re.compile(
    r"cuda[A-Z_]\w*|cuda|cu[A-Z]\w*|cublas\w*|curand\w*|cudnn\w*|cusparse\w*|cusolver\w*|cufft\w*|"
    r"(?:CUBLAS|CUDA|CUDART|CURAND|CUDNN|CUSPARSE|CUFFT|CU)_\w+|nvtx\w+|nv_\w+|__[a-z]\w+|"
    r"(?:tex|surf|tld4)[1-3C]\w*|this_\w+|nvcuda|wmma|thrust|cub|cutlass|cute|v(?:min|max|abs|add)\w*"
)
# Their headers are not part of the toolkit's smallest wheel, so that a name cannot be looked up.
_OF_LIBRARY = re.compile(
    r"cu(?:blas|rand|dnn|sparse|solver|fft|tlass|b\b|te)|thrust|nv|wmma|CU(?!DA)[A-Z]"
)
_SHOWN = 3


def as_not_simulated(error: BuildError, headers: Sequence[Path]) -> BuildError:
    """Return a `NotSimulated` for an error that names a part of CUDA; else the error itself.

    ``headers`` are the simulator's folders of headers; a message about a header lists theirs.
    """
    # A kernel that includes torch's headers does not build for a GPU either.
    if any("/torch/include/" in file for file, *_ in error.places):
        return error
    found: dict[str, tuple[str, str, int]] = {}
    for file, line, text in error.places:
        for name, why in _named(text, headers):
            found.setdefault(name, (why, file, line))
    if not found:
        return error
    lines = []
    for name, (why, file, line) in list(found.items())[:_SHOWN]:
        lines.append(f"{file}:{line}: {why}; the simulator does not support it: use a GPU")
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more: {', '.join(list(found)[_SHOWN:][:8])}")
    if any(why.startswith("this header") for why, *_ in found.values()):
        known = sorted(path.name for folder in headers for path in folder.glob("[cvm]*.h"))
        lines.append(f"of CUDA's headers the simulator has only {', '.join(known)}")
    _, _, log = str(error).rpartition("\nfull log: ")
    heading = str(error).splitlines()[0].replace("did not compile", "is not simulated")
    text = "\n".join([heading, *lines, f"full log: {log}"])
    return NotSimulated(text, error.places, list(found))


def _named(text: str, headers: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield what an error's text says that the simulator lacks: a name, and a sentence."""
    if refused := _REFUSED.search(text):
        function = re.sub(r"<.*", "", refused["name"]).rpartition(" ")[2]
        yield function.partition("(")[0], refused["why"]
    elif asserted := _ASSERTED.search(text):
        yield asserted["why"], asserted["why"]
    elif header := _HEADER.search(text):
        yield header["name"], f"this header is <{header['name']}>"
    elif missing := _MISSING.search(text):
        if missing["member"]:
            yield (
                f"{missing['of']}::{missing['member']}",
                f"{missing['of']} has {missing['member']}",
            )
        elif missing["space"]:
            yield missing["space"], f"{missing['space']} is a library of CUDA"
        elif _CUDA_NAME.fullmatch(missing["name"]) and _is_lacking(missing["name"], headers):
            yield missing["name"], f"{missing['name']} is a name of CUDA"


def _is_lacking(name: str, headers: Sequence[Path]) -> bool:
    """Return whether CUDA declares a name that no header of the simulator has.

    If one of them has it, the kernel only lacks an #include. Without a toolkit, the spelling of a name
    decides whether it is CUDA's; but a macro like CUDA_CHECK is the author's own.
    """
    if instead_of(name) is not None:
        return False
    word = re.compile(rb"\b" + name.encode() + rb"\b")
    if _is_in_headers(word, headers):
        return False
    toolkit = toolchain.cuda()
    if toolkit is None or _OF_LIBRARY.match(name):
        return True
    return _is_in_headers(word, [toolkit.home / "include"])


def _is_in_headers(word: re.Pattern[bytes], folders: Sequence[Path]) -> bool:
    """Return whether a header below one of the folders has a word."""
    paths = (path for folder in folders for path in folder.rglob("*.h*"))
    return any(word.search(path.read_bytes()) for path in paths if path.is_file())
