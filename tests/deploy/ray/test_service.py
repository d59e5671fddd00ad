"""The service on a real cluster of two nodes: what a client gets, and what it gets when something dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.ray.cluster import SECOND, URL, Cluster, cluster_in
from tests.e2e.running import REPO, children_of, command_line, is_gone, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
EXAMPLES = ("chat.sh", "chat_openai.py", "modalities.sh", "modalities_openai.py", "structured.py", "tools.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared; whoever kills something waits until it is whole again."""
    with cluster_in(tmp_path_factory.mktemp("r")) as cluster:
        yield cluster
    left = [name for name in os.listdir("/dev/shm") if name.startswith("pixelferry")]
    assert left == [], "what a replica had in shared memory is gone with it"


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **fields}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def metric(cluster: Cluster, start: str) -> float:
    """The sum over all replicas of the lines that begin so."""
    lines = cluster.http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_each_node_has_a_replica(cluster: Cluster) -> None:
    servers = cluster.servers()
    assert set(servers) == cluster.replicas() and len(servers) == 2
    assert {cluster.node_of(server) for server in servers.values()} == {"10.88.0.1", "10.88.0.2"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_work_through_the_ingress(cluster: Cluster, name: str) -> None:
    program = ["bash"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*program, f"examples/{name}"], cwd=REPO, capture_output=True, text=True, timeout=240,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


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
    times = []
    with cluster.http.stream("POST", "/v1/chat/completions", json=chat("hello", stream=True)) as response:
        text = ""
        for event in events(response):
            times.append(time.monotonic())
            text += event["choices"][0]["delta"].get("content") or "" if event["choices"] else ""
    assert text == plain and len(times) > 5 and times[-1] - times[0] > 0.01
    endless = chat("hello", stream=True, max_tokens=3000, ignore_eos=True)
    with cluster.http.stream("POST", "/v1/chat/completions", json=endless) as response:
        stream = events(response)  # held: with it goes the connection
        next(stream)
        until("a replica says that it runs", lambda: metric(cluster, "pixelferry:num_requests_running{") == 1, 10)
    until("the replica knows", lambda: metric(cluster, "pixelferry:num_requests_running{") == 0, 10)


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
    until("both replicas answer again", cluster.whole, 60, 0.5)


def test_a_killed_replica_costs_nobody_more_than_its_own_stream(cluster: Cluster) -> None:
    """SIGKILL of the actor. Its stream ends with an error event; what had not begun is answered by the other one."""
    killed(cluster, lambda server: os.kill(cluster.actor_of(server), signal.SIGKILL), node=None)


def test_a_killed_node_costs_nobody_more_than_its_own_streams(cluster: Cluster) -> None:
    """SIGKILL of the second raylet; another one joins afterwards."""
    killed(cluster, lambda server: os.kill(cluster.raylet(SECOND), signal.SIGKILL), node=SECOND)


def killed(cluster: Cluster, kill: Any, node: str | None) -> None:
    expected = cluster.http.post("/v1/chat/completions", json=chat("hello")).json()["choices"][0]["message"]
    victim = next(one for one in cluster.servers().values() if node is None or cluster.node_of(one) == node)
    root = Path(f"/dev/shm/pixelferry-{os.getuid()}-{next(k for k, v in cluster.servers().items() if v == victim)}")
    assert root.exists()
    children = children_of(victim)
    stop = threading.Event()
    answers: list[tuple[int, Any]] = []

    def ask_on() -> None:
        with httpx.Client(base_url=URL, timeout=120) as http:
            while not stop.is_set():
                answer = http.post("/v1/chat/completions", json=chat("hello"))
                answers.append((answer.status_code, answer.json()))

    ended: list[dict[str, Any]] = []

    def long_stream() -> None:
        body = chat(f"hello {time.monotonic()}", stream=True, max_tokens=3000, ignore_eos=True)
        with (
            httpx.Client(base_url=URL, timeout=120) as http,
            http.stream("POST", "/v1/chat/completions", json=body) as r,
        ):
            *_, last = events(r)
            ended.append(last)

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(long_stream) for _ in range(4)]
        asking = [pool.submit(ask_on) for _ in range(2)]
        try:
            until("all run", lambda: metric(cluster, "pixelferry:num_requests_running{") >= 4, 60)
            kill(victim)
            died = time.monotonic()
            until("its server is gone", lambda: all(map(is_gone, [victim, *children])), 15)
            until("its shared memory is gone", lambda: not root.exists(), 35 - (time.monotonic() - died))
            time.sleep(3)
        finally:
            stop.set()
        for one in (*asking, *streams):
            one.result(300)
    assert {status for status, _ in answers} == {200}, [answer for answer in answers if answer[0] != 200]
    assert all(answer["choices"][0]["message"] == expected for _, answer in answers)
    errors = [last["error"]["code"] for last in ended if "error" in last]
    assert errors and set(errors) == {"replica_died"} and len(errors) < 4, ended
    if node is not None:
        cluster.start(node)
    until("both replicas answer again", cluster.whole, 120, 0.5)
