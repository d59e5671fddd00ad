"""Two hundred forms that are made to cost or to break: each is refused or answered, while a second client is served."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer
from tests.hostile.conftest import Held
from tests.hostile.forms import HostileForm, forms
from tests.hostile.measure import Attack
from tests.hostile.posting import BODY_BYTES, JSON, SERVER_BYTES, until_over

pytestmark = pytest.mark.long
LATE = 0.5  # seconds that the p99 of the second client may grow by
SLOWEST = 40.0  # of one form: 5 s of compiling beside others, on a shared machine


def post(http: httpx.Client, form: HostileForm) -> str | None:
    """What is not as it must be with one form."""
    begun = time.monotonic()
    answer = http.post("/v1/chat/completions", content=form.body, headers=JSON)
    seconds = time.monotonic() - begun
    if seconds > SLOWEST:
        return f"{form.name}: {seconds:.1f} s"
    if answer.status_code == 200:
        finish = answer.json()["choices"][0]["finish_reason"]
        return None if finish in ("stop", "length") else f"{form.name}: ended by {finish}"
    error = answer.json()["error"]
    named = error["code"] in ("invalid_json", "too_many_values") or (error["param"] or "").startswith(
        "structured_outputs"
    )
    fine = answer.status_code == 400 and named and len(answer.content) < 2000
    return None if fine else f"{form.name}: {answer.status_code} {answer.text[:200]}"


def test_others_are_answered_meanwhile(start: Start, held: Held) -> None:
    """One connection asks for one form after the other, as long as is measured and until all were asked for."""
    problems: list[str] = []
    asked: set[str] = set()

    @contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def attack() -> None:
            with httpx.Client(base_url=server.url, timeout=120) as http:
                for form in itertools.cycle(forms()):
                    if over.is_set():
                        break
                    problem = post(http, form)
                    problems.extend([problem] if problem else [])
                    asked.add(form.name)

        with until_over([attack], over):
            yield
            while len(asked) < n_forms and not over.wait(0.5):
                pass

    n_forms = len(list(forms()))
    assert n_forms >= 200
    with start("--workers", "2") as server:
        held(server, Attack(name="forms", go=go, memory_bytes=SERVER_BYTES + BODY_BYTES, more=LATE))
        assert [server.metric(f'child_restarts_total{{role="{role}"}}') for role in ("engine", "worker")] == [0, 0]
        server.assert_nothing_held()
    assert not problems, "\n".join(problems)
