"""What pyproject.toml cannot say: where the rooms lie in a wheel, and which commit it was built of.

A wheel has one package, `pixelferry`, with the rooms in it: `server` and `model` are names that others use, too. An
editable installation has the rooms as they lie in the checkout. The commit stands in `configs/commit.txt`, and in the
version wherever the tree is not that of the release's tag.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

RELEASE = "0.1.0"
ROOMS = ("configs", "shm", "tokenization", "model", "server")
# What the rooms hold beside code: `tests/e2e/test_wheel.py` finds what is missing here.
DATA = {
    "configs": ["profiles/*.toml", "commit.txt"],
    "model": ["embedded/*/*", "selftest/known.npz"],
    "server": ["http/openapi/page.html", "http/page/*", "http/page/samples/*", "loadtest/results/*.jinja"],
}
HERE = Path(__file__).resolve().parent
STAMP = "configs/commit.txt"


class CleanBuild(build_py):
    """Of the tree as it is, and of nothing that an earlier build left in `build/lib`."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode and COMMIT:
            (Path(self.build_lib) / "pixelferry" / STAMP).write_text(f"{COMMIT}\n", encoding="ascii")


class StampedSource(sdist):
    """It has no history, so it carries the commit; the version stands in its PKG-INFO."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        if COMMIT:
            (Path(base_dir) / STAMP).unlink(missing_ok=True)  # it may be a link to a file of the tree
            (Path(base_dir) / STAMP).write_text(f"{COMMIT}\n", encoding="ascii")


def git(*words: str) -> bytes:
    """What git says of this directory's own repository; nothing where it is none, or lies in another one."""
    try:
        return subprocess.run(["git", "-C", HERE, *words], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def commit() -> str:
    """With "-dirty" where files have changed or are new; "" where nothing knows it."""
    top = git("rev-parse", "--show-toplevel").decode().strip()
    if not top or Path(top) != HERE:
        stamp = HERE / STAMP
        return stamp.read_text(encoding="ascii").strip() if stamp.is_file() else ""
    return git("rev-parse", "HEAD").decode().strip() + ("-dirty" if _difference() else "")


def version() -> str:
    """RELEASE itself of a clean tree at its tag; else with a local part, which no index takes and pip tells apart."""
    packed = HERE / "PKG-INFO"  # of an sdist
    if packed.is_file():
        return next(line[9:].strip() for line in packed.read_text("utf-8").splitlines() if line.startswith("Version: "))
    if not COMMIT or f"v{RELEASE}".encode() in git("tag", "--points-at", "HEAD").split() and "-dirty" not in COMMIT:
        return RELEASE
    changed = f".d{hashlib.sha256(_difference()).hexdigest()[:8]}" if COMMIT.endswith("-dirty") else ""
    return f"{RELEASE}+g{COMMIT[:8]}{changed}"


def _difference() -> bytes:
    """Of the tree from its commit, new files with it."""
    new = [name for name in git("ls-files", "--others", "--exclude-standard", "-z").split(b"\0") if name]
    found = [git("diff", "HEAD", "--binary")]
    for name in new:
        path = HERE / name.decode()
        found += [name, hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""]  # else: a repository
    return b"".join(found)


COMMIT = commit()
BUILD = HERE / "build"  # where setuptools keeps notes: beside the rooms a checkout would be called by their version
BUILD.mkdir(exist_ok=True)
found = find_packages(str(HERE), include=[f"{room}*" for room in ROOMS])
if "editable_wheel" in sys.argv:  # whose version would stay behind its commits
    setup(version=RELEASE, packages=["pixelferry", *found], package_data=DATA)
else:
    setup(
        version=version(),
        packages=["pixelferry", *(f"pixelferry.{name}" for name in found)],
        package_dir={f"pixelferry.{room}": room for room in ROOMS},
        package_data={f"pixelferry.{room}": files for room, files in DATA.items()},
        cmdclass={"build_py": CleanBuild, "sdist": StampedSource},
        options={"egg_info": {"egg_base": "build"}},
    )
