"""The codec of the two words: what it tells, what it refuses, and that no small damage goes unseen."""

import binascii
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm.int64_words import (
    WordError,
    decode_shape_from_int64,
    decode_shm_name_from_int64,
    encode_shape_to_int64,
    encode_shm_name_to_int64,
)
from tests.tables import each_of

LIMITS = {1: (1 << 44) - 1, 2: 4_194_303, 3: 16_383, 4: 2_047, 5: 255}
shapes = st.integers(1, 5).flatmap(lambda n: st.lists(st.integers(1, LIMITS[n]), min_size=n, max_size=n))
names = st.integers(0, (1 << 44) - 1).map(lambda value: f"{value:011x}")


def is_refused(value: int) -> bool:
    """Whether neither decoder takes the value."""
    for decode in (decode_shm_name_from_int64, decode_shape_from_int64):
        try:
            decode(value)
        except WordError:
            continue
        return False
    return True


def sample_words() -> list[int]:
    """Edges and random ones of both kinds."""
    rng = random.Random(7)
    words = [encode_shm_name_to_int64(name) for name in ("0" * 11, "f" * 11, "0123456789a")]
    words += [encode_shm_name_to_int64(f"{rng.getrandbits(44):011x}") for _ in range(60)]
    for ndim, limit in LIMITS.items():
        words += [encode_shape_to_int64([side] * ndim) for side in (1, limit)]
        words += [encode_shape_to_int64([rng.randint(1, limit) for _ in range(ndim)]) for _ in range(12)]
    return words


def signed(bits: int) -> int:
    """The int64 with these 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits


@given(names)
def test_a_name_comes_back(name: str) -> None:
    word = encode_shm_name_to_int64(name)
    assert -(1 << 63) <= word < 0
    assert decode_shm_name_from_int64(word) == name


@given(shapes)
def test_a_shape_comes_back(shape: list[int]) -> None:
    word = encode_shape_to_int64(shape)
    assert -(1 << 63) <= word < 0
    assert decode_shape_from_int64(word) == tuple(shape)


def test_numpy_integers_are_taken_and_come_out_of_an_array() -> None:
    ids = np.zeros(2, np.int64)
    ids[0] = encode_shm_name_to_int64("00ff00ff00f")
    ids[1] = encode_shape_to_int64(np.zeros((3, 4), np.uint8).shape)
    assert decode_shm_name_from_int64(ids[0]) == "00ff00ff00f"
    assert decode_shape_from_int64(ids[1]) == (3, 4)
    assert encode_shape_to_int64((np.int32(3), np.int64(4))) == ids[1]


@each_of("ndim", LIMITS)
def test_each_side_reaches_its_limit_and_not_beyond(ndim: int) -> None:
    limit = LIMITS[ndim]
    assert decode_shape_from_int64(encode_shape_to_int64((limit,) * ndim)) == (limit,) * ndim
    for place in range(ndim):
        for side in (limit + 1, 0, -1):
            shape = [1] * ndim
            shape[place] = side
            with pytest.raises(WordError):
                encode_shape_to_int64(shape)


@pytest.mark.parametrize("shape", [(), (1,) * 6])
def test_other_numbers_of_dimensions_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(WordError):
        encode_shape_to_int64(shape)


@each_of("name", ["", "0" * 10, "0" * 12, "0123456789A", "../../../..", "0123456789a\n", "g" * 11])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(WordError):
        encode_shm_name_to_int64(name)


def test_every_single_flip_is_refused() -> None:
    for word in sample_words():
        for bit in range(64):
            assert is_refused(signed((word % (1 << 64)) ^ 1 << bit)), bit


def test_every_exchange_of_neighbouring_fields_is_refused() -> None:
    changed = 0
    for word in sample_words():
        bits = word % (1 << 64)
        for width in range(1, 9):
            mask = (1 << width) - 1
            for low in range(64 - 2 * width + 1):
                a, b = bits >> low & mask, bits >> low + width & mask
                if a != b:
                    changed += 1
                    other = bits & ~((mask << width | mask) << low) | (a << width | b) << low
                    assert is_refused(signed(other)), (width, low)
    assert changed > 30_000


def test_the_two_words_are_not_taken_for_each_other() -> None:
    name, shape = encode_shm_name_to_int64("0123456789a"), encode_shape_to_int64((5, 588))
    with pytest.raises(WordError):
        decode_shm_name_from_int64(shape)
    with pytest.raises(WordError):
        decode_shape_from_int64(name)


@each_of("value", [0, 1, 151_655, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, -1, -100, -(1 << 63)])
def test_ids_and_common_negative_numbers_are_refused(value: int) -> None:
    assert is_refused(value)


def sealed(tag: int, payload: int) -> int:
    """A word with a right checksum and any content."""
    body = (8 | tag) << 44 | payload
    return (body << 16 | binascii.crc_hqx(body.to_bytes(6, "big"), 0xFFFF)) - (1 << 64)


def test_words_that_no_encoder_makes_are_refused_though_their_checksum_is_right() -> None:
    assert sealed(6, 0x0123456789A) == encode_shm_name_to_int64("0123456789a")
    assert sealed(3, 5 << 28 | 6 << 14 | 7) == encode_shape_to_int64((5, 6, 7))
    for payload in (0, 5 << 28 | 7, 6 << 14 | 7, 5 << 28 | 6 << 14, 1 << 42 | 5 << 28 | 6 << 14 | 7, 1 << 43 | 1):
        assert is_refused(sealed(3, payload))
    for tag in (0, 7):
        assert is_refused(sealed(tag, 1))


def test_values_that_are_no_integers_are_refused() -> None:
    with pytest.raises(TypeError):
        decode_shape_from_int64(-1.0)  # type: ignore[arg-type]


def test_few_random_values_pass() -> None:
    values = np.random.default_rng(3).integers(-(1 << 63), (1 << 63) - 1, 250_000, dtype=np.int64, endpoint=True)
    passed = sum(not is_refused(value) for value in values.tolist())
    assert 0 < passed < 25  # about 2 of them: a checksum of 16 bits, half of the values negative, 6 of 8 tags
