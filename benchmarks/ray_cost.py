"""Processor time of a request and of a streamed event on Ray Serve: the service, its server alone, and Ray alone.

    serve run --name pixelferry --route-prefix / deploy.ray.app:app            # one ingress, one replica
    serve run --name bare --route-prefix /bare benchmarks.ray_cost:bare        # beside it
    python -m benchmarks.ray_cost [--url URL] [--rounds 40] [--chats 10] [--streams 1] [--idle 2]

Ray alone is the way of the service with nothing of it: what Serve calls, a streaming handle, and a replica that yields
as many pieces of the same sizes, as fast. The service's middleware in Serve's proxy is part of both.
Three ways take turns within each round, one request after another; on the same machine the time of each process is
read before and after (user and system, all threads). What a process takes while nobody asks is measured in each round,
and taken off. Printed are means of the middle half of the rounds. It runs where Ray is installed (docs/scaling.md).
"""

import argparse
import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

BARE = "/bare"
N_TOKENS = 200
COLUMNS = ("server", "replica", "ingress", "proxy", "rest of Ray")
WAYS = {"server": COLUMNS[:1], "service": COLUMNS, "ray": COLUMNS[1:]}  # and whose time belongs to it
OWNERS = {"Replica": "service replica", "Ingress": "service ingress"}
OWNERS |= {"BareReplica": "ray replica", "BareIngress": "ray ingress"}
Cost = dict[str, float]  # milliseconds by column


class Shape(msgspec.Struct):
    """An answer without its content."""

    head: int  # bytes of its headers
    sizes: list[int]  # bytes of its pieces
    pause: float  # seconds from one to the next


class BareReplica:
    """Yields what deploy.ray.replica.Replica does: a name, a head, then the body as it comes."""

    async def forward(self, head: int, n: int, size: int, pause: float, body: bytes) -> AsyncIterator[str | bytes]:
        yield "x" * 8
        yield bytes(head)
        for number in range(n):
            if number:
                await asyncio.sleep(pause)
            yield b"x" * size


class BareFront:
    """What Serve calls for each request."""

    def __init__(self, replica: "DeploymentHandle[Any]") -> None:
        self._streaming = replica.options(stream=True, method_name="forward")

    async def __call__(self, request: Request) -> Response:
        asked = request.query_params
        n, size, pause = int(asked["n"]), int(asked["size"]), float(asked["pause"])
        pieces = self._streaming.remote(int(asked["head"]), n, size, pause, await request.body())
        await anext(pieces)
        await anext(pieces)
        return StreamingResponse(pieces, media_type="text/event-stream")


bare = serve.deployment(BareFront, name="BareIngress").bind(serve.deployment(BareReplica, name="BareReplica").bind())


def words_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")


def stat_of(pid: int) -> list[str]:
    """From the state on, the third field of proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def role_of(words: list[str]) -> str:
    """The column of a process, with the way it belongs to where that is one alone; "" for what is not counted.

    The rest of Ray is its raylets, its GCS and Serve's controller.
    """
    name = Path(words[0]).name
    if words[0].startswith("ray::ServeReplica:"):
        return OWNERS[words[0].split(":")[4].partition(".")[0]]
    if words[0].startswith("ray::ProxyActor"):
        return "proxy"
    if name in ("raylet", "gcs_server") or words[0].startswith("ray::ServeController"):
        return COLUMNS[-1]
    return "server" if "--parent-descriptor" in words else ""


def found_roles() -> tuple[dict[int, str], str]:
    """The role of each process of the service and of Ray, and the URL of the replica's server."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    roles = {pid: role_of(words_of(pid)) for pid in pids}
    (server,) = (pid for pid, role in roles.items() if role == "server")
    words = words_of(server)
    parents = {pid: int(stat_of(pid)[1]) for pid in pids}
    for pid in pids:
        above = pid
        while above not in (0, server):
            above = parents.get(above, 0)
        if above == server:
            roles[pid] = "server"
    url = Path(words[words.index("--url-file") + 1]).read_text(encoding="ascii").strip()
    return {pid: role for pid, role in roles.items() if role}, url


def spent(roles: dict[int, str]) -> dict[str, float]:
    """Seconds of processor time so far, by role."""
    ticks: Counter[str] = Counter()
    for pid, role in roles.items():
        user, system = stat_of(pid)[11:13]
        ticks[role] += int(user) + int(system)
    return {role: n / os.sysconf("SC_CLK_TCK") for role, n in ticks.items()}


def chat(n_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": n_tokens,
        "ignore_eos": True, "stream": n_tokens > 1,
    }  # fmt: skip


def ask(http: httpx.Client, url: str, n_tokens: int) -> Shape:
    sizes, times = [], []
    with http.stream("POST", url, json=chat(n_tokens)) as answer:
        answer.raise_for_status()
        for chunk in answer.iter_raw():
            sizes.append(len(chunk))
            times.append(time.monotonic())
    head = sum(len(name) + len(value) for name, value in answer.headers.raw)
    return Shape(head, sizes, (times[-1] - times[0]) / max(1, len(sizes) - 1))


class Taken(msgspec.Struct):
    """What some answers took, or what processes took while nobody asked."""

    seconds: float  # of the clock
    processor: dict[str, float]  # seconds by role
    n: int = 1

    def cost(self, way: str, idle: Sequence["Taken"]) -> Cost:
        """Of one answer, beside what processes take without it."""
        ms = {}
        for role, seconds in self.processor.items():
            rate = sum(one.processor[role] for one in idle) / sum(one.seconds for one in idle)
            ms[role.removeprefix(f"{way} ")] = 1e3 * (seconds - rate * self.seconds) / self.n
        return {column: ms[column] if column in WAYS[way] else 0.0 for column in COLUMNS}


class Meter:
    """Asks and reads; knows the processes."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._roles, direct = found_roles()
        path = "/v1/chat/completions"
        self._urls = {"server": direct + path, "service": url + path, "ray": url + BARE}
        self.shapes = {n_tokens: ask(http, self._urls["service"], n_tokens) for n_tokens in (1, N_TOKENS)}

    def asked(self, way: str, n_tokens: int, n: int) -> Taken:
        """So many answers, one after another."""
        url = self._urls[way]
        if way == "ray":  # as the service answered last
            shape = self.shapes[n_tokens]
            size = round(statistics.mean(shape.sizes))
            url += f"?head={shape.head}&n={len(shape.sizes)}&size={size}&pause={shape.pause}"

        def run() -> None:
            for _ in range(n):
                answer = ask(self._http, url, n_tokens)
                if way == "service":
                    self.shapes[n_tokens] = answer

        return self.taken(run, n)

    def taken(self, run: Callable[[], None], n: int = 1) -> Taken:
        begun, before = time.monotonic(), spent(self._roles)
        run()
        after = spent(self._roles)
        return Taken(time.monotonic() - begun, {role: after[role] - before[role] for role in after}, n)


def less(one: Cost, other: Cost) -> Cost:
    return {column: one[column] - other[column] for column in COLUMNS}


def rows_of(server: Cost, service: Cost, ray: Cost) -> dict[str, Cost]:
    """Those of one round."""
    more = less(service, server)
    return {
        "server": server, "service": service, "service beside server": more, "Ray alone": ray,
        "the difference": less(more, ray),
    }  # fmt: skip


def middle(costs: Sequence[Cost]) -> Cost:
    """The mean of the middle half in each column: a median knows no more than the kernel's ticks of 10 ms."""
    aside = len(costs) // 4
    ordered = {column: sorted(cost[column] for cost in costs) for column in COLUMNS}
    return {column: statistics.mean(ordered[column][aside : len(costs) - aside]) for column in COLUMNS}


def shown(name: str, cost: Cost) -> None:
    cells = " ".join(f"{cost[column]:12.2f}" for column in COLUMNS)
    print(f"  {name:<24}{cells} {sum(cost.values()):12.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    for name, default in (("--rounds", 40), ("--chats", 10), ("--streams", 1), ("--idle", 2)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    ways, idle = [*WAYS], []
    rounds: dict[int, list[dict[str, Taken]]] = {1: [], N_TOKENS: []}
    with httpx.Client(timeout=600) as http:
        meter = Meter(http, given.url)
        for number in range(-1, given.rounds):  # the first one warms up
            idle.append(meter.taken(lambda: time.sleep(given.idle)))
            first = number % len(ways)
            for n_tokens, n in ((1, given.chats), (N_TOKENS, given.streams)):
                taken = {way: meter.asked(way, n_tokens, n) for way in (*ways[first:], *ways[:first])}
                if number >= 0:
                    rounds[n_tokens].append(taken)
    print(f"{'ms':<26}" + " ".join(f"{column:>12}" for column in (*COLUMNS, "sum")))
    means: dict[int, dict[str, Cost]] = {}
    for n_tokens, takens in rounds.items():
        print(f"{n_tokens} tokens, {len(meter.shapes[n_tokens].sizes)} pieces")
        rows = [rows_of(*(taken[way].cost(way, idle) for way in WAYS)) for taken in takens]
        means[n_tokens] = {name: middle([row[name] for row in rows]) for name in rows[0]}
        for name, cost in means[n_tokens].items():
            shown(name, cost)
    n_more = len(meter.shapes[N_TOKENS].sizes) - len(meter.shapes[1].sizes)
    print("a further piece")
    for name, cost in means[N_TOKENS].items():
        further = less(cost, means[1][name])
        shown(name, {column: further[column] / n_more for column in COLUMNS})


if __name__ == "__main__":
    main()
