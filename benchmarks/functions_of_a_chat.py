"""How many functions, in how many files, one chat with a picture and four tokens runs in each process of a server.

    python -m benchmarks.functions_of_a_chat [TREE ...]

A tree is a checkout, this one where none is named; each runs under this interpreter with the embedded demo model. A
profile hook on all threads sees every call between the request and its answer, and for as long again as a supervisor
takes to look at its children. Functions are those of the tree, each once; a lambda or a comprehension is one too.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

READY = "Pixelferry ready on "
FLAGS = [
    "--port",
    "0",
    "--device",
    "cpu",
    "--kv-cache-mib",
    "64",
    "--threads",
    "1",
    "--workers",
    "1",
    "--log-level",
    "error",
]
REPO = Path(__file__).resolve().parent.parent
PICTURE = REPO / "examples/media/red-circle.png"
LOOK_SECONDS = 0.6  # twice as long as a supervisor waits between two looks at its child
# What Python runs at the start of each process that finds it on its path.
HOOK = """
import json, os, sys, threading, time

TREE, MARKS = os.environ["TRACED_TREE"] + os.sep, os.environ["TRACED_MARKS"]
seen = set()

def see(frame, event, argument):
    if event == "call":
        seen.add(frame.f_code)

def tell():
    begin, end = os.path.join(MARKS, "begin"), os.path.join(MARKS, "end")
    while not os.path.exists(begin):
        time.sleep(0.02)
    seen.clear()
    while not os.path.exists(end):
        time.sleep(0.02)
    of_tree = {(code.co_filename[len(TREE):], code.co_firstlineno, code.co_name)
               for code in list(seen)
               if code.co_filename.startswith(TREE) and not code.co_filename.startswith(TREE + ".venv")}
    told = os.path.join(MARKS, f"{os.getpid()}.part")
    with open(told, "w") as file:
        json.dump({"command": sys.orig_argv, "functions": sorted(of_tree)}, file)
    os.rename(told, told[:-4] + "json")

threading.Thread(target=tell, daemon=True).start()
threading.setprofile(see)
sys.setprofile(see)
"""


@contextmanager
def served(tree: Path, folder: Path) -> Iterator[str]:
    """URL of a server of that tree, all of whose processes are traced."""
    (folder / "sitecustomize.py").write_text(HOOK)
    root = folder / "shm"
    root.mkdir(mode=0o700)
    own = {"PYTHONPATH": str(folder), "TRACED_TREE": str(tree), "TRACED_MARKS": str(folder), "PYTHONSAFEPATH": ""}
    command = [sys.executable, "-m", "server", "serve", "--shm-root", str(root), *FLAGS]
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(READY):
                    yield line.split()[3]
                    return
            raise SystemExit(f"{tree}: the server ended before it was ready")
        finally:
            process.terminate()


def traced(tree: Path) -> dict[str, set[tuple[str, int, str]]]:
    """By role of a process: file, line and name of each function of the tree that it ran."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        with served(tree, folder) as url, httpx.Client(timeout=120) as client:
            picture = PICTURE.read_bytes()
            ask(client, url, picture)  # what is made once is made
            time.sleep(LOOK_SECONDS)
            (folder / "begin").touch()
            time.sleep(0.1)
            ask(client, url, picture + b"\0")  # the same, but of nothing that a cache holds
            time.sleep(LOOK_SECONDS)
            (folder / "end").touch()
            time.sleep(1)
        functions: dict[str, set[tuple[str, int, str]]] = {}
        for file in folder.glob("*.json"):
            told = json.loads(file.read_text())
            functions[role(told["command"])] = {(path, line, function) for path, line, function in told["functions"]}
        return functions


def ask(client: httpx.Client, url: str, picture: bytes) -> None:
    """Have four tokens said about that picture."""
    data = base64.b64encode(picture).decode()
    inputs = [{"image": f"data:image/png;base64,{data}"}, {"text": "What is in the picture?"}]
    body = {"inputs": inputs, "parameters": {"max_tokens": 4, "ignore_eos": True, "temperature": 0}}
    answer = client.post(f"{url}/chat", json=body).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 4, answer


def role(command: list[str]) -> str:
    """Of a process: `server`, or the role of a child."""
    for at, word in enumerate(command):
        if word == "server.children.child_main":
            return command[at + 1]
    return "server"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[REPO])
    parser.add_argument("--list", metavar="ROLE", help="print each function of that process, such as server or engine")
    args = parser.parse_args()
    for tree in args.trees:
        for of, functions in sorted(traced(tree.resolve()).items()):
            print(
                f"{tree}: {of}: {len(functions)} functions in {len({path for path, *_ in functions})} files", flush=True
            )
            if args.list in (of, "all"):
                print("\n".join(f"    {path}:{line} {name}" for path, line, name in sorted(functions)))


if __name__ == "__main__":
    main()
