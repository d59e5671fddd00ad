"""What ranks say to each other: to all at once, and what they agree on."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from configs.serve import EngineConfig
from model.engine.messages import StartEngine
from model.engine.plan import Plan
from model.engine.ranks.link import (
    CacheBlocks,
    DeviceFound,
    FreeMessage,
    GraphRefusal,
    MediaFailures,
    RankLink,
    all_failures,
    common,
    ended_with,
    fewest,
    first_refusal,
    open_link,
    refused_anywhere,
)
from shm import ChannelClosed, channel_pair
from tests.tables import each_of


@contextmanager
def links(n: int) -> Iterator[list[RankLink]]:
    with ExitStack() as kept:
        pairs = [channel_pair() for _ in range(n - 1)]
        found = [RankLink(0, n, [mine for mine, _ in pairs])]
        found += [RankLink(i, n, [theirs]) for i, (_, theirs) in enumerate(pairs, 1)]
        for link in found:
            kept.callback(link.close)
        yield found


@each_of("n", [2, 4])
def test_all_take_what_has_least_room(n: int) -> None:
    with links(n) as found:
        agreed = dict[int, CacheBlocks]()

        def agree(link: RankLink) -> None:
            agreed[link.rank] = link.agree(CacheBlocks(10 - link.rank), fewest)

        threads = [threading.Thread(target=agree, args=(link,)) for link in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert agreed == {rank: CacheBlocks(11 - n) for rank in range(n)}
        assert (found[0].n, found[0].n_exchanges, found[0].n_broadcasts) == (n, 1, 0)


def test_each_rank_gets_what_is_sent_to_all() -> None:
    with links(3) as found:
        said = FreeMessage(Plan(chunks=(), freed=(b"key", ("request", 1))))
        found[0].broadcast(said)
        assert [link.receive() for link in found[1:]] == [said, said]


def test_what_failed_anywhere_failed() -> None:
    first = MediaFailures(((("c", 0), "here", "internal"),))
    second = MediaFailures(((("a", 0), "gone", "media_unavailable"), (("c", 0), "there", "media_unavailable")))
    assert all_failures([first, second]) == MediaFailures(
        ((("c", 0), "here", "internal"), (("a", 0), "gone", "media_unavailable"))
    )


@pytest.mark.slow
def test_the_error_of_a_collective_is_told_from_that_of_a_rank() -> None:
    error = RuntimeError("Connection closed by peer")
    with links(3) as found:
        assert ended_with(found[0], error) is error and ended_with(None, error) is error
        found[2].close()
        assert isinstance(ended_with(found[0], error), ChannelClosed)
        assert not found[1].lost()
        found[1].close()
        for wait in (lambda: found[0].agree(CacheBlocks(1), fewest), lambda: found[0].broadcast(CacheBlocks(1))):
            with pytest.raises(ChannelClosed):
                wait()


def test_devices_are_the_same_on_all() -> None:
    assert common([DeviceFound("cpu")] * 3) == DeviceFound("cpu")
    assert common([DeviceFound("npu"), DeviceFound("cpu")]) == DeviceFound("")


def test_an_engine_of_one_process_has_none() -> None:
    start = StartEngine(checkpoint="", engine=EngineConfig(), shm_root="", max_model_len=16)
    assert open_link(start) is None


@each_of(("mine", "others", "told"), [("", "", ""), ("207008", "", "207008"), ("", "561002", "561002")])
def test_what_one_device_refuses_is_refused_on_all(mine: str, others: str, told: str) -> None:
    with links(2) as found:
        found[1]._channels[0].send(GraphRefusal(others))
        assert refused_anywhere(found[0], mine) == told
        assert found[1]._channels[0].recv(None) == GraphRefusal(told)
    assert refused_anywhere(None, mine) == mine and first_refusal([GraphRefusal("")]).said == ""
