"""What admission refuses, each request alone, and what it makes of a good one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from model.engine.encoding import read
from model.engine.media import Bounds, checked_sequence
from model.engine.messages import Generate, SamplingParams
from model.engine.plan import RequestError
from model.engine.sequence import EncoderInput, SegmentRef
from model.staging.streams import open_streams
from model.staging.transfers import Uploads
from shm import Owner, Pool, encode_shape_to_int64, encode_shm_name_to_int64, write_segment
from tests.model.engine.engine_harness import with_prepared
from tests.tables import each_of
from tokenization.messages import MediaItem, Prepared

pytestmark = pytest.mark.network

PAD = 9
NAMES = ("00000000abc", "00000000abd")
Change = Callable[[Generate], Generate]


class Tower:
    """An encoder as far as a request is checked: patches of 14 x 14 pixels."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        return (math.prod(grid), 588)

    def __call__(self, arrays: Sequence[torch.Tensor], grids: Sequence[tuple[int, int, int]], /) -> list[torch.Tensor]:
        raise AssertionError("a check encodes nothing")


def bounds(max_model_len: int = 100) -> Bounds:
    return Bounds(
        vocab_size=50, media_width=8, itemsize=4, max_model_len=max_model_len, placeholder_ids={"image": PAD},
        encoders={"image": Tower(torch.uint8), "video": Tower(torch.float32)}, variant=lambda n: n // 10,
    )  # fmt: skip


def item(*spans: tuple[int, int], grid: tuple[int, int, int] = (1, 4, 4)) -> MediaItem:
    return MediaItem(kind="image", spans=spans, grid=grid)


def good() -> Generate:
    """Twenty ids; the first item's four pads lie in one run, the second's two in runs of one."""
    ids = np.arange(20, dtype=np.int64)
    ids[[3, 4, 5, 6, 10, 15]] = PAD
    for (first, second), name, patches in (((3, 4), NAMES[0], 16), ((10, 15), NAMES[1], 8)):
        ids[first] = encode_shm_name_to_int64(name)
        ids[second] = encode_shape_to_int64((patches, 588))
    prepared = Prepared(
        request_id="a", input_ids=ids, media=(item((3, 4)), item((10, 1), (15, 1), grid=(1, 2, 4))),
        positions=np.zeros((3, 20), np.int32), position_delta=-2, seconds={},
    )  # fmt: skip
    return Generate(prepared=prepared, sampling=SamplingParams(max_tokens=5, seed=0))


def with_ids(places: dict[int, int]) -> Change:
    def change(generate: Generate) -> Generate:
        ids = generate.prepared.input_ids.copy()
        for place, value in places.items():
            ids[place] = value
        return with_prepared(generate, input_ids=ids)

    return change


def with_media(*media: MediaItem) -> Change:
    return lambda generate: with_prepared(generate, media=media)


def test_words_are_taken_out_and_pads_are_back() -> None:
    generate = good()
    sequence = checked_sequence(generate, bounds())
    pads = [3, 4, 5, 6, 10, 15]
    assert sequence.ids[:20].tolist() == [PAD if i in pads else i for i in range(20)]
    assert generate.prepared.input_ids.min() < 0  # the message was not touched
    assert sequence.n_prompt == sequence.n_tokens == 20 and sequence.limit == 25 and len(sequence.ids) == 25
    assert [m.segment for m in sequence.media] == [
        SegmentRef(name=NAMES[0], shape=(16, 588), dtype="uint8"),
        SegmentRef(name=NAMES[1], shape=(8, 588), dtype="uint8"),
    ]
    assert [m.n_tokens for m in sequence.media] == [4, 2] and [m.first for m in sequence.media] == [3, 10]
    assert sequence.embedding_bytes == 6 * 8 * 4
    assert sequence.positions.dtype == np.int64 and sequence.position_delta == -2


def test_a_kind_that_is_no_bytes_is_read_as_what_it_is(tmp_path: Path) -> None:
    media = (msgspec.structs.replace(good().prepared.media[0], kind="video"),)
    generate = good()
    generate.prepared.input_ids[[10, 15]] = 0
    pads = {"video": PAD, "image": PAD}
    (found,) = checked_sequence(with_media(*media)(generate), replace(bounds(), placeholder_ids=pads)).media
    array = np.random.default_rng(0).standard_normal((16, 588)).astype(np.float32)
    owner = Owner.claim(tmp_path)
    pool = Pool(owner, 1 << 20)
    (name,) = pool.lease("a", [array.nbytes])
    write_segment(owner.root, name, array)
    assert found.segment is not None and found.segment.dtype == "float32"
    found = renamed(found, name=name)
    uploads = Uploads(open_streams(torch.device("cpu")))
    assert np.array_equal(read(found, owner.root, uploads).array, array)
    found = renamed(found, dtype="uint8")  # as many numbers, and a quarter of the bytes
    with pytest.raises(RequestError, match="video not available"):
        read(found, owner.root, uploads)
    pool.retire("a")
    pool.settle("a")
    owner.close()


def renamed(item: EncoderInput, **changes: str) -> EncoderInput:
    """The same medium with other words."""
    assert item.segment is not None
    segment = msgspec.structs.replace(item.segment, **changes)
    return msgspec.structs.replace(item, segment=segment)


def test_the_limit_is_that_of_the_model_where_it_is_lower() -> None:
    assert checked_sequence(good(), bounds(max_model_len=23)).limit == 23
    assert checked_sequence(good(), bounds(max_model_len=21)).limit == 21


WORD = encode_shm_name_to_int64(NAMES[0])
SHAPE = encode_shape_to_int64((16, 588))
REFUSED: dict[str, tuple[Change, str]] = {
    "a flipped bit in the name": (with_ids({3: WORD ^ (1 << 20)}), "media_unavailable"),
    "a flipped bit in the shape": (with_ids({4: SHAPE ^ 1}), "media_unavailable"),
    "the two words exchanged": (with_ids({3: SHAPE, 4: WORD}), "media_unavailable"),
    "a pad where the name should be": (with_ids({3: PAD}), "media_unavailable"),
    "another shape than the grid's": (with_ids({4: encode_shape_to_int64((12, 588))}), "internal"),
    "another grid than the shape's": (with_media(item((3, 4), grid=(1, 2, 4)), good().prepared.media[1]), "internal"),
    "a word outside every item": (with_ids({0: WORD}), "internal"),
    "an id above the vocabulary": (with_ids({0: 50}), "internal"),
    "a word of an item that is not listed": (with_media(good().prepared.media[0]), "internal"),
    "other ids among the pads": (with_ids({6: 8}), "internal"),
    "a span that ends outside": (with_media(item((18, 4))), "internal"),
    "a span that begins before the ids": (with_media(item((-1, 4))), "internal"),
    "an empty span": (with_media(item((3, 4), (8, 0))), "internal"),
    "one pad": (with_media(item((3, 1))), "internal"),
    "no span": (with_media(item()), "internal"),
    "two items over one span": (with_media(item((3, 4)), item((5, 4))), "internal"),
    "spans of one item over each other": (with_media(item((3, 4), (4, 3))), "internal"),
    "a kind that the model does not take": (
        with_media(MediaItem(kind="audio", spans=((3, 4),), grid=(1, 4, 4))), "internal",
    ),
    "positions of another length": (
        lambda generate: with_prepared(generate, positions=np.zeros((3, 19), np.int32)), "internal",
    ),
    "no ids": (
        lambda generate: with_prepared(
            generate, input_ids=np.zeros(0, np.int64), positions=np.zeros((3, 0), np.int32), media=()
        ),
        "internal",
    ),
    "max_tokens of 0": (
        lambda generate: msgspec.structs.replace(generate, sampling=SamplingParams(max_tokens=0, seed=0)), "internal",
    ),
}  # fmt: skip


@each_of("name", REFUSED)
def test_refused(name: str) -> None:
    change, code = REFUSED[name]
    with pytest.raises(RequestError) as caught:
        checked_sequence(change(good()), bounds())
    assert caught.value.code == code
    assert not any(segment in caught.value.message for segment in NAMES)


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(RequestError, match="20 tokens"):
        checked_sequence(good(), bounds(max_model_len=20))
