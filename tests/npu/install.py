"""Makes the environment of one pair, from one of the project: `python -m tests.npu.install torch_npu-2.13.0`.

The project's own environment lends its packages, by a .pth: there is torch_npu besides, and torch where the pair has
another one. PyPI's torch for x86-64 names 2 GB of CUDA libraries as its dependencies. None is installed: where torch is
linked to them, stubs of their names alone take their place.
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import version

from tests.npu.pairs import Pair, pair_named
from tests.npu.stub.names import tool


class InstallError(Exception):
    """Something that ring 1 needs cannot be had; the message says what."""


def install(pair: Pair, pip_args: Sequence[str] = ()) -> None:
    """Make the virtual environment under `pair.home`. Raises InstallError, FileNotFoundError for a missing program."""
    for program in ("gcc", "nm", "readelf"):
        tool(program)
    shutil.rmtree(pair.home, ignore_errors=True)
    _run("make a virtual environment", sys.executable, "-m", "venv", "--without-pip", str(pair.home / "venv"))
    (pair.packages / "tests_npu_lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    own = [] if version("torch").partition("+")[0] == pair.torch else [f"torch=={pair.torch}"]
    pip = [sys.executable, "-m", "pip", "--python", str(pair.python), "install", "--quiet", "--no-deps", "--no-compile"]
    _run("install packages", *pip, "--ignore-installed", *pip_args, *own, f"torch_npu=={pair.torch_npu}")


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"cannot {what}: {' '.join(command)}\n{done.stderr.strip()}")


if __name__ == "__main__":
    try:
        install(pair_named(sys.argv[1]), sys.argv[2:])
    except (InstallError, FileNotFoundError) as error:
        sys.exit(f"make test-npu: {error}")
