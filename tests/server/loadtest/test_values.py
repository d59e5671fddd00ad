"""Values as they are written on the command line."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from server.loadtest import values


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30", 30), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)])
def test_times(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


def test_shares_have_weights_and_one_is_the_default() -> None:
    found = values.shares(values.size)("1280x720:3, 64x32")
    assert found.values == ((1280, 720), (64, 32)) and found.weights == (3.0, 1.0)
    assert values.shares(values.kind)("text:60,image+audio:40").values == ("text", "image+audio")


def test_a_share_of_nothing_is_never_drawn() -> None:
    shares = values.Shares(("a", "b"), (1.0, 0.0))
    assert {shares.draw(random.Random(seed)) for seed in range(50)} == {"a"}


def test_the_others() -> None:
    assert values.listed(values.count)("1,2,4") == (1, 2, 4)
    assert values.objectives("ttft=500ms, e2el=2s") == {"ttft": 0.5, "e2el": 2.0}
    assert (values.share("30%"), values.share("0.3")) == (0.3, 0.3)
    assert values.json_object('{"top_k": 3}') == {"top_k": 3}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.duration, "fast"), (values.duration, "-1s"), (values.size, "720p"), (values.size, "4x4"),
        (values.size, "99999x10"), (values.share, "1.5"), (values.share, "x"), (values.positive, "0"),
        (values.positive, "inf"), (values.count, "0"), (values.count, "1.5"), (values.kind, "smell"),
        (values.kind, "demo+image"), (values.image_format, "tiff"), (values.shares(values.count), "1:-1"),
        (values.shares(values.count), "1:0"), (values.shares(values.count), ""), (values.objectives, "speed=1s"),
        (values.objectives, "ttft"), (values.json_object, "[1]"), (values.json_object, "{"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read(text)
