"""A machine that has no descriptor, process or memory left for a while: the server says so, waits and goes on."""

import errno
import os
from typing import Any

import httpx
import pytest

from server.children import supervisor
from server.children.supervisor import StartFailed
from shm import Pool
from tests.server.doubles import until
from tests.server.test_run_ends import Live, RunningServer, live

__all__ = ["live"]
NO_ROOM = [errno.EMFILE, errno.EAGAIN, errno.ENOMEM]


def failing(errors: list[int], otherwise: Any) -> Any:
    """Raises an OSError for each of `errors`, which it takes away; then does what it should."""

    def call(*args: Any) -> Any:
        if errors:
            number = errors.pop(0)
            raise OSError(number, os.strerror(number))
        return otherwise(*args)

    return call


def test_a_child_is_started_once_there_is_room(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "RELAUNCH_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "backoff", lambda failures: 0.0)

    async def scenario(running: RunningServer) -> None:
        await running.ready()
        errors = list(NO_ROOM)
        monkeypatch.setattr(supervisor, "launch", failing(errors, vars(supervisor)["launch"]))
        running.children[0].kill()
        await until(lambda: len(running.children) == 6)
        await running.ready()
        assert not errors
        running.signal()
        await running.task

    live(scenario)
    told = [record.getMessage() for record in caplog.records if "cannot be started now" in record.getMessage()]
    assert told == [f"a worker cannot be started now ({os.strerror(number)}); it is tried again" for number in NO_ROOM]


def test_the_first_child_that_cannot_be_started_ends_it(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(running: RunningServer) -> None:
        monkeypatch.setattr(supervisor, "launch", failing([errno.EAGAIN], vars(supervisor)["launch"]))
        with pytest.raises(StartFailed, match="the worker could not start: Resource temporarily unavailable"):
            await running.task

    live(scenario)


def test_metrics_are_shown_without_what_cannot_be_looked_at(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        async with httpx.AsyncClient(base_url=running.url) as client:
            monkeypatch.setattr(Pool, "stats", failing([errno.EMFILE], Pool.stats))
            for times in (1, 1):
                answer = await client.get("/metrics")
                assert answer.status_code == 200 and "http_connections 1.0" in answer.text
                assert caplog.text.count("the shared memory could not be looked at: Too many open files") == times
        assert "shm_bytes_capacity 1.048576e+06" in answer.text
        running.signal()
        await running.task

    live(scenario)


def test_a_drain_waits_for_slow_readers(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        unread = running.server._connections.unread
        unread.add(1)
        running.signal()
        await until(lambda: running.service.admission.draining)
        async with httpx.AsyncClient() as client:
            assert (await client.get(running.url + "/health/live")).status_code == 200, "it still serves"
        assert not running.task.done()
        unread.add(-1)
        await running.task

    live(scenario)
