"""Installed by pip, plainly and editable, and called from elsewhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("convlab", "kernels", "pyproject.toml", "requirements.txt", "README.md")
SMALL = "N=1,C=2,H=6,W=6,K=3,R=3,S=3"
MINE = (ROOT / "kernels" / "01_direct.cu").read_text().replace("// title: Direct", "// title: Mine")

pytestmark = pytest.mark.xdist_group("install")


class Installed:
    """An environment of its own that has this one's packages, and convlab from a copy."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.checkout, self.environment = folder / "a checkout (ü)", folder / "environment"
        self.checkout.mkdir()
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
            copy(ROOT / part, self.checkout / part)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.environment)], check=True
        )
        (packages,) = self.environment.glob("lib/python*/site-packages")
        (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.run("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
                 "--disable-pip-version-check", *how, str(self.checkout), cwd=folder)  # fmt: skip

    def run(self, *arguments: str, cwd: Path, program: str = "python", status: int = 0) -> str:
        """Return what a program of the environment prints, run in a folder."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run([self.environment / "bin" / program, *arguments], cwd=cwd,
                              env=variables, capture_output=True, text=True)  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=[(), ("--editable",)], ids=["plain", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), *request.param)


def test_imported_from_anywhere(installed: Installed, tmp_path: Path) -> None:
    where = installed.run("-c", "import convlab; print(convlab.__file__)", cwd=tmp_path)
    inside = installed.checkout if "checkout" in where else installed.environment
    assert Path(where.strip()).is_relative_to(inside)


def test_the_command_and_the_module_say_the_same(installed: Installed, tmp_path: Path) -> None:
    listed = installed.run("list", cwd=tmp_path, program="convlab")
    assert listed == installed.run("-m", "convlab", "list", cwd=tmp_path)
    for path in sorted((ROOT / "kernels").glob("*.cu")):
        assert path.stem in listed


def test_a_shipped_kernel_runs(installed: Installed, tmp_path: Path) -> None:
    out = installed.run("check", "01_direct", "--problem", SMALL, "--engine", "sim",
                        cwd=tmp_path, program="convlab")  # fmt: skip
    assert "01_direct on" in out and "right" in out


def test_a_users_own_kernels_go_first(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "01_direct.cu").write_text(MINE)
    (tmp_path / "kernels" / "my_own.cu").write_text(MINE)
    listed = installed.run("list", cwd=tmp_path, program="convlab")
    assert "my_own" in listed and str(tmp_path / "kernels") in listed
    script = "import convlab; print(convlab.load('01_direct', engine='sim').title)"
    assert installed.run("-c", script, cwd=tmp_path).strip() == "Mine"
    out = installed.run("check", "my_own", "--problem", SMALL, "--engine", "sim",
                        cwd=tmp_path, program="convlab")  # fmt: skip
    assert "my_own on" in out and "right" in out
