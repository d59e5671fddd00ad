"""Shares among clients behind the ingress: each replica knows them by their addresses."""

import contextlib
import itertools
import json
from collections.abc import Callable

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


def hold_of(replica: str, replicas: set[str], n_places: int) -> dict[str, object]:
    """What takes so many places of one replica, and goes there by its content."""
    bodies = ({"prompt": [[1]] * n_places, "max_tokens": 4000 - n, "ignore_eos": True} for n in range(64))
    salted = ({**body, "cache_salt": f"salt {n}"} for n, body in enumerate(bodies))
    return next(one for one in salted if order(digest_of([], json.dumps(one).encode()), [*replicas])[0] == replica)


Hold = Callable[[str, set[str]], list[tuple[str, bytes]]]  # a replica, and all: addresses, and what comes from each


def one_client(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    return [("", posted(PATH, hold_of(replica, replicas, MOST_REQUESTS)))]


def eight_addresses(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    """Together an eighth more than there are places."""
    return [(f"127.0.0.{n}", posted(PATH, hold_of(replica, replicas, MOST_REQUESTS // 7))) for n in range(3, 11)]


def streams(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    """As many as there are places."""
    bodies = (chat(text, stream=True, max_tokens=3000, ignore_eos=True) for text in texts_of(replica, replicas))
    return [("", posted("/v1/chat/completions", body)) for body in itertools.islice(bodies, MOST_REQUESTS)]


@pytest.mark.parametrize("hold", [one_client, eight_addresses, streams])
def test_who_holds_every_place_starves_nobody(cluster: Cluster, hold: Hold) -> None:
    """They read nothing. Another client's chats are all answered, by both replicas, and who holds has to give way."""
    replicas = cluster.replicas()

    def inside() -> float:
        both = (cluster.metrics(f"pixelferry:num_requests_{state}") for state in ("running", "waiting"))
        return sum(sum(found.values()) for found in both)

    before = cluster.metrics("pixelferry:client_share_gave_way_total")
    with contextlib.ExitStack() as stack:
        for replica in sorted(replicas):
            for source, message in hold(replica, replicas):
                sock = stack.enter_context(contextlib.closing(connected(URL, source=source)))
                say(sock, message)
        until("every place is taken", lambda: inside() >= 2 * MOST_REQUESTS - 8, 60, 0.2)
        with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=URL, timeout=120) as http:
            for replica in sorted(replicas):
                texts = texts_of(replica, replicas)
                assert [answered(http, chat(next(texts))).status for _ in range(3)] == [200] * 3
        gave_way = cluster.metrics("pixelferry:client_share_gave_way_total")
        assert all(gave_way[replica] > before[replica] for replica in replicas)
    until("all is let go", lambda: inside() == 0, 60, 0.2)
