"""Shares among clients behind the ingress: each replica knows them by their addresses."""

import contextlib
import json

import httpx
import pytest

from deploy.ray.affinity import digest_of, order
from tests.deploy.ray.asking import answered, chat, texts_of
from tests.deploy.ray.cluster import MOST_REQUESTS, URL, Cluster
from tests.e2e.running import until
from tests.hostile.clients import connected, posted, say

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
OTHER = "127.0.0.2"
PATH = "/v1/completions"


def hold_of(replica: str, replicas: set[str]) -> dict[str, object]:
    """What takes every place of one replica, and goes there by its content."""
    bodies = ({"prompt": [[1]] * MOST_REQUESTS, "max_tokens": 4000 - n, "ignore_eos": True} for n in range(64))
    salted = ({**body, "cache_salt": f"salt {n}"} for n, body in enumerate(bodies))
    return next(one for one in salted if order(digest_of([], json.dumps(one).encode()), [*replicas])[0] == replica)


def test_a_client_that_holds_every_place_starves_nobody(cluster: Cluster) -> None:
    """It reads nothing. Another one's chats are all answered, by both replicas, and the first one has to give way."""
    replicas = cluster.replicas()

    def inside() -> float:
        both = (cluster.metrics(f"pixelferry:num_requests_{state}") for state in ("running", "waiting"))
        return sum(sum(found.values()) for found in both)

    with contextlib.ExitStack() as stack:
        for replica in sorted(replicas):
            sock = stack.enter_context(contextlib.closing(connected(URL)))
            say(sock, posted(PATH, hold_of(replica, replicas)))
        until("every place is taken", lambda: inside() >= 2 * MOST_REQUESTS, 60, 0.2)
        with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=URL, timeout=120) as http:
            for replica in sorted(replicas):
                texts = texts_of(replica, replicas)
                assert [answered(http, chat(next(texts))).status for _ in range(3)] == [200] * 3
        gave_way = cluster.metrics("pixelferry:client_share_gave_way_total")
        assert all(gave_way[replica] > 0 for replica in replicas)
    until("all is let go", lambda: inside() == 0, 60, 0.2)
