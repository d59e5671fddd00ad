"""What one busy process beside a server costs its clients: requests a second and latencies, quiet and beside it.

    python -m benchmarks.busy_neighbour [--model DIR|240m] [--rounds 3] [--seconds 10] [--clients 4]
        [--settings default 300000x2 ...]

For each setting one server is started: "default", or GOMP_SPINCOUNTxTHREADS. 300000x2 is what libgomp and torch do by
themselves on two cores; such threads are neither compared nor bound. Rounds take turns: every server quiet, then every
server beside a python loop at nice 10. Chats hold a picture of 640 x 480, or only a text, in turns, and ask for 32
tokens (`ignore_eos`). Figures are medians of the rounds; ratios are of one run.
"""

import argparse
import base64
import io
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from benchmarks.model_speed import checkpoint
from configs.settings import EMBEDDED_MODEL

READY = "Pixelferry ready on "
BUSY = "import os\nos.nice(10)\nwhile True: pass"


@contextmanager
def served(model: Path, setting: str, flags: list[str]) -> Iterator[str]:
    """The URL of a server of its own."""
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS")}
    if setting != "default":
        env["GOMP_SPINCOUNT"], threads = setting.split("x")
        flags = [*flags, "--threads", threads]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        os.chmod(root, 0o700)
        command = [sys.executable, "-m", "server", "serve", "--port", "0", "--model", str(model), "--shm-root", root]
        process = subprocess.Popen([*command, *flags], env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY):
                break
        try:
            yield line.removeprefix(READY).strip()
        finally:
            process.terminate()
            process.wait()


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def bodies() -> list[dict[str, object]]:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    Image.fromarray(pixels).save(file, "JPEG")
    picture = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
    parameters = {"max_tokens": 32, "ignore_eos": True, "temperature": 0}
    question = {"text": "What is in this picture? Describe it in a few words, please."}
    return [{"inputs": inputs, "parameters": parameters} for inputs in ([{"image": picture}, question], [question])]


def load(url: str, seconds: float, clients: int) -> tuple[float, float]:
    """(requests a second, p95 of their seconds) of as many clients as ask one after the other."""
    ends, taken, chats = time.monotonic() + seconds, list[float](), bodies()

    def ask(turn: int) -> None:
        with httpx.Client(base_url=url, timeout=300) as client:
            while time.monotonic() < ends:
                start = time.monotonic()
                client.post("/chat", json=chats[turn % 2]).raise_for_status()
                taken.append(time.monotonic() - start)
                turn += 1

    begun = time.monotonic()
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.monotonic() - begun
    return len(taken) / spent, sorted(taken)[int(0.95 * (len(taken) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(EMBEDDED_MODEL))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--settings", nargs="+", default=["default", "300000x2"])
    args, flags = parser.parse_known_args()
    model = checkpoint() if args.model == "240m" else Path(args.model)
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(served(model, name, flags)) for name in args.settings}
        for url in servers.values():
            load(url, 2, args.clients)
        for _ in range(args.rounds):
            for busy in (False, True):
                for name, url in servers.items():
                    with neighbour(busy):
                        found.setdefault((name, busy), []).append(load(url, args.seconds, args.clients))
    for name in servers:
        (quiet, slow), (beside, slower) = (_median(found[name, busy]) for busy in (False, True))
        print(
            f"{name:>9}: quiet {quiet:.3g}/s, p95 {slow:.3g} s; beside a busy process {beside:.3g}/s "
            f"({beside / quiet:.2f}x), p95 {slower:.3g} s ({slower / slow:.2f}x)"
        )


def _median(runs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(rate for rate, _ in runs), statistics.median(p95 for _, p95 in runs)


if __name__ == "__main__":
    main()
