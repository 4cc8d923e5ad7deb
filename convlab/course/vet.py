"""Refuse files that do more than a lab needs, before they are compiled and before they are run.

A kernel of a lab includes convlab's headers, defines CUDA kernels and an entry point, and calls the
CUDA runtime. A file that reads other files, writes assembly, changes how the compiler counts, or
calls the system is refused, with its line. This is the first of two walls. The second does not
depend on the text: the process that runs the kernel is confined (``convlab/sim/confine.py``).
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from ..core.builds.compile import exported
from ..core.errors import BuildError, ProblemError
from ..core.kernel.catalog import KERNEL_DIR
from ..core.kernel.kernel import load
from ..core.machine import toolchain

# The headers that a file may include, besides those in kernels/.
_HEADERS = {
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_pipeline.h",
    "cuda_pipeline_primitives.h",
    "mma.h",
    "cooperative_groups.h",
    "cstdint",
    "algorithm",
    "type_traits",
    "utility",
    "math.h",
    "cmath",
    "float.h",
    "cfloat",
    "stdint.h",
}
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"')
_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(\w*)[ \t]*(.*)$", re.MULTILINE)
_INCLUDED = re.compile(r'[<"]([^<>"]+)[>"][ \t]*$')
_DIRECTIVES = {
    "include",
    "define",
    "undef",
    "if",
    "ifdef",
    "ifndef",
    "elif",
    "else",
    "endif",
    "error",
    "pragma",
    "",
}
_PRAGMAS = re.compile(r"(?:unroll|nounroll|once)\b")
# What a text may not contain, and why.
_REFUSED = (
    (r"\b_*asm_*\b", "assembly: use the wrappers in convlab's headers"),
    (r"\b__attribute(?:__)?\b|\[\[", "attributes of the compiler"),
    (
        r"\b__(?:builtin|sync_|atomic|sanitizer|tsan|ubsan|cxa|gcc|gxx|gnu|extension)\w*",
        "compiler names",
    ),
    (r"\b_Pragma\b", "a pragma in a macro"),
    (r"\b(?:CONVLAB_SIMULATOR|__SANITIZE_\w+|__GNUC__|__has_\w+)\b", "a question where it runs"),
    (r"\bsim(?:_\w+|\s*::)", "names of the simulator"),
    (
        r"\b(?:cudaMemcpy(?!ToSymbol)\w*|cuda(?:MallocHost|MallocManaged|Host\w+|LaunchHostFunc)|"
        r"__managed__)",
        "data on the host: the kernels compute y on the device",
    ),
    (r"\bconst_cast\b", "a cast that makes constants writable"),
    (r"##|%:%:", "pasted names"),
    (r"\?\?[=/'()!<>-]|\\[uU][0-9a-fA-F]{4}", "characters that are written as others"),
    (r"\b(?:__FILE__|__TIME__|__DATE__|__COUNTER__|__INCLUDE_LEVEL__)\b", "a macro of the build"),
)
# The names with C linkage that a library may define. C++ names are of the file and the headers.
_ENTRIES = re.compile(r"conv2d(?:_\w+)?$")
# The beginnings of names of C++ functions, and of the compiler's runtime.
_OF_COMPILER = ("_Z", "__cxa_", "__gcclibcxx_", "__gxx_")
_LINKER = {"_init", "_fini", "__bss_start", "_edata", "_end"}
# Besides the names of the simulator's runtime, a library may use these: those that g++ inserts,
_INSERTED = re.compile(
    r"__cxa_(?:finalize|guard_\w+|begin_catch|end_catch|rethrow|pure_virtual|atexit)$|_ITM_\w+$|"
    r"__gxx_personality_v0$|__gmon_start__$|_Unwind_Resume$|__stack_chk_fail$|"
    r"_Z(?:nw|na|dl|da)|_ZTVN10__cxxabiv1|_ZNSt|_ZSt"
)
# plain C,
_PLAIN_C = {
    "memcpy",
    "memset",
    "memmove",
    "memcmp",
    "strlen",
    "printf",
    "puts",
    "putchar",
    "vprintf",
    "snprintf",
    "__printf_chk",
    "__snprintf_chk",
    "abort",
}
# and C's mathematics: one word, perhaps with an f.
_MATHEMATICS = re.compile(
    r"(?:a?(?:sin|cos|tan)h?|atan2|exp2?|expm1|log(?:2|10|1p)?|pow|sqrt|cbrt|hypot|fabs|fmod|floor|"
    r"ceil|l?l?round|l?l?rint|nearbyint|trunc|fma|fmin|fmax|copysign|ldexp|frexp|remainder|erfc?|"
    r"tgamma|lgamma|nan|scalbn)f?$"
)


def vet_source(source: str, name: str) -> None:
    """Raise ProblemError if a text has something that a lab's file may not have."""
    for line, reason in _refusals(source):
        raise ProblemError(
            f"{name}:{line}: a lab's file may not have {reason}; write the kernel without it"
        )


def _refusals(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text that are refused, and why."""
    if "\0" in source:
        yield 1, "zero bytes"
    # A backslash at the end of a line joins two lines, also within a word. Trigraphs come before.
    joined = re.sub(r"\\[ \t]*\r?\n", "", source)
    lost = joined != source

    def line_at(position: int) -> int:
        # In a text with joined lines the number is too small, but never wrong by much.
        return joined.count("\n", 0, position) + 1

    if lost and re.search(r"\w\\[ \t]*\r?\n\w", source):
        yield 1, "a word that goes on in the next line"
    code = _COMMENTS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), joined)
    if "/*" in code or "*/" in code:
        yield line_at(max(code.find("/*"), code.find("*/"))), "a comment without its end"
    for directive in _DIRECTIVE.finditer(code):
        yield from _directive(directive, line_at(directive.start()))
    plain = _STRINGS.sub('""', code)
    for pattern, reason in _REFUSED:
        if found := re.search(pattern, plain):
            line = plain.count("\n", 0, found.start()) + 1
            yield line, f"{reason} ({found[0].strip()[:40]})"
    if re.search(r'\b(?:u8|u|U|L)?R"', code):
        yield 1, "raw strings"


def _directive(directive: re.Match[str], line: int) -> Iterator[tuple[int, str]]:
    word, rest = directive.groups()
    if word not in _DIRECTIVES:
        yield line, f"#{word}"
    if word == "pragma" and not _PRAGMAS.match(rest):
        yield line, f"this pragma: {rest[:40]}"
    if word == "include":
        included = _INCLUDED.match(rest.strip())
        known = included and (included[1] in _HEADERS or _is_ours(included[1]))
        if not known:
            shown = included[1][:60] if included else rest[:60]
            yield line, f"#include of {shown}: only headers of convlab and CUDA"


def _is_ours(header: str) -> bool:
    """Return whether a header is one of kernels/, without any folder in its name."""
    return re.fullmatch(r"\w+\.cuh", header) is not None and (KERNEL_DIR / header).is_file()


def vet_library(library: Path, name: str) -> None:
    """Raise ProblemError if a built library defines or uses names that a kernel has no need for."""
    from ..sim.library import runtime

    # Newer compilers put parts of their C++ runtime into the library. A text may not name them.
    defined = [symbol for symbol in exported(library) if not symbol.startswith(_OF_COMPILER)]
    for symbol in sorted(defined):
        if symbol not in _LINKER and not _ENTRIES.match(symbol):
            raise ProblemError(
                f"{name} defines {symbol[:60]}, a variable or a function with C linkage; a lab's file "
                "defines conv2d only, and __global__ and __device__ functions without extern"
            )
    patterns = (_INSERTED, _MATHEMATICS)
    allowed = _PLAIN_C | exported(runtime()) | _used_by_a_shipped_kernel()
    for symbol in sorted(_undefined(library) - allowed):
        if not any(pattern.match(symbol) for pattern in patterns):
            raise ProblemError(
                f"{name} calls {symbol[:60]}; a lab's file may call the CUDA runtime and mathematics "
                "only: remove the call"
            )


@functools.cache
def _used_by_a_shipped_kernel() -> frozenset[str]:
    """Return the names that a kernel of ours uses, which are those of this machine's compiler.

    Some compilers put their C++ runtime into each library, and it calls other functions of C in each
    version.
    """
    return frozenset(_undefined(load("01_direct", engine="sim").build().library))


def _undefined(library: Path) -> set[str]:
    """Return the names that a library uses and does not define."""
    nm = toolchain.find("nm")
    if nm is None:
        raise BuildError("no nm on PATH; install binutils", kind="not run")
    done = toolchain.asked([str(nm), "-D", "--undefined-only", "--format=posix", str(library)])
    done.check_returncode()
    return {line.split()[0].partition("@")[0] for line in done.stdout.splitlines()}
