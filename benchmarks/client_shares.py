"""A greedy client and a second one beside it: what each gets, of one server that both ask, quiet and busy in turn.

    python -m benchmarks.client_shares [--model DIR|240m] [--rounds 3] [--seconds 15] [--n 12] [FLAGS OF SERVE ...]

Each round: the second client's small chats in turn on a quiet server; the greedy client alone, with `--n` connections
that ask for endless answers (--greedy answers) or long prompts (--greedy prompts) again and again; both at once; the
greedy one alone again. Printed are tokens of answers a second of each, by the server's count, both together against the
greedy one alone ("kept"), how far both times alone are apart, seconds of a step and of the second client's chats,
and the load.
"""

import argparse
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.busy_neighbour import served
from benchmarks.model_speed import checkpoint
from configs.settings import EMBEDDED_MODEL

OTHER = "127.0.0.2"
COUNTED = ("pixelferry:generation_tokens_total", "pixelferry:iteration_tokens_count")
CHAT: dict[str, Any] = {"inputs": [{"text": "hello"}], "parameters": {"max_tokens": 6, "ignore_eos": True}}
GREEDY: dict[str, dict[str, Any]] = {
    "answers": {"prompt": [[1]] * 8, "max_tokens": 1000, "n": 2, "ignore_eos": True, "stream": True},
    "prompts": {"prompt": [[1] * 1500] * 2, "max_tokens": 8, "ignore_eos": True, "stream": True},
}


@dataclass
class Chats:
    """Of the second client: seconds of each, and the tokens of all."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))]


def chats(url: str, seconds: float, least: int) -> Chats:
    """Small ones in turn, for so long and at least so many."""
    found, ends = Chats(), time.monotonic() + seconds
    transport = httpx.HTTPTransport(local_address=OTHER)
    with httpx.Client(base_url=url, transport=transport, timeout=600) as http:
        while time.monotonic() < ends or len(found.seconds) < least:
            begun = time.monotonic()
            usage = http.post("/chat", json=CHAT).raise_for_status().json()["usage"]
            found.seconds.append(time.monotonic() - begun)
            found.tokens += usage["completion_tokens"]
    return found


@contextmanager
def greedy(url: str, body: dict[str, Any], n: int) -> Iterator[None]:
    """`n` connections that ask again and again, from before the block to its end."""
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=600) as http:
            while not over.is_set():
                with http.stream("POST", "/v1/completions", json=body) as answer:
                    for _ in answer.iter_raw():
                        if over.is_set():
                            break

    threads = [threading.Thread(target=ask) for _ in range(n)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def counted(url: str) -> list[float]:
    """Tokens of all answers, and steps."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return [float(line.rpartition(" ")[2]) for name in COUNTED for line in lines if line.startswith(name)]


def one_round(url: str, args: argparse.Namespace) -> dict[str, float]:
    quiet = chats(url, 0, args.least)
    rates: list[float] = []
    for beside in (False, True, False):
        with greedy(url, GREEDY[args.greedy], args.n):
            before, begun = counted(url), time.monotonic()
            if beside:
                seen = chats(url, args.seconds, args.least)
            else:
                time.sleep(args.seconds)
            after, spent = counted(url), time.monotonic() - begun
        rates.append((after[0] - before[0]) / spent)
        if beside:
            others, step = seen.tokens / spent, spent / (after[1] - before[1])
    alone = (rates[0] + rates[2]) / 2
    return {
        "alone": alone, "apart": abs(rates[0] - rates[2]) / alone, "greedy": rates[1] - others, "second": others,
        "kept": rates[1] / alone, "step": step, "quiet p99": quiet.quantile(0.99), "p50": seen.quantile(0.5),
        "p99": seen.quantile(0.99), "chats": len(seen.seconds), "load": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(EMBEDDED_MODEL))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of each part at least")
    parser.add_argument("--least", type=int, default=100, help="chats of the second client in each part at least")
    parser.add_argument("--n", type=int, default=12, help="connections of the greedy client")
    parser.add_argument("--greedy", choices=list(GREEDY), default="answers")
    args, flags = parser.parse_known_args()
    model = checkpoint() if args.model == "240m" else Path(args.model)
    with ExitStack() as stack:
        url = stack.enter_context(served(model, "default", flags))
        chats(url, 0, 3)
        rounds = []
        for _ in range(args.rounds):
            rounds.append(one_round(url, args))
            print("  ".join(f"{name} {value:.3g}" for name, value in rounds[-1].items()), flush=True)
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    print("medians: " + "  ".join(f"{name} {value:.3g}" for name, value in medians.items()))


if __name__ == "__main__":
    main()
