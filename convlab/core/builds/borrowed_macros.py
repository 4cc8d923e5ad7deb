"""Tell what to write for a macro that other repositories define for themselves.

CUDA has no macro ``CUDA_CHECK``: each repository defines its own. A kernel that was taken from one
without this line does not compile on any machine.
"""

import re

_CONDITION = 'write if (!(condition)) return "the reason"; in conv2d, which returns an error text'
_BELOW = "write below the #include lines: #define {0}"
_CHECK = "if (cudaError_t status = (call)) return cudaGetErrorString(status);"
# The libraries' calls return other types than cudaError_t.
_CHECK_OF_A_LIBRARY = 'if (call) return #call " failed";'
_OF_A_LIBRARY = re.compile(r"(?i)\w*(cublas|cudnn|curand|cusparse|cusolver|cufft|cutlass)")
# What to write, by the name, the first that fits: {0} is the name, {1} the check of a call.
_INSTEAD = {
    r"(TORCH|AT|TV)_(INTERNAL_)?(CHECK|ASSERT)\w*|CHECK_(INPUT|CONTIGUOUS|[ENLG][EQT])": _CONDITION,
    r"(?i)(?=\w*(cuda|gpu|err))(\w*check\w*(launch|kernel|last)\w*|\w*(launch|kernel|last)\w*check\w*|"
    r"cuda_?check_?errors?)": "remove it: return launch_error(); at conv2d's end checks the launches",
    r"(?i)(?!__|cudaOcc)(?=\w*(cuda|gpu|cu_|cublas|cudnn|curand|cusparse|cusolver|cufft|cutlass))\w*"
    r"(check(?!point)|chk|safe_?call|handle_?err|_call|_try|_assert)\w*|CHECK(_CALL|_ERROR|_RUNTIME)?|"
    r"HANDLE_ERROR|ERRCHK|SAFE_CALL": (
        f"to use it in conv2d, {_BELOW}(call) do {{{{ {{1}} }}}} while (0)"
    ),
    r"(CUDA|GPU)(_1D)?(_KERNEL)?_LOOP": (
        f"{_BELOW}(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); "
        "i += blockDim.x * gridDim.x)"
    ),
    r"(?i)i?(ceil_?div|div_?up|div_?ceil|cdiv)": "write ceil_div(a, b), from convlab.cuh",
    r"((FETCH|LDST)_)?FLOAT4": f"{_BELOW}(value) (reinterpret_cast<float4*>(&(value))[0])",
    r"OFFSET": f"{_BELOW}(row, column, pitch) ((row) * (pitch) + (column))",
}


def instead_of(name: str) -> str | None:
    """Return what to write for a macro that a file does not define, or None for another name.

    The text has two lines; the second one is what to write. It goes by the name alone: ask only
    about a name that a compiler does not know.
    """
    for pattern, text in _INSTEAD.items():
        if re.fullmatch(pattern, name):
            check = _CHECK_OF_A_LIBRARY if _OF_A_LIBRARY.match(name) else _CHECK
            write = text.format(name, check)
            return (
                f"{name} is not CUDA's: other repositories define it, and this file does not\n"
                f"  {write}"
            )
    return None
