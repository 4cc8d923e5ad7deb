"""Run the quick tests with the oldest versions that requirements.txt allows, in a new environment.

    python -m tests.instruments.oldest [FOLDER]

FOLDER, a new temporary one unless told, keeps the environment for the next run. The torch of the
package index is a CUDA build: some gigabytes are downloaded. Exit status: pytest's.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "catalog",
    "problem",
    "build",
    "check",
    "cli",
    "errors",
    "magics",
    "measure",
    "nn",
    "plot",
    "reference",
    "toolchain",
)
_ALLOWED = re.compile(r"([\w-]+)>=([\d.]+)")


def oldest(requirements: str) -> list[str]:
    """Return each requirement pinned to the least that it allows; those with no least, as they are."""
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    return [_ALLOWED.sub(r"\1==\2", line).split(",")[0] for line in lines if line]


def main(arguments: list[str]) -> int:
    """Make the environment where it is not there, install, and run."""
    folder = Path(arguments[0] if arguments else tempfile.mkdtemp(prefix="convlab-oldest-"))
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pins = oldest((ROOT / "requirements.txt").read_text())
    print("installing", *pins, sep="\n  ", flush=True)
    subprocess.run([str(python), "-m", "pip", "install", "-q", *pins], check=True)
    tests = [str(ROOT / "tests" / f"test_{name}.py") for name in QUICK]
    return subprocess.run([str(python), "-m", "pytest", *tests], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
