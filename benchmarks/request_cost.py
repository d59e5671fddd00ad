"""Processor time of the server process for one request and one streamed token, of two or more trees in turns.

    python -m benchmarks.request_cost TREE [TREE ...] [--rounds 7] [--requests 600] [--tokens 3000]

A tree is a checkout; all run under this interpreter with the embedded demo model. What is counted is the time of the
server's main thread by the kernel's account: its loop, no worker and no engine. Figures are medians of the rounds, in
microseconds: a GET of /health/live and a POST of 40 KB that is refused (both over one kept connection), and a token of
a stream beside three others.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

READY = "Pixelferry ready on "
FLAGS = ["--port", "0", "--device", "cpu", "--kv-cache-mib", "64", "--threads", "1", "--log-level", "error"]
STREAMS = 4


@contextmanager
def served(tree: Path) -> Iterator[tuple[str, int]]:
    """URL and process id of a server of that tree."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        Path(root).chmod(0o700)
        command = [sys.executable, "-m", "server", "serve", "--shm-root", root, *FLAGS]
        process = subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(READY):
                    break
            yield line.removeprefix(READY).strip(), process.pid
        finally:
            process.terminate()
            process.wait()


def loop_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def ask(url: str, requests: int) -> None:
    with httpx.Client(base_url=url) as http:
        for _ in range(requests):
            http.get("/health/live")


def post(url: str, requests: int) -> None:
    body = json.dumps({"inputs": "x" * 40_000}).encode()
    with httpx.Client(base_url=url, headers={"content-type": "application/json"}) as http:
        for _ in range(requests):
            assert http.post("/chat", content=body).status_code == 400


def stream(url: str, tokens: int) -> None:
    parameters = {"max_tokens": tokens // STREAMS, "temperature": 0, "ignore_eos": True}
    body = {"inputs": [{"text": "Hi"}], "parameters": parameters, "stream": True}

    def read() -> None:
        with httpx.stream("POST", f"{url}/chat", json=body, timeout=600) as answer:
            for _ in answer.iter_raw():
                pass

    threads = [threading.Thread(target=read) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=3000)
    args = parser.parse_args()
    work = {"GET": (ask, args.requests), "POST": (post, args.requests), "token": (stream, args.tokens)}
    with ExitStack() as stack:
        servers = {tree: stack.enter_context(served(tree)) for tree in args.trees}
        took: dict[tuple[Path, str], list[float]] = {(tree, name): [] for tree in servers for name in work}
        for number in range(args.rounds + 1):
            for tree, (url, pid) in servers.items():
                for name, (run, n) in work.items():
                    before = loop_seconds(pid)
                    run(url, n)
                    if number:  # the first round warms up
                        took[tree, name].append(1e6 * (loop_seconds(pid) - before) / n)
    for (tree, name), values in took.items():
        print(f"{tree}: {name:<5} {statistics.median(values):7.1f} (+- {spread(values):.1f})")


def spread(values: list[float]) -> float:
    """Half of what lies between the quartiles."""
    quarters = statistics.quantiles(values, n=4)
    return (quarters[2] - quarters[0]) / 2


if __name__ == "__main__":
    main()
