"""Routing by content beside round robin, Serve's own and least in flight: what caches keep, and times to a first token.

    serve run benchmarks.ray_routing:app                      # on a cluster with room for two replicas
    python -m benchmarks.ray_routing [--url URL] [--rounds 5] [--pictures 8] [--questions 8] [--at-once 16]

Questions about shared pictures in random order. In each round all ways get the same questions about pictures of
which no replica has seen any, one way after another, at the same replicas: a header tells the router which way it is.
Printed are medians over the rounds, least and greatest, and ratios to round robin of the same round. It runs where
Ray is installed (docs/scaling.md).
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import LocalityMixin

from benchmarks.content_caches import Bodies
from deploy.ray.app import Options, application
from deploy.ray.router import ContentRouter

WAY = "x-benchmark-way"
WAYS = ("round_robin", "power_of_two", "least_in_flight", "content")


class RoutedByHeader(LocalityMixin, ContentRouter):  # type: ignore[misc]  # the mixin is what Serve's own way asks
    """One of these ways, as each request says; power_of_two is what Serve does where it is told nothing."""

    def initialize_state(self, most: int, by_content: bool = True) -> None:
        super().initialize_state(most, by_content)
        self._turn = itertools.count()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        request = pending_request.args[0]
        way = dict(request.headers).get(WAY.encode(), b"").decode()
        if way == "power_of_two":
            own: list[list[Any]] = await PowerOfTwoChoicesRequestRouter.choose_replicas(
                self, candidate_replicas, pending_request
            )
            return own
        self._by_content = way == "content"
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        if way != "round_robin":
            return ranks
        ranks.sort(key=lambda rank: rank[0].replica_id.unique_id)
        first = next(self._turn) % len(ranks)
        return [*ranks[first:], *ranks[:first]]


def app(options: Options) -> Any:
    """What `serve run` takes."""
    return application(options, RoutedByHeader)


class Asked(msgspec.Struct):
    """What one question came to."""

    seconds: float  # to the first token
    prompt_tokens: int
    cached_tokens: int


def ask(http: httpx.Client, way: str, body: dict[str, Any]) -> Asked:
    begun, first, usage = time.monotonic(), 0.0, None
    with http.stream("POST", "/v1/chat/completions", json=body, headers={WAY: way}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = msgspec.json.decode(line.removeprefix("data: "))
                if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                    first = time.monotonic() - begun
                usage = event.get("usage") or usage
    assert usage is not None and first, "no token came"
    return Asked(first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def questions(seed: int, n_pictures: int, n_questions: int) -> list[dict[str, Any]]:
    """In random order, about pictures that nobody has seen."""
    drawn = Bodies(seed)
    pictures = [drawn.picture()["image"] for _ in range(n_pictures)]
    parts = [
        [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": drawn.words(6)}]
        for picture in pictures
        for _ in range(n_questions)
    ]
    random.Random(seed).shuffle(parts)
    return [
        {
            "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 4, "stream": True,
            "stream_options": {"include_usage": True},
        }
        for content in parts
    ]  # fmt: skip


def shown(values: Sequence[float], digits: int) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    for name, default in (("--rounds", 5), ("--pictures", 8), ("--questions", 8), ("--at-once", 16)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    hits: dict[str, list[float]] = {way: [] for way in WAYS}
    firsts: dict[str, list[float]] = {way: [] for way in WAYS}
    with httpx.Client(base_url=given.url, timeout=600) as http, ThreadPoolExecutor(given.at_once) as pool:
        for n in range(-1, given.rounds):  # the first one warms up
            first = n % len(WAYS)
            for way in (*WAYS[first:], *WAYS[:first]):
                # A salt of its own: no way finds what another one left, and the pictures are the same ones.
                bodies = [{**one, "cache_salt": way} for one in questions(n + 1, given.pictures, given.questions)]
                asked = [*pool.map(lambda body, way=way: ask(http, way, body), bodies)]
                if n >= 0:
                    hits[way].append(sum(one.cached_tokens for one in asked) / sum(one.prompt_tokens for one in asked))
                    firsts[way].append(statistics.median(one.seconds for one in asked))
    for way in WAYS:
        ratios = [mine / other for mine, other in zip(firsts[way], firsts["round_robin"], strict=True)]
        print(f"{way}: hits {shown(hits[way], 3)}, first token {shown(firsts[way], 3)} s, ratio {shown(ratios, 2)}")


if __name__ == "__main__":
    main()
