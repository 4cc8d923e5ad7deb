"""Installed by pip, plainly and editable, and called from elsewhere."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("convlab", "kernels", "pyproject.toml", "requirements.txt", "README.md")
SMALL = "N=1,C=2,H=6,W=6,K=3,R=3,S=3"
MINE = (ROOT / "kernels" / "01_direct.cu").read_text().replace("// title: Direct", "// title: Mine")

pytestmark = pytest.mark.xdist_group("install")


class Installed:
    """An environment of its own that has this one's packages, and convlab from a copy."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.checkout = folder / "a checkout (ü)"
        self.environment = folder / "environment"
        self.checkout.mkdir()
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copyfile
            copy(ROOT / part, self.checkout / part)
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.environment)], check=True
        )
        (packages,) = self.environment.glob("lib/python*/site-packages")
        (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.run(
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--disable-pip-version-check",
            *how,
            str(self.checkout),
            cwd=folder,
        )

    def run(self, *arguments: str, cwd: Path, program: str = "python", status: int = 0) -> str:
        """Return what a program of the environment prints, run in a folder."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        done = subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=cwd,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=[(), ("--editable",)], ids=["plain", "editable"])
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), *request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user's, with kernels of their own: one of them hides a shipped one."""
    (tmp_path / "kernels").mkdir()
    for name in ("01_direct", "my_own"):
        (tmp_path / "kernels" / f"{name}.cu").write_text(MINE)
    return tmp_path


def test_imported_from_anywhere_with_the_shipped_kernels(
    installed: Installed, folder: Path
) -> None:
    script = f"""if True:
        import convlab
        print(convlab.__file__, convlab.load("01_direct", engine="sim").title, sep="\\n")
        print(convlab.check(convlab.load("my_own", engine="sim"), "{SMALL}").ok)
    """
    where, *told = installed.run("-c", script, cwd=folder).splitlines()
    inside = installed.checkout if "checkout" in where else installed.environment
    assert Path(where).is_relative_to(inside) and told == ["Mine", "True"]


def test_the_command_finds_shipped_kernels_and_a_users_own(
    installed: Installed, folder: Path
) -> None:
    listed = installed.run("list", cwd=folder, program="convlab")
    for path in sorted((ROOT / "kernels").glob("*.cu")):
        assert path.stem in listed
    assert "my_own" in listed and str(folder / "kernels") in listed
