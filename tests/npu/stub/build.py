"""Makes the libraries that torch_npu, and a torch for CUDA, are linked to and that this machine does not have.

`python -m tests.npu.stub.build torch_npu-2.13.0`, when the environment of that pair is installed.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from tests.npu.pairs import REPO, Pair, pair_named
from tests.npu.stub.names import Wanted, mentioned, tool, wanted

CANN, CUDA = "cann", "cuda"  # folders of an environment's home: `libstub_*.so` has every function, the rest is empty
_SOURCE = Path(__file__).with_name("cann.c")
_CALLED_BY_NAME = rb"(?:acl|Hccl)[A-Za-z0-9_]+"
_OPENED_BY_NAME = frozenset({"libopapi.so", "libnnopbase.so"})
_COUNTED = (
    *("wait_stream", "wait_event", "wait_device", "aclop", "graph_capture", "graph_replay", "graph_update"),
    *("HcclAllReduce", "HcclAllGather", "computed_sum", "computed_gather"),
    *(
        f"copy_{how}_{start}_to_{end}"
        for how in ("async", "blocking")
        for start in ("host", "device")
        for end in ("host", "device")
    ),
)


def build(pair: Pair) -> None:
    """Stubs for the torch and torch_npu of the pair, and what loads them in every Python of its environment."""
    torch = sorted((_torch_of(pair) / "lib").glob("*.so*"))
    torch_npu = sorted((pair.packages / "torch_npu").rglob("*.so"))
    _build_cann(wanted(torch_npu, [*torch_npu, *torch]), mentioned(torch_npu, _CALLED_BY_NAME), pair.home / CANN)
    _build_cuda(wanted(torch, torch), pair.home / CUDA)
    # Python reads such files before anything else, a server's child processes too.
    (pair.packages / "tests_npu_stub.pth").write_text(f"{REPO}\nimport tests.npu.stub.load\n")


def _torch_of(pair: Pair) -> Path:
    """Its folder: the pair's own, or the one that this environment lends it."""
    own, lent = pair.packages / "torch", find_spec("torch")
    return own if own.is_dir() or lent is None else Path(str(lent.origin)).parent


def _build_cann(missing: Wanted, called: frozenset[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    operators = {name for name in called if name.startswith("aclnn") and not name.endswith("GetMaxWorkspaceSize")}
    kernels = {name.removesuffix("GetWorkspaceSize") for name in operators}
    objects = {name for name in called if name.startswith("aclCreate")} - missing.functions
    sizes = {f"{name}GetWorkspaceSize" for name in kernels}
    source = "".join(path.read_text() for path in sorted(_SOURCE.parent.glob("*.c")))
    written = frozenset(re.findall(r"^[a-z].*?\b(\w+)\(.*\{", source, re.MULTILINE))
    _list(folder / "counters.inc", "COUNTER", [*_COUNTED, *sorted(kernels)])
    _list(folder / "launches.inc", "LAUNCH", sorted(kernels))
    _list(folder / "sizes.inc", "SIZE", sorted(name.removesuffix("GetWorkspaceSize") for name in sizes - written))
    _list(folder / "objects.inc", "OBJECT", sorted(objects - written))
    _list(folder / "zeros.inc", "ZERO", sorted((missing.functions | called) - sizes - kernels - objects - written))
    _compile(folder, missing.libraries | _OPENED_BY_NAME, f"-I{folder}", str(_SOURCE))


def _build_cuda(missing: Wanted, folder: Path) -> None:
    """Names alone, which nothing calls; a torch that was built for CPUs wants none."""
    if not missing.libraries:
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "names.c"
    source.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(missing.functions)))
    _compile(folder, missing.libraries, "-fno-builtin", str(source))


def _list(path: Path, macro: str, names: Iterable[str]) -> None:
    path.write_text("".join(f"{macro}({name})\n" for name in names))


def _compile(folder: Path, libraries: Iterable[str], *words: str) -> None:
    shared = [tool("gcc"), "-shared", "-fPIC", "-w", "-O1"]
    functions = folder / f"libstub_{folder.name}.so"
    subprocess.run([*shared, "-pthread", f"-Wl,-soname,{functions.name}", "-o", str(functions), *words], check=True)
    for name in libraries:  # what is looked up in one of them is found in the one that all are linked to
        linked = ["-x", "c", "/dev/null", "-x", "none", "-Wl,--no-as-needed", str(functions)]
        subprocess.run([*shared, f"-Wl,-soname,{name}", "-o", str(folder / name), *linked], check=True)


if __name__ == "__main__":
    try:
        build(pair_named(sys.argv[1]))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"make test-npu: {error}")
