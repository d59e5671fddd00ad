"""Thousands of chats with clients that leave in between: nothing grows, nothing is left. `make long`."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, SMALL, recovered
from tests.e2e.running import RunningServer, data_url, picture

pytestmark = pytest.mark.process

ROUNDS, CHATS, CLIENTS = 5, 400, 12
LEAVER = 20  # one client in so many does not wait for its answer


def chat(server: RunningServer, number: int) -> int:
    """One chat's status; 0 for a client that left."""
    inputs = [{"image": SMALL}, {"text": f"number {number}"}] if number % 3 else [{"text": f"number {number}"}]
    patience = 0.02 if number % LEAVER == 0 else 60.0
    try:
        return httpx.post(
            f"{server.url}/chat", json={"inputs": inputs, "parameters": GREEDY}, timeout=patience
        ).status_code
    except httpx.TimeoutException:
        return 0


@pytest.mark.long
def test_thousands_of_chats_leave_nothing(start: Start) -> None:
    with start() as server, ThreadPoolExecutor(CLIENTS) as pool:
        children = server.children("worker") + server.children("engine")
        sizes = []
        for turn in range(ROUNDS):
            statuses = list(pool.map(lambda n: chat(server, n), range(turn * CHATS, (turn + 1) * CHATS)))
            assert set(statuses) <= {200, 0} and statuses.count(200) >= CHATS * (1 - 1 / LEAVER)
            recovered(server)
            sizes.append(server.nbytes())
        need = CLIENTS * (2 * 4096 + 6 * 10 * 588)
        assert max(sizes) <= need and sizes[-1] == sizes[-2]
        assert server.children("worker") + server.children("engine") == children
        assert server.chat({"image": data_url(picture(300, 200))}, **GREEDY).status_code == 200
