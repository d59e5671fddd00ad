"""The service with one replica: nobody else could answer, and the ingress lives whatever that one does."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import httpx
import pytest

from tests.deploy.ray.asking import PATH, answered, chat
from tests.deploy.ray.cluster import Cluster
from tests.e2e.running import children_of, command_line, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
N_ASKED = 6
LONG = chat("tell me of ships", max_tokens=1500, ignore_eos=True)


def while_they_are_answered(cluster: Cluster, process: int) -> list[httpx.Response]:
    """What N_ASKED clients get whose requests run when the process is killed.

    Until then the ingress answers others.
    """
    with ThreadPoolExecutor(N_ASKED) as pool:
        asking = [pool.submit(cluster.http.post, PATH, json={**LONG, "seed": n}) for n in range(N_ASKED)]
        until("all run", lambda: sum(cluster.metrics("pixelferry:num_requests_running").values()) == N_ASKED, 60)
        os.kill(process, signal.SIGKILL)
        while True:
            assert cluster.http.get("/health/live").status_code == cluster.http.get("/metrics").status_code == 200
            if not wait(asking, timeout=0.2).not_done:
                return [one.result() for one in asking]


def told(answer: httpx.Response) -> Any:
    return answer.json()["error"]["code"]


def test_the_error_of_the_only_replica_is_the_answer_at_once(service: Cluster) -> None:
    [server] = service.servers().values()
    [engine] = [child for child in children_of(server) if "engine" in command_line(child).split("\0")]
    answers = while_they_are_answered(service, engine)
    assert {(answer.status_code, told(answer)) for answer in answers} == {(503, "engine_died")}
    assert all("retry-after" in answer.headers for answer in answers)
    assert answered(service.http, chat("hello")).status == 200, "after the restart, at the same replica"
    assert [*service.servers().values()] == [server]


def test_the_ingress_outlives_the_server_of_its_only_replica(service: Cluster) -> None:
    """What ran waits ten seconds for another one, which may take longer; that one answers what comes next."""
    [(name, server)] = service.servers().items()
    answers = while_they_are_answered(service, server)
    assert {told(answer) for answer in answers if answer.status_code != 200} <= {"no_replica"}
    until("another replica answers", lambda: service.ready() and name not in service.replicas(), 120, 0.2)
    assert answered(service.http, chat("hello")).status == 200
