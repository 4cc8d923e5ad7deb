"""Create the error for a source that did not compile: the first messages, with their lines."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..arguments import hint
from ..errors import BuildError
from ..kernel.catalog import KERNEL_DIR
from ..show.long_text import write_log
from .borrowed_macros import instead_of
from .compiler_messages import Message, messages, quoted
from .plain_paths import real
from .source import INCLUDE, Source

_SHOWN_ERRORS = 2
# The most characters of a compiler's line in a message.
_LONGEST_LINE = 400
_SHOWN_LOG_LINES = 6
# The errors of a text that is incomplete, for example above an #include.
_CUT_SHORT = re.compile(r"expected|.*(declaration|definition|specification).* (at block|not all)")
# The header that declares a name.
_DECLARED_IN = {
    r"(__)?nv_bfloat\w+": "<cuda_bf16.h>",
    r"__half2?": "<cuda_fp16.h>",
    "cooperative_groups": "<cooperative_groups.h>",
    r"__pipeline_\w+": "<cuda_pipeline.h>",
    r"cublas\w+": "<cublas_v2.h>",
    r"ConvProblem|CONVLAB_ENTRY": '"convlab.cuh"',
}
# What compilers, the linker and ninja print if this machine lacks memory, processes or files.
_MACHINE = re.compile(
    r"Killed signal terminated program|out of memory allocating|virtual memory exhausted"
    r"|(?:error|fatal|fork|vfork|posix_spawn|cannot execute)\b.*(?:No space left on device"
    r"|Too many open files|Cannot allocate memory|Resource temporarily unavailable"
    r"|File too large|Disk quota exceeded|Read-only file system)|File size limit exceeded"
    r"|internal compiler error: [^\n]*"
)
# A name that a compiler does not know: g++, and nvcc.
_UNKNOWN = re.compile(r"‘(\w+)’ was not declared|identifier \"(\w+)\" is undefined")
_TORCH = re.compile(r'# *include *[<"](torch|ATen|c10|pybind11)/|\b(torch|at)::|PYBIND11_MODULE')


def compile_error(source: Source, log: str, label: str = "") -> BuildError:
    """Return the error for a compiler's log: the first messages, with their lines.

    Parameters
    ----------
    source
        The source that did not compile.
    log
        The whole output of the compiler.
    label
        The name for the message; by default the source's.
    """
    log = real(log)
    path = _write_log(source, log)
    texts = {str(path): text for path, (_, text) in source.headers().items()}
    texts[source.label] = source.text
    errors = [message for message in dict.fromkeys(messages(log)) if message.kind == "error"]
    if errors and (incomplete := _incomplete_above_include(source, errors[0], texts)):
        errors.insert(0, incomplete)
    lines = [_heading(label or source.label, errors, log)]
    for error in errors[:_SHOWN_ERRORS]:
        lines.append(f"{_short(error.file)}:{error.line}: {_cut(error.text)}")
        lines += quoted(texts.get(error.file), error.line, error.place)
    if len(errors) > _SHOWN_ERRORS:
        lines.append(f"and {len(errors) - _SHOWN_ERRORS} more")
    if not errors and "undefined reference" not in log:
        last = [line for line in log.splitlines() if line.strip()][-_SHOWN_LOG_LINES:]
        lines += map(_cut, last)
    lines += _advice(source, errors)
    places = [(error.file, error.line, error.text) for error in errors]
    if path is not None:
        lines.append(f"full log: {path}")
    text = "\n".join(lines)
    lack = _MACHINE.search(log)
    # A compiler that cannot write reports so at a line of the source.
    if lack and all(_MACHINE.search(f"error: {error.text}") for error in errors):
        # The compiler did not judge the source.
        return BuildError(
            f"the compiler could not run on this machine: {lack[0]}\n{text}", kind="not run"
        )
    return BuildError(text, places)


def _write_log(source: Source, log: str) -> Path | None:
    """Write the whole output of a compiler to the cache; return the file, or None on a full disk.

    Each source has a file of its own: processes that build different kernels of one name
    at a time do not write over each other's log. The file appears whole.
    """
    try:
        return write_log(source.name, log, key=f"{source.label}\n{source.text}")
    except OSError:
        return None


def _cut(line: str) -> str:
    """Return a line of a compiler for a message; a long name in it is cut to 80 characters."""
    line = re.sub(r"\S{81,}", lambda word: f"{word[0][:79]}…", line)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def _heading(label: str, errors: Sequence[Message], log: str) -> str:
    """Return the first line of the error's text."""
    if errors:
        return f"{label} did not compile"
    if undefined := re.search(r"undefined reference to .*", log):
        return f"{label} does not link: {_cut(undefined[0])}"
    return f"{label} did not build"


def _short(file: str) -> str:
    """Return the short name of a file for messages: kernels/convlab.cuh."""
    with contextlib.suppress(ValueError):
        return str(Path(file).relative_to(KERNEL_DIR.parent))
    return file


def _incomplete_above_include(
    source: Source, first: Message, texts: Mapping[str, str]
) -> Message | None:
    """Return the actual error if the compiler blames a header for an incomplete text above it."""
    users_own = first.file in texts and first.file != str(KERNEL_DIR / "convlab.cuh")
    if users_own or not _CUT_SHORT.match(first.text):
        return None
    include = INCLUDE.search(source.text)
    if include is None:
        return None
    line = source.text.count("\n", 0, include.start(1)) + 1
    text = "the code above this #include is incomplete: a ; or a closing brace is missing"
    return Message(source.label, line, None, "error", text)


def _advice(source: Source, errors: Sequence[Message]) -> Iterator[str]:
    """Yield advice about includes, and about macros that the source does not define."""
    texts = "\n".join(error.text for error in errors)
    if errors and _TORCH.search(source.text):
        yield "no torch header is needed or available: conv2d gets raw pointers, see convlab.cuh"
    for name in re.findall(r"([\w./-]+): No such file", texts):
        if f'"{name}"' in source.text:
            folders = (source.folder, KERNEL_DIR)
            near = [path.name for folder in folders for path in folder.glob("*.*h")]
            yield (f"{name} must be next to the kernel, or in convlab's kernels/{hint(name, near)}")
    for word in dict.fromkeys(re.findall(r"[‘\"'](\w+)", texts)):
        headers = [header for name, header in _DECLARED_IN.items() if re.fullmatch(name, word)]
        if headers and headers[0][1:-1] not in source.text:
            yield f"{word} needs #include {headers[0]}"
    # What to write returns an error text, as conv2d does and a function of torch does not.
    of_torch = _TORCH.search(source.text) is not None
    for unknown in () if of_torch else dict.fromkeys(map("".join, _UNKNOWN.findall(texts))):
        if (advice := instead_of(unknown)) is not None:
            yield advice
