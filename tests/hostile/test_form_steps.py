"""Forms whose steps cost, behind texts that no trial draws to their end: they cost their own client's answers alone."""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, until
from tests.hostile.conftest import Held
from tests.hostile.measure import COUNTED, FULL, Attack, Scale
from tests.hostile.posting import JSON, SERVER_BYTES, until_over

pytestmark = pytest.mark.process

SCALES = [
    pytest.param(COUNTED, marks=pytest.mark.faults, id="short"),
    pytest.param(FULL, marks=pytest.mark.long, id="full"),
]
STREAMS = 8  # of the attacker's, half of what the engine has seats for
RULES = '"a" | e "a" | e e "a" | "a" e | e "a" e | e e e'


def body(number: int) -> bytes:
    """An ambiguous grammar behind 404 characters; its number makes it another one each time."""
    grammar = f'start: "{number:04}{"-" * 400}" e\ne: {RULES}'
    return json.dumps({
        "messages": [{"role": "user", "content": "Hi"}], "structured_outputs": {"grammar": grammar},
        "max_tokens": 1500, "min_tokens": 1500, "temperature": 0,
    }).encode()  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_rows_1_to_3_steps_of_forms_cost_their_own_client_alone(start: Start, held: Held, scale: Scale) -> None:
    numbers, ended = itertools.count(), Counter[str]()

    @contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def attack() -> None:
            away = httpx.HTTPTransport(local_address="127.0.0.2")
            with httpx.Client(base_url=server.url, timeout=120, transport=away) as http:
                while not over.is_set():
                    answer = http.post("/v1/chat/completions", content=body(next(numbers)), headers=JSON)
                    error = answer.json()["error"]
                    ended[f"{answer.status_code} {error['code']} {'processor time' in error['message']}"] += 1

        with until_over([attack] * STREAMS, over):
            yield
            until("a form was ended", lambda: ended)

    with start("--workers", "2") as server:
        held(server, Attack(name="rows 1 to 3", go=go, memory_bytes=SERVER_BYTES), scale)
        assert server.metric('child_restarts_total{role="engine"}') == 0
        server.assert_nothing_held()
    assert set(ended) <= {"400 structured_output True"}, ended
