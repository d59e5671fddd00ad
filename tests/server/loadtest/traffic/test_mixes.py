"""Mixes: shares, repeats and cancellations are as often as they were asked for, and a seed gives the same requests."""

import random
from collections import Counter
from typing import Any

import pytest

from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.asks import Medium, medium_of
from server.loadtest.traffic.mixes import Drawing, Mix, Shares, repeats_of

N = 4000


class Shelf:
    """Media of one byte, each another."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def fresh(self, kind: str, bucket: str) -> Medium:
        self.made.append((kind, bucket))
        return medium_of(kind, bucket, "image/png", b"x")

    def known(self) -> tuple[Medium, str, str]:
        return self.fresh("image", "drawing"), "What is it?", "red circle"


def only(value: Any) -> Shares[Any]:
    return Shares((value,), (1.0,))


def mix(**more: Any) -> Mix:
    fields: dict[str, Any] = dict(
        kinds=only("text"), prompt_words=only(3), max_tokens=only(8), items=only(1), image_sizes=only((64, 32)),
        image_format=only("png"), video_seconds=only(2.0), video_size=only((32, 32)), audio_seconds=only(1.5),
    )  # fmt: skip
    return Mix(**{**fields, **more})


def drawing(seed: int = 0, **more: Any) -> Drawing:
    return Drawing(mix(**more), Shelf(), seed)


def test_kinds_come_by_their_weights() -> None:
    source = drawing(kinds=Shares(("text", "image", "image+audio"), (60.0, 30.0, 10.0)))
    found = Counter(source.make(index).kind for index in range(N))
    for kind, share in (("text", 0.6), ("image", 0.3), ("image+audio", 0.1)):
        assert found[kind] / N == pytest.approx(share, abs=4 * (share * (1 - share) / N) ** 0.5)


def test_a_share_of_nothing_is_never_drawn() -> None:
    shares = Shares(("a", "b"), (1.0, 0.0))
    assert {shares.draw(random.Random(seed)) for seed in range(50)} == {"a"}


def test_media_are_as_many_and_as_large_as_asked_for() -> None:
    shelf = Shelf()
    ask = Drawing(mix(kinds=only("image+video+audio"), items=only(2)), shelf, 0).make(0)
    assert shelf.made == [("image", "64x32 png")] * 2 + [("video", "2 s 32x32")] * 2 + [("audio", "1.5 s")] * 2
    assert [medium.kind for medium in ask.media] == ["image", "image", "video", "video", "audio", "audio"]
    assert ask.bucket == "64x32 png+2 s 32x32+1.5 s"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_so_many_media_are_repeated(share: float) -> None:
    source = drawing(kinds=only("image"), repeated=share)
    asks = [source.make(index) for index in range(N)]
    assert repeats_of([asks], [N]).share == pytest.approx(share, abs=0.03)


def test_going_round_again_repeats_everything() -> None:
    source = drawing(kinds=only("image"))
    asks = [source.make(index) for index in range(10)]
    assert repeats_of([asks], [10]).share == 0 and repeats_of([asks], [40]).share == 0.75
    assert repeats_of([asks, asks], [10, 10]).share == 0.5 and repeats_of([[]], [0]).share == 0


def test_so_many_requests_are_left() -> None:
    source = drawing(cancelled=0.25, cancel_within=2.0)
    times = [ask.cancel_after for ask in map(source.make, range(N))]
    left = [time for time in times if time is not None]
    assert len(left) / N == pytest.approx(0.25, abs=0.03)
    assert 0 <= min(left) and max(left) <= 2 and sum(left) / len(left) == pytest.approx(1.0, abs=0.1)


def test_prompts_are_so_many_words_and_never_the_same() -> None:
    source = drawing(prompt_words=only(20))
    prompts = [source.make(index).prompt for index in range(200)]
    assert len(set(prompts)) == 200
    assert all(len(prompt.split(".")[0].split()) == 20 for prompt in prompts)


def test_a_trace_says_how_long_prompt_and_answer_are() -> None:
    ask = drawing().make(0, TraceLine(0.0, prompt_words=7, max_tokens=3))
    assert len(ask.prompt.split(".")[0].split()) == 7 and ask.max_tokens == 3
    assert drawing().make(0, TraceLine(0.0)).max_tokens == 8


def test_a_drawing_brings_its_question_and_its_answer() -> None:
    ask = drawing(kinds=only("demo")).make(0)
    assert (ask.prompt, ask.expect, ask.bucket) == ("What is it?", "red circle", "drawing")


def test_a_seed_gives_the_same_requests() -> None:
    kinds = Shares(("text", "image"), (1.0, 1.0))
    first, again, other = ([drawing(seed, kinds=kinds).make(i) for i in range(9)] for seed in (1, 1, 2))
    assert [(ask.kind, ask.prompt) for ask in first] == [(ask.kind, ask.prompt) for ask in again]
    assert [ask.prompt for ask in first] != [ask.prompt for ask in other]
