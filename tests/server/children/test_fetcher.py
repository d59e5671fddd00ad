"""Who fetches next: bounds in all and for one client, turns among clients, and what follows from a death."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from configs.fetch import FetchConfig
from server.children import fetcher as module
from server.children.fetcher import Fetcher, FetcherDied, FetchGaveWay, FetchJob
from server.children.replies import NobodyUp
from server.children.supervisor import CRASH_LOOP_STARTS
from server.fetching.messages import CancelFetch, Fetch, FetchedPiece, FetchEnded, FetcherPulse, FetcherReady
from server.metrics import Metrics
from tests.server.doubles import ChildDouble, config_of, kill_in, told_in, until
from tests.tables import each_of


def start_fetcher(fetcher: Fetcher) -> None:
    child: Any = ChildDouble()
    fetcher.on_started(child)
    fetcher.on_message(FetcherReady())


def play(scenario: Callable[[Fetcher], Coroutine[Any, Any, None]], *, wait: float = 60.0, **bounds: Any) -> None:
    async def whole() -> None:
        owner: Any = None  # only its own launch() would ask it
        config = config_of(fetch=FetchConfig(domains=("a.test",), **bounds), wait_seconds=wait)
        fetcher = Fetcher(config, owner, Metrics("tiny", "1.2.3"))
        start_fetcher(fetcher)
        await asyncio.wait_for(scenario(fetcher), 20)
        if fetcher.child is not None and fetcher.child.alive:
            kill_in(fetcher)
        assert not fetcher._running and not fetcher.n_waiting and not fetcher._places.total, "all turns are given back"

    asyncio.run(whole())


def ask(fetcher: Fetcher, *jobs: str) -> "list[asyncio.Task[FetchJob]]":
    """Each is CLIENT/NAME."""
    return [asyncio.create_task(fetcher.begin(f"http://a.test/{job}", job.partition("/")[0])) for job in jobs]


def told(fetcher: Fetcher) -> list[str]:
    return [said.url.removeprefix("http://a.test/") for said in told_in(fetcher) if isinstance(said, Fetch)]


def end(fetcher: Fetcher, name: str, outcome: Any = "whole", client: str = "") -> None:
    (number,) = (
        said.request_id
        for said in told_in(fetcher)
        if isinstance(said, Fetch) and said.url.endswith(f"{client}/{name}")
    )
    fetcher.on_message(FetchEnded(request_id=number, outcome=outcome))


def test_so_many_at_once_and_of_one_client() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        jobs = ask(fetcher, "a/1", "a/2", "a/3", "b/1", "c/1")
        await until(lambda: told(fetcher) == ["a/1", "a/2", "b/1"])
        assert fetcher.n_waiting == 2
        end(fetcher, "a/1")
        await until(lambda: fetcher.n_waiting == 1)
        await until(lambda: told(fetcher)[-1] == "c/1")  # it was given least
        end(fetcher, "b/1")
        await until(lambda: told(fetcher)[-1] == "a/3")
        await asyncio.gather(*jobs)

    play(scenario, at_once=3, client_at_once=2)


def cancelled(fetcher: Fetcher) -> list[str]:
    urls = {said.request_id: said.url for said in told_in(fetcher) if isinstance(said, Fetch)}
    ended = [said.request_id for said in told_in(fetcher) if isinstance(said, CancelFetch)]
    return [urls[number].removeprefix("http://a.test/") for number in ended]


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.005)


def test_the_longest_fetch_of_who_has_most_gives_way_to_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients hold all places, with origins that take their time; a third one gets its share of them, 2 of 6."""
    at_once(monkeypatch)

    async def scenario(fetcher: Fetcher) -> None:
        slow = await asyncio.gather(*ask(fetcher, "a/1", "a/2", "a/3", "b/1", "b/2", "b/3"))
        more = ask(fetcher, "a/4", "b/4")  # of those who have their share
        await asyncio.sleep(0.1)
        assert cancelled(fetcher) == []
        new = ask(fetcher, "c/1", "c/2", "c/3")
        await until(lambda: sorted(cancelled(fetcher)) == ["a/1", "b/1"])
        for client in "ab":
            end(fetcher, "1", "cancelled", client)
        await until(lambda: told(fetcher)[6:] == ["c/1", "c/2"])
        for job in (slow[0], slow[3]):
            with pytest.raises(FetchGaveWay):
                await job.next()
        await asyncio.sleep(0.1)
        assert sorted(cancelled(fetcher)) == ["a/1", "b/1"], "each has its share"
        for task in (*more, new[2]):
            task.cancel()
        await asyncio.wait((*more, new[2]))

    play(scenario, at_once=6, client_at_once=3)


def test_more_clients_than_places_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come together: who holds several keeps one, and the last newcomers wait for those that end."""
    at_once(monkeypatch)

    async def scenario(fetcher: Fetcher) -> None:
        await asyncio.gather(*ask(fetcher, "a/1", "a/2", "b/3", "b/4"))
        new = ask(fetcher, *(f"{client}/5" for client in "cdefgh"))
        await until(lambda: sorted(cancelled(fetcher)) == ["a/1", "b/3"])
        for name in ("a/1", "b/3"):
            end(fetcher, name, "cancelled")
        await until(lambda: sorted(told(fetcher)[4:]) == ["c/5", "d/5"])
        await asyncio.sleep(0.05)
        assert len(cancelled(fetcher)) == 2, "each has one"
        end(fetcher, "a/2")
        await until(lambda: told(fetcher)[6:] == ["e/5"])
        for task in new[3:]:
            task.cancel()
        await asyncio.wait(new)

    play(scenario, at_once=4, client_at_once=2)


def test_jobs_that_wait_are_looked_at_together() -> None:
    """One timer, however many: each of its looks costs as much as there are jobs."""

    async def scenario(fetcher: Fetcher) -> None:
        (first,) = await asyncio.gather(*ask(fetcher, "a/0"))
        timers: list[float] = []
        loop: Any = asyncio.get_running_loop()
        own = loop.call_later

        def call_later(seconds: float, *words: Any) -> Any:
            timers.append(seconds)
            return own(seconds, *words)

        loop.call_later = call_later
        waiting = ask(fetcher, *(f"a/{n}" for n in range(1, 200)))
        await until(lambda: fetcher.n_waiting == 199)
        assert timers.count(module.LOOK_SECONDS) < 100
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        fetcher.cancel(first)
        end(fetcher, "a/0", "cancelled")

    play(scenario, at_once=1, client_at_once=1)


def test_one_that_has_come_whole_gives_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)

    async def scenario(fetcher: Fetcher) -> None:
        one, _ = await asyncio.gather(*ask(fetcher, "a/1", "a/2"))
        (new,) = ask(fetcher, "b/3")
        await until(lambda: cancelled(fetcher) == ["a/1"])
        end(fetcher, "1")
        (last,) = await one.next()
        assert isinstance(last, FetchEnded) and last.outcome == "whole"
        await new

    play(scenario, at_once=2, client_at_once=2)


def test_pieces_and_the_last_word_reach_their_job() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        (job,) = await asyncio.gather(*ask(fetcher, "a/1"))
        fetcher.on_message(FetcherPulse())
        fetcher.on_message(FetchedPiece(request_id=job.request_id, data=b"one"))
        fetcher.on_message(FetchedPiece(request_id=job.request_id, data=b"two"))
        end(fetcher, "1", "failed")
        one, two, last = await job.next()
        assert (
            isinstance(one, FetchedPiece) and isinstance(two, FetchedPiece) and (one.data, two.data) == (b"one", b"two")
        )
        assert isinstance(last, FetchEnded) and last.outcome == "failed" and job.ended.is_set()

    play(scenario)


@each_of("when", ["waits", "has its turn", "is fetched"])
def test_who_leaves_keeps_no_turn(when: str) -> None:
    async def scenario(fetcher: Fetcher) -> None:
        (first,) = await asyncio.gather(*ask(fetcher, "a/1"))
        left, following = ask(fetcher, "b/1", "c/1")
        await until(lambda: fetcher.n_waiting == 2)
        if when != "waits":
            end(fetcher, "a/1")
        if when == "is fetched":
            fetcher.cancel(await left)
            (number,) = (
                said.request_id for said in told_in(fetcher)[1:] if isinstance(said, Fetch) and "b/" in said.url
            )
            await until(lambda: CancelFetch(request_id=number) in told_in(fetcher))
            assert fetcher.n_waiting == 1, "its turn lasts until the fetcher has let go"
            end(fetcher, "b/1", "cancelled")
        else:
            left.cancel()
            await asyncio.wait({left})
        if when == "waits":
            end(fetcher, "a/1")
        await until(lambda: told(fetcher)[-1] == "c/1")
        fetcher.cancel(first)  # it has ended: nothing is told
        await following
        end(fetcher, "c/1")

    play(scenario, at_once=1)


def test_a_death_fails_those_inside_and_the_others_wait_for_the_next() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        inside, waiting = ask(fetcher, "a/1", "b/1")
        job = await inside
        kill_in(fetcher)
        with pytest.raises(FetcherDied):
            await job.next()
        start_fetcher(fetcher)
        await waiting
        assert told(fetcher) == ["b/1"]
        end(fetcher, "b/1")

    play(scenario, at_once=1)


def test_nobody_waits_for_one_that_does_not_come() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        kill_in(fetcher)
        with pytest.raises(NobodyUp):
            await fetcher.begin("http://a.test/1", "a")

    play(scenario, wait=0.05)


def test_nobody_waits_for_one_that_cannot_be_started() -> None:
    async def scenario(fetcher: Fetcher) -> None:
        kill_in(fetcher)
        (waiting,) = ask(fetcher, "a/1")
        await until(lambda: fetcher.n_waiting == 1)
        for _ in range(CRASH_LOOP_STARTS):
            child: Any = ChildDouble()
            fetcher.on_started(child)
            kill_in(fetcher)
        with pytest.raises(FetcherDied):
            await waiting

    play(scenario)
