"""Count the lines of a kernel's file that the simulator does not compile."""

import re

# Matches the start of a condition, and in it the question whether the simulator compiles, or whether it does not.
_CONDITION = re.compile(
    r"\s*#\s*(?:"
    r"(?P<not>ifndef\s+|if\s*!\s*(?:defined\b\s*\(?\s*)?)CONVLAB_SIMULATOR\b"
    r"|(?P<own>ifdef\s+|if\s+(?:defined\b\s*\(?\s*)?)CONVLAB_SIMULATOR\b"
    r"|if)"
)
_ELSE = re.compile(r"\s*#\s*(else|elif)\b")
_ENDIF = re.compile(r"\s*#\s*endif\b")


def lines_for_gpus(source: str) -> int:
    """Return how many lines of a file only a GPU's compiler sees: those where CONVLAB_SIMULATOR is not defined.

    Examples
    --------
    >>> lines_for_gpus("#ifndef CONVLAB_SIMULATOR\\nint on_a_gpu;\\n#endif\\nint everywhere;")
    1
    """
    count = 0
    # Of each open condition: whether it is about the simulator, and whether this part is left out.
    open_ones: list[tuple[bool, bool]] = []
    for line in source.splitlines():
        if condition := _CONDITION.match(line):
            open_ones.append((bool(condition["not"] or condition["own"]), bool(condition["not"])))
        elif _ELSE.match(line) and open_ones:
            is_own, left_out = open_ones.pop()
            open_ones.append((is_own, is_own and not left_out))
        elif _ENDIF.match(line) and open_ones:
            open_ones.pop()
        elif line.strip() and any(left_out for _, left_out in open_ones):
            count += 1
    return count
