"""Run quick tests in a new environment: with the oldest allowed versions, or with Colab's.

    python -m tests.instruments.oldest [FOLDER]
    python -m tests.instruments.oldest --colab [FOLDER] [--python PYTHON3.13]

The first installs each requirement of requirements.txt in the oldest version that it allows. The second
installs what Google Colab's image has, as far as the package index offers it, then what the notebooks' cell
for Colab installs. It fails if that changes a package of the image. Both run the pure tests and some that
build; ``--colab`` also runs the notebook 00_start.

FOLDER keeps the environment for the next run; without it a temporary folder is used. The index's torch is a
CUDA build: some gigabytes are downloaded. The exit status is that of the first step that fails.

Not as on Colab: the index's torch 2.11 is built for CUDA 13.0, not 12.8; its wheels of nvcc 12.8.93 have
ptxas, but not nvcc, so nothing is compiled with nvcc 12.8; g++-11 is used if it is installed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.instruments.colab import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
# Tests that build on the simulator, run cells and use torch's modules.
QUICK = (
    "tests/core/test_call.py",
    "tests/commands/test_cli_simulated.py",
    "tests/notebook/test_magics.py",
    "tests/nn",
)
# Of Colab's image on Python 3.13, as of November 2026: what convlab uses.
COLAB_PYTHON = "3.13"
COLAB = (
    "torch==2.11.0",
    "pandas==2.2.3",
    "ipython==7.34.0",
    "ipykernel==6.17.1",
    "ipywidgets==7.7.1",
    "jupyter-client==7.4.9",
    "numpy==2.1.3",
    "matplotlib==3.10.0",
    "tqdm==4.67.1",
    "nbclient",
)
TESTING = ("pytest<9.2", "pytest-xdist", "hypothesis")
_ALLOWED = re.compile(r"([\w-]+)>=([\d.]+)")


def oldest(requirements: str) -> list[str]:
    """Return each requirement pinned to the oldest version that it allows."""
    lines = [line.split("#")[0].strip() for line in requirements.splitlines()]
    return [_ALLOWED.sub(r"\1==\2", line).split(",")[0] for line in lines if line]


class Environment:
    """A virtual environment, made when it is first used."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.python = folder / "bin" / "python"
        if not self.python.exists():
            subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)

    def run(self, *arguments: str, **variables: str) -> int:
        """Run its Python in the repository's root; return the exit status."""
        environment = os.environ | variables
        command = [str(self.python), *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode

    def pip(self, *arguments: str) -> str:
        """Run pip; return what it prints. Raises CalledProcessError if it fails."""
        command = [str(self.python), "-m", "pip", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def versions(self) -> dict[str, str]:
        """Return the version of each installed package."""
        lines = self.pip("list", "--format=freeze").splitlines()
        return dict(line.split("==", 1) for line in lines if "==" in line)


def replaced(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the packages of which the version changed, each with both versions."""
    return [
        f"{name} {version} -> {after.get(name, 'removed')}"
        for name, version in before.items()
        if after.get(name) != version
    ]


def install_oldest(environment: Environment) -> list[str]:
    """Install the oldest versions; return what is wrong with them: nothing."""
    pins = oldest((ROOT / "requirements.txt").read_text())
    print("installing", *pins, sep="\n  ", flush=True)
    environment.pip("install", "-q", "--prefer-binary", *pins)
    return []


def install_colab(environment: Environment) -> list[str]:
    """Install Colab's versions, then what the cell installs; return what that replaced."""
    print("installing", *COLAB, sep="\n  ", flush=True)
    environment.pip("install", "-q", "--prefer-binary", *COLAB)
    image = environment.versions()
    environment.pip("install", "-q", *PACKAGES)
    found = [f"the cell replaces {change}" for change in replaced(image, environment.versions())]
    environment.pip("install", "-q", "--prefer-binary", *TESTING)
    image = environment.versions()
    # What a reader may run instead of the cell.
    plan = environment.pip("install", "--dry-run", "-r", "requirements.txt")
    wanted = re.findall(r"Would install (.*)", plan)
    names = [name.rpartition("-")[0] for line in wanted for name in line.split()]
    have = {name.lower().replace("_", "-") for name in image}
    again = [name for name in names if name.lower().replace("_", "-") in have]
    found += [f"requirements.txt replaces {name}" for name in again]
    print("requirements.txt would install", *wanted, flush=True)
    return found


def python_for_colab() -> str:
    """Return the Python of Colab's version on PATH, or this one."""
    return shutil.which(f"python{COLAB_PYTHON}") or sys.executable


def main(arguments: list[str] | None = None) -> int:
    """Make the environment where it is missing, install, and run; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", help="where to keep the environment")
    parser.add_argument("--colab", action="store_true", help="Google Colab's versions")
    parser.add_argument("--python", help=f"the interpreter; for Colab's, of {COLAB_PYTHON}")
    options = parser.parse_args(arguments)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="convlab-versions-"))
    interpreter = options.python or (python_for_colab() if options.colab else sys.executable)
    environment = Environment(folder.absolute(), interpreter)
    problems = (install_colab if options.colab else install_oldest)(environment)
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    compiler = shutil.which("g++-11") if options.colab else None
    variables = {"CXX": compiler} if compiler else {}
    status = environment.run("-m", "pytest", "-q", "-m", "pure", **variables)
    status = status or environment.run("-m", "pytest", "-q", *QUICK, **variables)
    if options.colab and not status:
        notebooks = "tests.instruments.run_notebooks"
        status = environment.run("-m", notebooks, "00_start", **variables)
    return status


if __name__ == "__main__":
    sys.exit(main())
