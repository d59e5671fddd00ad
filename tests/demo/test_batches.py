"""Batches of every kind: what is learnt is the answers, every embedding has its place, side lessons tell the truth."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from demo.answers import COLOURS, SHAPES, UNKNOWN_ANSWER
from demo.batches import Batch, Exercises, Pointed
from demo.checkpoint import PADS, id_of, train_tokenizer
from demo.pictures import Picture, Thing
from demo.prompts import IGNORED, OTHER, Encoded, Example, Extent, Reader, Ref
from demo.sizes import Sizes
from demo.sounds import Sound
from demo.studio import NO_COLOUR, NO_SHAPE, Seen, Studio
from demo.words import Words
from tests.tables import each_of

pytestmark = pytest.mark.slow

Drawn = Callable[[str, int], tuple[Batch, list[Example]]]
SIZES = Sizes()
WORDS = Words.load()
KINDS = ("scenes", "numbers", "pairs", "clips", "sounds", "mixed", "talk", "tools")
MEDIA = {"scenes": {"image"}, "numbers": {"image"}, "pairs": {"image", OTHER}, "clips": {"video"}, "sounds": {"audio"},
         "mixed": {"image", "video", "audio"}, "talk": set[str](), "tools": {"image"}}  # fmt: skip
SEEDS = range(6)  # of scenes some are conversations; of mixed prompts some hold three media


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(WORDS.corpus(np.random.default_rng(0), 500), 400)


class Listening(Reader):
    """Keeps the examples that it encodes."""

    def __init__(self, tokenizer: Tokenizer, sizes: Sizes) -> None:
        super().__init__(tokenizer, sizes)
        self.heard: list[Example] = []

    def encode(self, example: Example, extents: Mapping[str, Extent]) -> Encoded:
        self.heard.append(example)
        return super().encode(example, extents)


def draw(tokenizer: Tokenizer, kind: str, seed: int) -> tuple[Batch, list[Example]]:
    """A batch of a kind, and the examples it was made of."""
    reader = Listening(tokenizer, SIZES)
    exercises = Exercises(np.random.default_rng(seed), reader, WORDS, SIZES)
    count = {"talk": 8, "numbers": 4, "sounds": 4}.get(kind, 3)
    return exercises.kinds[kind](count=count), reader.heard  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def drawn(tokenizer: Tokenizer) -> Drawn:
    """What `draw` gives, which takes longer than to look at it."""
    return cache(lambda kind, seed: draw(tokenizer, kind, seed))


@each_of("kind", KINDS)
@each_of("seed", SEEDS)
def test_what_is_learnt_is_the_answers(tokenizer: Tokenizer, drawn: Drawn, kind: str, seed: int) -> None:
    batch, examples = drawn(kind, seed)
    n, length = batch.ids.shape
    assert batch.name == kind and n == len(examples) == len(batch.tasks)
    assert batch.tasks == tuple(example.task for example in examples) and all(batch.tasks)
    assert batch.labels.shape == batch.weights.shape == (n, length) and batch.positions.shape == (3, n, length)
    assert batch.ids.dtype == batch.labels.dtype == batch.positions.dtype == np.int64
    end = id_of(tokenizer, "<|im_end|>")
    for i, example in enumerate(examples):
        learnt = np.flatnonzero(batch.labels[i] != IGNORED)
        np.testing.assert_array_equal(batch.labels[i, learnt], batch.ids[i, learnt + 1])
        said = "|".join([*(answer for _, answer in example.history), example.answer])
        labels = batch.labels[i, learnt]
        assert tokenizer.decode(labels.tolist(), skip_special_tokens=False).replace("<|im_end|>", "|") == said + "|"
        assert labels[-1] == end
        np.testing.assert_allclose(batch.weights[i, learnt], len(learnt) ** -0.3, rtol=1e-6)
        assert batch.weights[i].sum() == pytest.approx(len(learnt) ** 0.7, rel=1e-5)  # none elsewhere
        behind = learnt[-1] + 2
        assert not batch.ids[i, behind:].any() and not batch.positions[:, i, behind:].any()
    assert (batch.weights > 0).sum(axis=1).min() >= 2  # an answer and its end


@each_of("kind", KINDS)
@each_of("seed", SEEDS)
def test_every_embedding_stands_where_its_pad_is(tokenizer: Tokenizer, drawn: Drawn, kind: str, seed: int) -> None:
    batch, examples = drawn(kind, seed)
    assert set(batch.media) == set(batch.rows) == set(batch.source) and set(batch.media) <= MEDIA[kind]
    assert kind in ("mixed", "tools") or set(batch.media) == MEDIA[kind]
    flat, length = batch.ids.ravel(), batch.ids.shape[1]
    reader = Reader(tokenizer, SIZES)
    pads = [id_of(tokenizer, pad) for pad in PADS.values()]
    everywhere = np.sort(np.concatenate([*batch.rows.values(), np.zeros(0, np.int64)]))
    np.testing.assert_array_equal(np.flatnonzero(np.isin(flat, pads)), everywhere)
    for medium, array in batch.media.items():
        extent, rows, source = batch.extents[medium], batch.rows[medium], batch.source[medium]
        n = reader.n_tokens(medium, extent)
        assert (flat[rows] == id_of(tokenizer, PADS["image" if medium == OTHER else medium])).all()
        if medium == "audio":
            assert array.dtype == np.float32 and array.shape[1:] == (extent.grid[2], SIZES.mels)
        else:
            frames = 2 if medium == "video" else 1
            assert array.dtype == np.uint8
            assert array.shape[1:] == (int(np.prod(extent.grid)), 3 * frames * SIZES.patch**2)
        assert source.max() < n * len(array)
        wanted = [
            (i, ref.number)
            for i, example in enumerate(examples)
            for parts in (*(parts for parts, _ in example.history), example.parts)
            for ref in parts
            if isinstance(ref, Ref) and ref.kind == medium
        ]
        assert len(rows) == len(wanted) * n
        for (i, number), row, which in zip(wanted, rows.reshape(-1, n), source.reshape(-1, n), strict=True):
            assert set(row // length) == {i}
            np.testing.assert_array_equal(row - row[0], np.arange(n))
            np.testing.assert_array_equal(which, number * n + np.arange(n))


def test_some_scenes_are_conversations_and_some_questions_come_first(tokenizer: Tokenizer) -> None:
    examples = [example for seed in range(30) for example in draw(tokenizer, "scenes", seed)[1]]
    talks = [example for example in examples if example.task == "conversation"]
    assert talks and all(len(example.history) == 3 for example in talks)
    assert all(sum(isinstance(part, Ref) for parts, _ in example.history for part in parts) == 1 for example in talks)
    single = [example for example in examples if not example.history]
    assert 0.15 < np.mean([isinstance(example.parts[0], str) for example in single]) < 0.6


def test_mixed_prompts_name_what_they_are_about(tokenizer: Tokenizer) -> None:
    examples = [example for seed in range(8) for example in draw(tokenizer, "mixed", seed)[1]]
    held = [{part.kind for part in example.parts if isinstance(part, Ref)} for example in examples]
    assert {len(kinds) for kinds in held} == {2, 3}
    about = {"motion": "video", "beeps": "audio", "pitch": "audio", "sweep": "audio", "shape": "image",
             "colour": "image", "thing": "image", "count": "image"}  # fmt: skip
    for example, kinds in zip(examples, held, strict=True):
        assert example.task in ("unknown", "small_talk") or about[example.task] in kinds


def test_what_cannot_be_known_is_not_known(tokenizer: Tokenizer) -> None:
    examples = [example for seed in range(8) for example in draw(tokenizer, "talk", seed)[1]]
    tasks = {example.task for example in examples}
    assert {"small_talk", "unknown"} < tasks  # and questions about media that are not there
    for example in examples:
        assert len(example.parts) == 1
        if example.task != "small_talk":
            assert example.answer in UNKNOWN_ANSWER.values()


@each_of("kind", KINDS)
def test_equal_seeds_give_equal_batches(tokenizer: Tokenizer, kind: str) -> None:
    one, same, other = (draw(tokenizer, kind, seed)[0] for seed in (5, 5, 6))
    for field in fields(Batch):
        _equal(getattr(one, field.name), getattr(same, field.name))
    assert one.ids.shape != other.ids.shape or (one.ids != other.ids).any()


def _equal(one: object, other: object) -> None:
    if isinstance(one, Seen | Pointed):
        assert type(one) is type(other)
        for field in fields(one):
            _equal(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            _equal(one[key], other[key])
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


# ---- side lessons


def seen(*things: Thing, size: tuple[int, int] = (160, 120)) -> Seen:
    """What tokens in 4 columns and 3 rows show of things in a picture of that size."""
    picture = Picture(image=Image.new("RGB", size), things=things, number=None)
    return Studio(np.random.default_rng(0), SIZES).seen([picture], (1, 6, 8))


def test_tokens_know_what_they_show() -> None:
    """A token covers 40 x 40 pixels: a ring over four tokens, a star inside one, a sliver of a cross in a third."""
    found = seen(
        Thing(shape="ring", colour="red", box=(40, 0, 120, 80)),
        Thing(shape="star", colour="white", box=(5, 85, 35, 115)),
        Thing(shape="cross", colour="blue", box=(118, 82, 158, 118)),  # 2 of its 40 columns are in the third token
    )
    ring, star, cross, ground = SHAPES.index("ring"), SHAPES.index("star"), SHAPES.index("cross"), NO_SHAPE
    assert found.shape.reshape(3, 4).tolist() == [
        [ground, ring, ring, ground],
        [ground, ring, ring, ground],
        [star, ground, ground, cross],
    ]
    red, white, blue = (COLOURS.index(name) for name in ("red", "white", "blue"))
    assert found.colour.reshape(3, 4).tolist() == [
        [NO_COLOUR, red, red, NO_COLOUR],
        [NO_COLOUR, red, red, NO_COLOUR],
        [white, NO_COLOUR, NO_COLOUR, blue],
    ]
    assert np.argwhere(found.middle.reshape(3, 4)).tolist() == [[1, 2], [2, 0], [2, 3]]
    boxes = found.box.reshape(3, 4, 4)
    np.testing.assert_allclose(boxes[1, 2], [40 / 160, 0, 120 / 160, 80 / 120], rtol=1e-6)
    np.testing.assert_allclose(boxes[2, 0], [5 / 160, 85 / 120, 35 / 160, 115 / 120], rtol=1e-6)
    assert not boxes[found.shape.reshape(3, 4) == NO_SHAPE].any()


def test_tokens_know_how_many_are_alike() -> None:
    """Of its shape, of its colour, of both, and all: two red rings, a blue ring and a red star, a token each."""
    kinds = (("ring", "red"), ("ring", "red"), ("ring", "blue"), ("star", "red"))
    found = seen(
        *(
            Thing(shape=shape, colour=colour, box=(40 * i + 5, 5, 40 * i + 35, 35))
            for i, (shape, colour) in enumerate(kinds)
        )
    )
    assert found.alike.shape == (1, 12, 4)
    assert found.alike[0, :4].tolist() == [[3, 3, 2, 4], [3, 3, 2, 4], [3, 1, 1, 4], [1, 3, 1, 4]]
    assert not found.alike[0, 4:].any()


def test_a_small_thing_wins_the_token_that_it_lies_in_whole() -> None:
    """Of the ring the token shows a quarter, of the small star all of it."""
    ring = Thing(shape="ring", colour="red", box=(20, 20, 60, 60))
    star = Thing(shape="star", colour="blue", box=(2, 2, 12, 12))
    for things in ((ring, star), (star, ring)):
        assert seen(*things).shape[0, 0] == SHAPES.index("star")


def test_the_tokens_of_a_grid_are_in_the_order_of_the_tower() -> None:
    """`seen` counts row by row, and so does the tower: four patches of one token are rows in succession."""
    pixels = np.zeros((56, 84, 3), np.uint8)
    pixels[28:, 28:56] = 200  # the token of the second row and column
    extent = Extent(grid=(1, 4, 6))
    studio = Studio(np.random.default_rng(0), SIZES)
    thing = Thing(shape="square", colour="red", box=(28, 28, 56, 56))
    picture = Picture(image=Image.fromarray(pixels), things=(thing,), number=None)
    found = studio.seen([picture], extent.grid).shape[0]
    assert found.tolist() == [NO_SHAPE] * 4 + [SHAPES.index("square"), NO_SHAPE]
    patches = studio.patches(picture.image, extent).reshape(6, -1).mean(axis=1)
    assert patches.argmax() == 4


def test_tokens_know_the_digits_of_which_they_hold_a_third() -> None:
    """Two digits of 60 x 60 pixels side by side over tokens of 40 x 40, the first at their edge."""
    picture = Picture(image=Image.new("RGB", (160, 120)), things=(), number="47", number_box=(0, 30, 120, 90))
    found = Studio(np.random.default_rng(0), SIZES).read([picture], (1, 6, 8)).reshape(3, 4, 10)
    assert np.argwhere(found[..., 4]).tolist() == [[1, 0], [1, 1]]
    assert np.argwhere(found[..., 7]).tolist() == [[1, 1], [1, 2]]  # the quarters above and below are too little
    assert not np.delete(found, (4, 7), axis=-1).any()


def test_tokens_know_where_beeps_sound() -> None:
    samples = np.zeros(16_000, np.float32)
    beeping = Sound(samples=samples, beeps=((0.1, 0.3), (0.62, 0.7)))
    found = Studio(np.random.default_rng(0), SIZES).heard([beeping, Sound(samples=samples)], Extent(grid=(1, 1, 100)))
    assert found.shape == (2, 25) and not found[1].any()
    middles = (np.arange(25) + 0.5) * 0.04
    assert found[0, (middles > 0.1) & (middles < 0.3)].all() and found[0, (middles > 0.62) & (middles < 0.7)].all()
    assert np.flatnonzero(found[0] == 2).tolist() == [2, 15]  # where each begins
    assert not found[0, (middles < 0.08) | ((middles > 0.32) & (middles < 0.6)) | (middles > 0.72)].any()


@each_of("seed", SEEDS)
def test_answers_point_at_the_things_they_are_about(tokenizer: Tokenizer, seed: int) -> None:
    """Where the first word of an answer is to be said, in a box every digit, for as many things as are counted."""
    batch, examples = draw(tokenizer, "scenes", seed)
    assert batch.pointed is not None and batch.seen is not None
    assert len(batch.pointed.rows) >= len(examples) // 2
    length = batch.ids.shape[1]
    for row, everywhere in zip(batch.pointed.rows, batch.pointed.shares, strict=True):
        prompt = row // length
        assert batch.labels.flat[row] != IGNORED
        shares = everywhere[batch.rows["image"].reshape(len(examples), -1)[prompt] % length]
        assert shares.sum() == pytest.approx(everywhere.sum()) == 1
        assert not shares[batch.seen.middle[prompt] == 0].any()
        said = tokenizer.decode([int(batch.labels.flat[row])])
        if batch.tasks[prompt] == "where":
            assert said.isdigit() and shares.max() == 1
        if batch.tasks[prompt] in ("count", "count_of"):
            assert said == str(round(1 / shares[shares > 0].min()))


def test_side_lessons_belong_to_the_media_of_their_batch(tokenizer: Tokenizer) -> None:
    for kind in KINDS:
        batch, _ = draw(tokenizer, kind, 1)
        assert (batch.seen is not None) == (kind in ("scenes", "pairs"))
        assert (batch.heard is not None) == (kind == "sounds")
        assert (batch.digits is not None) == (kind == "numbers")
        assert (batch.pointed is not None) == (kind in ("scenes", "numbers", "pairs"))
        reader = Reader(tokenizer, SIZES)
        if batch.seen is not None:
            n = reader.n_tokens("image", batch.extents["image"])
            assert batch.seen.shape.shape == batch.seen.colour.shape == (len(batch.media["image"]), n)
            assert batch.seen.box.shape == (len(batch.media["image"]), n, 4)
            assert 0 <= batch.seen.box.min() and batch.seen.box.max() <= 1
        if batch.heard is not None:
            assert batch.heard.shape == (len(batch.media["audio"]), reader.n_tokens("audio", batch.extents["audio"]))
