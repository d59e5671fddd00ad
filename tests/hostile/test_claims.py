"""Rows 4 and 13: tables of a kilobyte that claim gigabytes, and pictures that cost more than their pixels say."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer, data_url
from tests.hostile.conftest import Held
from tests.hostile.measure import COUNTED, MORE_SECONDS, Attack, measure
from tests.hostile.posting import posting
from tests.samples.hostile_media import flat_webp, turned_png
from tests.samples.hostile_mp4 import equal_samples

pytestmark = pytest.mark.process

SMALL = {"max_pixels": 28 * 28 * 64}


def chat(inputs: Sequence[Mapping[str, object]]) -> bytes:
    return json.dumps({"inputs": [*inputs, {"text": "what is this?"}], "parameters": GREEDY}).encode()


def row_4() -> bytes:
    """32 of 1,100 bytes, each with a table of 60 million equal samples, and valid: 2.2 GiB in a worker."""
    return chat([{"video": data_url(equal_samples(60_000_000)).replace("image/png", "video/mp4"), **SMALL}] * 32)


def row_13() -> bytes:
    """32 PNGs of 20.7 KB and 86 megapixels: a palette of one bit, see-through, interlaced, turned."""
    return chat([{"image": data_url(turned_png(9_300, 9_300, 20_700)), **SMALL}] * 32)


def as_large_as_may_be() -> bytes:
    """One such picture that its bytes and the allowance pay for."""
    return chat([{"image": data_url(turned_png(11_000, 10_000)), **SMALL}])


def as_long_as_short_may_be() -> bytes:
    """A WebP of 24 megapixels in one colour: what the worker of pictures just takes."""
    return chat([{"image": data_url(flat_webp(4900, 4900)), **SMALL}])


ATTACKS: Sequence[Attack] = (
    posting("row 4 tables", "/chat", row_4, 400, late=MORE_SECONDS),
    posting("row 13 pictures", "/chat", row_13, 400, late=MORE_SECONDS),
    posting("row 13 allowance", "/chat", as_large_as_may_be, 200, late=MORE_SECONDS),
    posting("short pictures", "/chat", as_long_as_short_may_be, 200, late=MORE_SECONDS),
)


@pytest.fixture(scope="module")
def lone(start: Start) -> Iterator[RunningServer]:
    """One worker; all attacks one after the other."""
    with start("--workers", "1") as server:
        yield server


def ids(attack: Attack) -> str:
    return attack.name.replace(" ", "-")


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("attack", ATTACKS, ids=ids)
def test_others_are_answered(start: Start, held: Held, attack: Attack, workers: int) -> None:
    with start("--workers", str(workers)) as server:
        held(server, attack)


@pytest.mark.faults
@pytest.mark.parametrize("attack", ATTACKS, ids=ids)
def test_others_are_answered_shortly(lone: RunningServer, attack: Attack) -> None:
    """Ten questions beside each, of a server with one worker; how late is what `make long` measures."""
    report = measure(lone, attack, COUNTED)
    print(f"\n{report}")
    assert not report.problems, str(report)
