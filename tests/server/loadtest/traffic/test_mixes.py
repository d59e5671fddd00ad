"""Mixes: shares, repeats and cancellations are as often as they were asked for, and a seed gives the same requests."""

from collections import Counter

import pytest

from server.loadtest.options import read_options
from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.generated import QUESTION
from server.loadtest.traffic.library import MediaLibrary
from server.loadtest.traffic.mixes import SyntheticRequests, media_of
from server.loadtest.traffic.requests import Medium, medium_of

N = 4000


class Shelf(MediaLibrary):
    """Media of one byte, each another: nothing is drawn."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.made: list[tuple[str, str]] = []

    def fresh(self, kind: str, bucket: str) -> Medium:
        self.made.append((kind, bucket))
        return medium_of(kind, bucket, "image/png", b"x")


SIZES = ["--prompt-words", "3", "--max-tokens", "8", "--image-sizes", "64x32", "--image-format", "png"]
SIZES += ["--video-size", "32x32", "--audio-seconds", "1.5"]


def synthetic(*flags: str, shelf: Shelf | None = None) -> SyntheticRequests:
    return SyntheticRequests(read_options([*SIZES, *flags]), shelf or Shelf())


def test_kinds_come_by_their_weights() -> None:
    source = synthetic("--mix", "text:60,image:30,image+audio:10")
    found = Counter(source.make(index).kind for index in range(N))
    for kind, share in (("text", 0.6), ("image", 0.3), ("image+audio", 0.1)):
        assert found[kind] / N == pytest.approx(share, abs=4 * (share * (1 - share) / N) ** 0.5)


def test_media_are_as_many_and_as_large_as_asked_for() -> None:
    shelf = Shelf()
    ask = synthetic("--mix", "image+video+audio", "--items", "2", shelf=shelf).make(0)
    assert shelf.made == [("image", "64x32 png")] * 2 + [("video", "2 s 32x32")] * 2 + [("audio", "1.5 s")] * 2
    assert [medium.kind for medium in ask.media] == ["image", "image", "video", "video", "audio", "audio"]
    assert ask.bucket == "64x32 png+2 s 32x32+1.5 s"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_so_many_media_are_repeated(share: float) -> None:
    source = synthetic("--mix", "image", "--repeat", str(share))
    asks = [source.make(index) for index in range(N)]
    n, repeated = media_of([asks], [N])
    assert n == N and repeated == pytest.approx(share, abs=0.03)


def test_going_round_again_repeats_everything() -> None:
    source = synthetic("--mix", "image")
    asks = [source.make(index) for index in range(10)]
    assert media_of([asks], [10]) == (10, 0.0) and media_of([asks], [40]) == (40, 0.75)
    assert media_of([asks, asks], [10, 10]) == (20, 0.5) and media_of([[]], [0]) == (0, 0.0)


def test_so_many_requests_are_left() -> None:
    source = synthetic("--cancel", "25%", "--cancel-within", "2s")
    times = [ask.cancel_after for ask in map(source.make, range(N))]
    left = [time for time in times if time is not None]
    assert len(left) / N == pytest.approx(0.25, abs=0.03)
    assert 0 <= min(left) and max(left) <= 2 and sum(left) / len(left) == pytest.approx(1.0, abs=0.1)


def test_prompts_are_so_many_words_and_never_the_same() -> None:
    source = synthetic("--prompt-words", "20")
    prompts = [source.make(index).prompt for index in range(200)]
    assert len(set(prompts)) == 200
    assert all(len(prompt.split(".")[0].split()) == 20 for prompt in prompts)


def test_a_trace_says_how_long_prompt_and_answer_are() -> None:
    ask = synthetic().make(0, TraceLine(0.0, prompt_words=7, max_tokens=3))
    assert len(ask.prompt.split(".")[0].split()) == 7 and ask.max_tokens == 3
    assert synthetic().make(0, TraceLine(0.0)).max_tokens == 8


def test_a_drawing_brings_its_question_and_its_answer() -> None:
    request = synthetic("--mix", "demo").make(0)
    assert (request.prompt, request.bucket) == (QUESTION, "drawing") and len((request.expect or "").split()) == 2


def test_a_seed_gives_the_same_requests() -> None:
    flags = ("--mix", "text,image", "--seed")
    first, again, other = ([synthetic(*flags, seed).make(index) for index in range(9)] for seed in ("1", "1", "2"))
    assert [(one.kind, one.prompt) for one in first] == [(one.kind, one.prompt) for one in again]
    assert [one.prompt for one in first] != [one.prompt for one in other]
