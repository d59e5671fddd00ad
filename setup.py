"""What pyproject.toml cannot say: a wheel names the commit that it was built of, where git knows it."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


class StampedBuild(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode and (found := _commit()):
            (Path(self.build_lib) / "configs" / "commit.txt").write_text(f"{found}\n", encoding="ascii")


def _commit() -> str:
    """Of this directory's own repository, and of no repository around it; nothing where it is none."""
    try:
        top = _git("rev-parse", "--show-toplevel")
        return _git("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty") if Path(top) == HERE else ""
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True, check=True).stdout.strip()


setup(cmdclass={"build_py": StampedBuild})
