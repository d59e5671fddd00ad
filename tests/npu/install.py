"""Makes the environment of one pair, from one of the project: `python -m tests.npu.install torch_npu-2.13.0`.

PyPI's torch for x86-64 names 2 GB of CUDA libraries as its dependencies. None is installed: where torch is linked to
them, stubs of their names alone take their place. So torch and torch_npu come without dependencies, and what they
need besides is asked of torch's own metadata.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import requires

from packaging.requirements import Requirement

from tests.npu.pairs import REPO, Pair, pair_named
from tests.npu.stub.names import tool

_NOT_INSTALLED = ("nvidia-", "cuda-", "triton", "torch")
_NEEDED_BY_TORCH_NPU = ("numpy", "pyyaml")  # it imports them; 2.10.0.post4 names neither


class InstallError(Exception):
    """Something that ring 1 needs cannot be had; the message says what."""


def install(pair: Pair, pip_args: Sequence[str] = ()) -> None:
    """Make the virtual environment under `pair.home`. Raises InstallError, FileNotFoundError for a missing program."""
    for program in ("gcc", "nm", "readelf"):
        tool(program)
    shutil.rmtree(pair.home, ignore_errors=True)
    _run("make a virtual environment", sys.executable, "-m", "venv", str(pair.home / "venv"))
    _pip(pair, *pip_args, "--no-deps", f"torch=={pair.torch}", f"torch_npu=={pair.torch_npu}")
    constraints = str(REPO / "constraints" / "cpu.txt")
    _pip(pair, *pip_args, "--constraint", constraints, *_of_project(), *_of_torch(pair), *_NEEDED_BY_TORCH_NPU)


def _of_project() -> list[str]:
    """What the project and its tests need, without torch."""
    return _wanted(requires("pixelferry") or [], "test")


def _of_torch(pair: Pair) -> list[str]:
    code = "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')"
    found = _run("read torch's metadata", str(pair.python), "-c", code)
    return _wanted(found.splitlines(), "")


def _wanted(lines: Sequence[str], extra: str) -> list[str]:
    found = [Requirement(line) for line in lines]
    return [
        f"{one.name}{'[' + ','.join(sorted(one.extras)) + ']' if one.extras else ''}{one.specifier}"
        for one in found
        if (one.marker is None or one.marker.evaluate({"extra": extra})) and not one.name.startswith(_NOT_INSTALLED)
    ]


def _pip(pair: Pair, *words: str) -> None:
    _run("install packages", str(pair.python), "-m", "pip", "install", "--quiet", *words)


def _run(what: str, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(f"cannot {what}: {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    try:
        install(pair_named(sys.argv[1]), sys.argv[2:])
    except (InstallError, FileNotFoundError) as error:
        sys.exit(f"make test-npu: {error}")
