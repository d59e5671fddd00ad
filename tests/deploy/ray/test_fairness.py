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
PLACES = MOST_REQUESTS // 7  # of one of several requests: fewer than that may be left
PATH = "/v1/completions"


def hold_of(replica: str, replicas: set[str], n_places: int) -> dict[str, object]:
    """What takes so many places of one replica, and goes there by its content."""
    bodies = ({"prompt": [[1]] * n_places, "max_tokens": 4000 - n, "ignore_eos": True} for n in range(64))
    salted = ({**body, "cache_salt": f"salt {n}"} for n, body in enumerate(bodies))
    return next(one for one in salted if order(digest_of([], json.dumps(one).encode()), [*replicas])[0] == replica)


Hold = Callable[[str, set[str]], list[tuple[str, bytes]]]  # a replica, and all: addresses, and what comes from each


def one_client(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    return [("", posted(PATH, hold_of(replica, replicas, MOST_REQUESTS)))]


def ten_addresses(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    """Together more than there are places, wherever the bound of load leads them."""
    return [(f"127.0.0.{n}", posted(PATH, hold_of(replica, replicas, PLACES))) for n in range(3, 13)]


def streams(replica: str, replicas: set[str]) -> list[tuple[str, bytes]]:
    """As many as there are places."""
    bodies = (chat(text, stream=True, max_tokens=3000, ignore_eos=True) for text in texts_of(replica, replicas))
    return [("", posted("/v1/chat/completions", body)) for body in itertools.islice(bodies, MOST_REQUESTS)]


@pytest.mark.parametrize("hold", [one_client, ten_addresses, streams])
def test_who_holds_every_place_starves_nobody(cluster: Cluster, hold: Hold) -> None:
    """They read nothing. Another client's chats are all answered, wherever they belong, and who holds gives way."""
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
        until(
            "every place is taken", lambda: inside() > 2 * (MOST_REQUESTS - PLACES), 240, 0.2,
            lambda: cluster.http.get("/metrics").text,
        )  # fmt: skip
        with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=URL, timeout=120) as http:
            for replica in sorted(replicas):
                texts = texts_of(replica, replicas)
                assert [answered(http, chat(next(texts))).status for _ in range(3)] == [200] * 3
        after = cluster.metrics("pixelferry:client_share_gave_way_total")
        assert sum(after.values()) > sum(before.values())
    until("all is let go", lambda: inside() == 0, 240, 0.2)
