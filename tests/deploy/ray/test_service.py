"""The service on a real cluster of three nodes: what a client gets, and what it gets when something dies."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.ray.asking import Asking, Looking, answered, begun, chat, events, texts_of
from tests.deploy.ray.cluster import HEAD, URL, Cluster
from tests.e2e.running import REPO, children_of, command_line, is_gone, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
EXAMPLES = ("chat.sh", "chat_openai.py", "modalities.sh", "modalities_openai.py", "structured.py", "tools.py")


def metric(cluster: Cluster, start: str) -> float:
    """The sum over all replicas of the lines that begin so."""
    lines = cluster.http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_a_node_has_one_replica(cluster: Cluster) -> None:
    servers = cluster.servers()
    assert set(servers) == cluster.replicas() and len({*map(cluster.node_of, servers.values())}) == 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_work_through_the_ingress(cluster: Cluster, name: str) -> None:
    program = ["bash"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*program, f"examples/{name}"], cwd=REPO, capture_output=True, text=True, timeout=240,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_the_service_shows_all_replicas(cluster: Cluster) -> None:
    """The ingress's own files; one replica's error is told with its name."""
    assert b'id="replicas"' in cluster.http.get("/status").content and cluster.http.get("/status.js").is_success
    assert answered(cluster.http, {"messages": []}).status == 400
    newest = cluster.http.get("/status/errors").json()["errors"][0]
    assert newest["route"] == "/v1/chat/completions" and newest["replica"] in cluster.replicas()
    states = cluster.http.get("/metrics").text.splitlines()
    up = {line.split('replica="')[1].split('"')[0] for line in states if 'state="up"' in line and line.endswith(" 1.0")}
    assert up == cluster.replicas()
    for path in ("/status", "/status/errors", "/metrics"):
        assert cluster.http.get(path, headers={"host": "evil.example"}).status_code == 403


def test_drawings_are_right_and_all_replicas_answer(cluster: Cluster, tmp_path: Path) -> None:
    before = {name: asked(cluster, name) for name in cluster.replicas()}
    command = [
        sys.executable, "-m", "server", "loadtest", "--url", URL, "--mix", "demo", "--requests", "40",
        "--concurrency", "4", "--quiet", "--json", str(tmp_path / "result.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(asked(cluster, name) > n for name, n in before.items())


def asked(cluster: Cluster, replica: str) -> float:
    return metric(cluster, f'pixelferry:prompt_tokens_total{{replica="{replica}"')


def test_the_same_http_as_a_server(cluster: Cluster) -> None:
    http = cluster.http
    missing = http.get("/nowhere")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "route_not_found")
    assert http.put("/v1/chat/completions").status_code == 405
    wrong = http.post("/v1/chat/completions", json=chat("hello", top_p=9), headers={"x-request-id": "mine.1"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "top_p")
    assert wrong.headers.get_list("x-request-id") == ["mine.1"]
    refused = http.post("/v1/chat/completions", json=chat("hello"), headers={"host": "evil.example"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
    head = http.head("/v1/models")
    assert (head.status_code, head.content) == (200, b"") and int(head.headers["content-length"]) > 100
    assert len(http.get("/v1/models", headers={"x-request-id": "no id!"}).headers.get_list("x-request-id")) == 1

    def endless() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * (1 << 20)

    large = http.post("/v1/chat/completions", content=endless())
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")


def test_a_stream_comes_as_it_is_made_and_ends_when_its_client_leaves(cluster: Cluster) -> None:
    plain = cluster.http.post("/v1/chat/completions", json=chat("hello")).json()["choices"][0]["message"]["content"]
    with cluster.http.stream("POST", "/v1/chat/completions", json=chat("hello", stream=True)) as response:
        deltas = [event["choices"][0]["delta"] for event in events(response) if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == plain
    endless = chat("hello", stream=True, max_tokens=3000, ignore_eos=True)
    with cluster.http.stream("POST", "/v1/chat/completions", json=endless) as response:
        stream = events(response)  # held: with it goes the connection
        next(stream)  # it came before the last one was made: the request runs
        until("a replica says that it runs", lambda: metric(cluster, "pixelferry:num_requests_running{") == 1, 60)
    until("the replica knows", lambda: metric(cluster, "pixelferry:num_requests_running{") == 0, 60)


def test_a_hung_engine_costs_nobody_an_answer(cluster: Cluster) -> None:
    """Its server kills it and says so; what it had not begun is tried at the other replica."""
    retries = metric(cluster, "pixelferry:ingress_retries_total")
    asked = [chat(f"What is {n} + {n}?") for n in range(12)]

    def answer(body: dict[str, Any]) -> str:
        response = cluster.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    expected = [answer(body) for body in asked]
    server = next(iter(cluster.servers().values()))
    [engine] = [child for child in children_of(server) if "engine" in command_line(child).split("\0")]
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(answer, asked)) == expected
    assert metric(cluster, "pixelferry:ingress_retries_total") > retries
    assert server in cluster.servers().values(), "the replica lives: its server mends it"
    until("both replicas answer again", cluster.whole, 240, 0.5)


def test_a_replica_that_hangs_hides_no_other(cluster: Cluster) -> None:
    """Its actor says nothing; of the other one probes and metrics still tell."""
    name, server = next(iter(cluster.servers().items()))
    actor = cluster.actor_of(server)
    os.kill(actor, signal.SIGSTOP)
    try:
        assert cluster.http.get("/health/ready").status_code == 200
        assert cluster.replicas() == cluster.servers().keys() - {name}
    finally:
        os.kill(actor, signal.SIGCONT)
    until("both replicas answer again", cluster.whole, 240, 0.5)


def test_a_killed_replica_costs_nobody_more_than_its_own_stream(cluster: Cluster) -> None:
    """SIGKILL of the actor. Its stream ends with an error event; what had not begun is answered by the other one."""
    name, victim = next(iter(cluster.servers().items()))
    killed(cluster, name, victim, cluster.actor_of(victim))


def test_a_killed_node_costs_nobody_more_than_its_own_streams(cluster: Cluster) -> None:
    """SIGKILL of a raylet other than the head's, where the ingress is."""
    name, victim = next(one for one in cluster.servers().items() if cluster.node_of(one[1]) != HEAD)
    killed(cluster, name, victim, cluster.raylet(cluster.node_of(victim)))


def killed(cluster: Cluster, name: str, victim: int, process: int) -> None:
    """victim: the server of the replica `name`, with whose `process` it dies."""
    servers = cluster.servers()
    root = Path(f"/dev/shm/pixelferry-{os.getuid()}-{name}")
    assert root.exists()
    children = children_of(victim)
    (other,) = servers.keys() - {name}
    asked = chat(next(texts_of(name, servers)))
    expected = answered(cluster.http, asked)
    with ExitStack() as stack:
        # Two of each: the bound of load leaves every one where its content belongs. Those that die never end before.
        texts = zip(texts_of(name, servers), texts_of(other, servers), strict=False)
        pairs = [(begun(dies, 3900), begun(lives)) for dies, lives in itertools.islice(texts, 2)]
        streams = [stack.enter_context(stream) for pair in pairs for stream in pair]

        def placed() -> bool:
            running = cluster.metrics("pixelferry:num_requests_running")
            return running.get(name) == 2 and running.get(other, 9) <= 2  # one that is busy may be missing on the page

        until(f"streams of {name} are where they belong", placed, 60)
        asking = stack.enter_context(Asking([asked, asked], pause=0.1))
        until("some are answered", lambda: asking.all_have(2), 120)
        looking = stack.enter_context(Looking())
        os.kill(process, signal.SIGKILL)
        died = time.monotonic()
        until("its server is gone", lambda: all(map(is_gone, [victim, *children])), 150)
        until("its shared memory is gone", lambda: not root.exists(), 150)
        print(f"gone after {time.monotonic() - died:.1f} s")
        until("another replica answers", lambda: cluster.whole() and name not in cluster.replicas(), 240, 0.5)
        print(f"another one answers after {time.monotonic() - died:.1f} s")
        lasts = [[*stream][-1] for stream in streams]
        asking.stop()
    assert {one for answers in asking.answers for one in answers} == {expected}
    told = [last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"] for last in lasts]
    assert told == ["replica_died", "length"] * 2, lasts
    assert [look for look in looking.bodies if look[0] != 200] == [], f"of {len(looking.bodies)} looks"
    print(f"{sum(map(len, asking.answers))} answers, the slowest after {asking.slowest:.1f} s")
