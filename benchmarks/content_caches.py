"""What caches by content save: times to the first token with caches off, with one and with both, servers in turn.

    python -m benchmarks.content_caches [--model DIR|240m] [--rounds 5] [--only question turns system fresh]
        [--peer NAME=URL ...] [FLAGS OF SERVE ...]

- question: another question on a picture that was asked about once before (640 x 480 pixels, new in each round).
- turns: a chat of 10 turns over 4 pictures, 32 tokens an answer; the sum of its times to the first token.
- system: 32 clients with one system prompt of about 1,000 tokens, the first alone, then 31 at once; the same sum.
- fresh: pictures and texts of which none was seen before; processor time of all processes of the server.

One server for each setting is started, and in each round all of them get the same requests, one server after the other.
--peer: a server of another kind that runs already, as http://127.0.0.1:8101/v1; it is asked `question` alone.
Ratios are to the server without caches, of one round; printed are their median, least and greatest. Keep the machine
to yourself.
"""

import argparse
import base64
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.busy_neighbour import served
from benchmarks.model_speed import checkpoint
from configs.settings import EMBEDDED_MODEL

SETTINGS = {
    "off": ["--prefix-cache", "off", "--encoder-cache", "off"],
    "encoder": ["--prefix-cache", "off"],
    "both": [],
}
WORDS = ["river", "lamp", "seven", "green", "under", "paper", "window", "quiet", "stone", "market", "early", "bridge"]
SYSTEM_TOKENS = 1000
PEER_MODEL = "m"
TICK = os.sysconf("SC_CLK_TCK")


class Bodies:
    """Media and texts that nobody has sent before: two of one seed make the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def picture(self) -> dict[str, str]:
        pixels = self.rng.integers(0, 256, (60, 80, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        return {"image": "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()}

    def words(self, n: int) -> str:
        return " ".join(str(word) for word in self.rng.choice(WORDS, n))


def first_token(url: str, body: dict[str, Any], max_tokens: int = 1) -> tuple[float, str]:
    """-> (seconds to the first token, the answer)."""
    sampling = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    if url.endswith("/v1"):
        parts = [
            {"type": "image_url", "image_url": {"url": part["image"]}} if "image" in part else {"type": "text", **part}
            for part in body["inputs"]
        ]
        body = {"model": PEER_MODEL, "messages": [{"role": "user", "content": parts}], **sampling, "stream": True}
        url = f"{url}/chat/completions"
    else:
        body, url = body | {"parameters": sampling, "stream": True}, f"{url}/chat"
    begun, first, pieces = time.monotonic(), 0.0, list[str]()
    with httpx.stream("POST", url, json=body, timeout=600) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(event["error"])
                first = first or time.monotonic() - begun
                pieces.append(event.get("text") or "")
    return first, "".join(pieces)


def question(url: str, bodies: Bodies) -> float:
    picture = bodies.picture()
    first_token(url, {"inputs": [picture, {"text": bodies.words(8)}]})
    return first_token(url, {"inputs": [picture, {"text": bodies.words(8)}]})[0]


def turns(url: str, bodies: Bodies) -> float:
    spent, history = 0.0, list[dict[str, Any]]()
    for turn in range(10):
        media = [bodies.picture()] if turn in (0, 2, 4, 6) else []
        inputs = [*media, {"text": bodies.words(10)}]
        seconds, text = first_token(url, {"inputs": inputs, "history": history}, 32)
        spent += seconds
        history.append({"inputs": inputs, "text": text})
    return spent


def system(url: str, bodies: Bodies) -> float:
    sample = bodies.words(100)
    count = httpx.post(f"{url}/tokenize", json={"prompt": sample}).raise_for_status().json()["count"]
    prompt, texts = bodies.words(SYSTEM_TOKENS * 100 // count), [bodies.words(10) for _ in range(32)]

    def ask(text: str) -> float:
        return first_token(url, {"system": prompt, "inputs": [{"text": text}]})[0]

    spent = ask(texts[0])
    with ThreadPoolExecutor(31) as pool:
        return spent + sum(pool.map(ask, texts[1:]))


def fresh(url: str, bodies: Bodies) -> float:
    """Processor time, not time to the first token."""
    before = processor_seconds(url)
    for _ in range(8):
        first_token(url, {"inputs": [bodies.picture(), {"text": bodies.words(40)}]}, 8)
    return processor_seconds(url) - before


def processor_seconds(url: str) -> float:
    """Of the server that listens there and of its children."""
    port = url.rpartition(":")[2]
    stats = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/stat")}
    (server,) = (pid for pid in stats if _listens(pid, port))
    spent = 0.0
    for path in stats.values():
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if server in (int(path.parent.name), int(fields[1])):
            spent += (int(fields[11]) + int(fields[12])) / TICK
    return spent


def _listens(pid: int, port: str) -> bool:
    sockets = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if _is_of(line, port)}
    try:
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    named = any(f"socket:[{inode}]" in links for inode in sockets)
    return named and Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[3] == b"serve"


def _is_of(line: str, port: str) -> bool:
    fields = line.split()
    return fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == int(port)


SCENARIOS: dict[str, Callable[[str, Bodies], float]] = {
    "question": question, "turns": turns, "system": system, "fresh": fresh,
}  # fmt: skip


def rounds_of(ask: Callable[[str, Bodies], float], urls: dict[str, str], seeds: Iterator[int], n: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in urls}
    for _ in range(n):
        seed = next(seeds)
        for name, url in urls.items():
            found[name].append(ask(url, Bodies(seed)))
    for name, seconds in found.items():
        ratios = sorted(one / off for one, off in zip(seconds, found["off"], strict=True))
        print(
            f"{ask.__name__:>9} {name:>8}: {statistics.median(seconds):8.3f} s, {statistics.median(ratios):.3f} of off "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="240m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL")
    args, flags = parser.parse_known_args()
    model = checkpoint() if args.model == "240m" else EMBEDDED_MODEL if args.model == "demo" else Path(args.model)
    seeds = iter(range(1, 1 << 20))
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(served(model, "default", [*setting, "--log-level", "error", *flags]))
            for name, setting in SETTINGS.items()
        }
        for url in urls.values():
            fresh(url, Bodies(0))
        for name in args.only:
            peers = dict(peer.split("=", 1) for peer in args.peer) if name == "question" else {}
            rounds_of(SCENARIOS[name], urls | peers, seeds, args.rounds)


if __name__ == "__main__":
    main()
