"""What is asked of a target besides answers."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from server.loadtest.driving.target import Target, TargetError, held_files
from server.loadtest.options import read_options
from server.loadtest.results.leaks import Snapshot, value_of
from tests.server.loadtest.fixed_delays import Delays, running


def asked(delays: Delays, question: Callable[[Target], Awaitable[Any]], *flags: str) -> Any:
    async def run() -> Any:
        async with running(delays) as endpoint:
            target = Target(read_options(["--url", endpoint.url, *flags]), started=perf_counter())
            return await question(target)

    return asyncio.run(run())


def test_the_first_model_is_taken() -> None:
    assert asked(Delays(), Target.model) == "fixed"


def test_a_key_that_is_wanted_is_told_by_its_flag() -> None:
    with pytest.raises(TargetError, match="--api-key"):
        asked(Delays(key="k"), Target.model)
    assert asked(Delays(key="k"), Target.model, "--api-key", "k") == "fixed"


def test_nobody_there_is_one_line() -> None:
    target = Target(read_options(["--url", "http://127.0.0.1:1"]), started=0.0)
    with pytest.raises(TargetError, match=r"no server at 127\.0\.0\.1:1: cannot connect"):
        asyncio.run(target.model())


def test_metrics_and_files_make_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "0123456789a").write_bytes(b"x" * 100)
    found = asked(Delays(metrics={"shm_path_files": 3.0}), Target.snapshot, "--shm-root", str(tmp_path))
    assert (value_of(found.metrics, "shm_path_files"), found.files) == (3.0, 1)
    assert asked(Delays(), Target.snapshot).metrics == {}, "a 404 is no metrics"
    nothing = asked(Delays(metrics={"shm_path_files": 3.0}), Target.snapshot, "--metrics", "none")
    assert nothing.metrics == {} and nothing.files is None


def test_a_busy_server_is_waited_for() -> None:
    delays = Delays(metrics={"num_requests_running": 1.0})

    async def question(target: Target) -> Snapshot:
        waiting = asyncio.create_task(target.settled())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        delays.metrics["num_requests_running"] = 0.0
        return await waiting

    assert asked(delays, question, "--settle", "20s").metrics == {"num_requests_running": 0.0}


def test_a_server_that_never_becomes_idle_is_not_waited_for_for_ever() -> None:
    delays = Delays(metrics={"mm_inflight_bytes": 5.0})
    assert asked(delays, Target.settled, "--settle", "150ms").metrics == {"mm_inflight_bytes": 5.0}


def test_a_watch_keeps_looking_and_keeps_little() -> None:
    kept: list[Snapshot] = []

    async def question(target: Target) -> None:
        watching = asyncio.create_task(target.watch(kept))
        while len(kept) < 3:
            await asyncio.sleep(0.01)
        watching.cancel()

    asked(Delays(metrics={"mm_inflight_bytes": 5.0, "http_requests_total": 9.0}), question, "--sample", "10ms")
    assert {tuple(snapshot.metrics.items()) for snapshot in kept} == {(("mm_inflight_bytes", 5.0),)}


def test_only_what_a_request_holds_is_counted(tmp_path: Path) -> None:
    for name in ("0123456789a", "0123456789b.idle", "server.owner", "0123.paths"):
        (tmp_path / name).write_bytes(b"12345")
    os.mkdir(tmp_path / "0123456789c")
    assert held_files(tmp_path) == 2
    assert held_files(tmp_path / "missing") == 0


def test_a_watch_that_ends_while_its_answer_comes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run, which waits for its onlookers, would have no end."""

    async def go() -> None:
        target = Target(read_options(["--url", "http://127.0.0.1:1", "--sample", "1ms"]), started=0.0)
        answered: list[asyncio.Future[None]] = []

        async def exchange(*_: object) -> None:
            answered.append(asyncio.get_running_loop().create_future())
            await answered[-1]

        monkeypatch.setattr(target._pool, "exchange", exchange)
        watching = asyncio.ensure_future(target.watch([]))
        while not answered:
            await asyncio.sleep(0.001)
        answered[0].set_result(None)
        await asyncio.sleep(0)  # whoever waits for the exchange is woken next
        watching.cancel()
        done, _ = await asyncio.wait({watching}, timeout=1)
        assert done

    asyncio.run(go())
