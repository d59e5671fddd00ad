"""Ids, patches and sizes of Fuyu's prompts against transformers' own processor, from the same directory."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.registry import family_of
from tests.parity.fuyu_reference import load_processor, their_prompt
from tests.parity.in_rows import hf_rows
from tests.samples.pictures import encoded, photo
from tests.tables import entries
from tests.tiny.fuyu import write_fuyu
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.rendering import with_rendering
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig(max_pixels=1 << 28)  # the server's own caps are another matter
BOX = (360, 240)  # smaller than the published one, to which transformers fills every picture
# Width and height: around one patch, around rows, as large as the box and larger, in either direction.
SIZES = [
    (31, 30), (60, 60), (61, 59), (29, 200), (300, 90), (360, 30), (361, 40), (360, 240), (359, 241), (40, 900),
    (700, 500), (640, 479), (1000, 31),
]  # fmt: skip
TEXTS = [
    "What is in this image?", "Generate a coco-style caption.\n", "a", " two  blanks ", "one\ntwo\n", "你好，世界",
    "1, 2 and 3 numbers", "- 🙂\n\n- b",
]  # fmt: skip


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, LIMITS.max_pixels)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fuyu(tmp_path_factory.mktemp("tiny"), width=BOX[0], height=BOX[1])


@pytest.fixture(scope="module")
def host(path: Path) -> Processor:
    return host_of(path)


@pytest.fixture(scope="module")
def theirs(path: Path) -> Any:
    return load_processor(path)


def our_prompt(host: Processor, text: str, image: Image.Image) -> tuple[list[int], np.ndarray]:
    """Ids and patches uint8 [n, (channel, y, x)]; spans are the runs of pads, positions count on."""
    source = Source(kind="image", param="", data=encoded(image, "BMP"))
    measure = host.measure(source, LIMITS)
    short = host.render(chat_from_native([{"image": "x"}, {"text": text}]))
    layout = host.expand(short, [measure])
    pixels = host.load(source, measure, LIMITS, StageClock())
    assert pixels.dtype == np.uint8 and pixels.shape == measure.shape and measure.reduced is None
    assert measure.size == image.size and len(layout.input_ids) == len(short) + measure.n_added
    places = [i for start, length in layout.spans[0] for i in range(start, start + length)]
    assert (
        places == np.flatnonzero(layout.input_ids == host.placeholders["image"]).tolist()
        and len(places) == measure.n_tokens
    )
    assert len(layout.spans[0]) == measure.grid[1]
    positions, delta = host.positions(layout, [measure])
    assert np.array_equal(positions, np.tile(np.arange(len(layout.input_ids)), (3, 1))) and delta == 0
    return layout.input_ids.tolist(), pixels


def test_pictures(host: Processor, theirs: Any) -> None:
    with entries() as entry:
        for size in SIZES:
            image = photo(*size)
            with entry(size):
                ids, pixels = our_prompt(host, "what?\n", image)
                expected, patches = their_prompt(theirs, "what?\n", image)
                assert ids == expected
                torch.testing.assert_close(hf_rows(torch.from_numpy(pixels)), patches, rtol=0, atol=1e-6)


def test_the_published_box(tmp_path: Path) -> None:
    path, image = write_fuyu(tmp_path), photo(500, 1090).resize((1930, 1090))
    ids, pixels = our_prompt(host_of(path), "what?\n", image)
    expected, patches = their_prompt(load_processor(path), "what?\n", image)
    assert ids == expected and pixels.shape == (36 * 64, 2700)
    torch.testing.assert_close(hf_rows(torch.from_numpy(pixels)), patches, rtol=0, atol=1e-6)


def test_texts(host: Processor, theirs: Any) -> None:
    """Our chats are lines: a text that does not end one is ended."""
    image = photo(61, 40)
    with entries() as entry:
        for text in TEXTS:
            line = text if text.endswith("\n") else text + "\n"
            with entry(repr(text)):
                assert our_prompt(host, text, image)[0] == their_prompt(theirs, line, image)[0]


def test_random_texts(host: Processor, theirs: Any) -> None:
    rng, image = Random(3), photo(61, 40)
    for _ in range(40):
        text = "".join(rng.choice([*TEXTS, "the ", "picture", "1", "é", "\t"]) for _ in range(rng.randrange(1, 6)))
        assert our_prompt(host, text + "\n", image)[0] == their_prompt(theirs, text + "\n", image)[0]


def test_a_prompt_without_a_picture_is_the_rest_of_one_with_it(host: Processor, theirs: Any) -> None:
    """transformers' processor encodes it as a bare text, which no answer follows."""
    ids, _ = their_prompt(theirs, "what?\n", photo(61, 40))
    assert host.render(chat_from_native([{"text": "what?"}])) == ids[ids.index(1) :]
    assert host.tokenizer.encode("what?\n") == theirs(text="what?\n")["input_ids"] == ids[ids.index(1) + 1 : -1]


def test_conversations_are_lines_and_an_answer_goes_on_behind_its_mark(host: Processor) -> None:
    encode, special = host.tokenizer.encode, host.tokenizer.special
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what?"},
        {"role": "assistant", "content": "a bus\n"},
        {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "this?"}, picture]},
    ]
    lines = encode("be brief\nwhat?\na bus\nand this?\n")
    expected = [host.placeholders["image"], special["<s>"], *lines, special["<0x04>"]]
    assert host.render(chat_from_openai(messages)) == expected
    chat = with_rendering(chat_from_openai(messages), {"add_generation_prompt": False})
    assert host.render(chat) == expected[:-1]
    begun = [*messages, {"role": "assistant", "content": "a red"}]
    chat = with_rendering(chat_from_openai(begun), {"continue_final_message": True})
    assert host.render(chat) == [*expected, *encode("a red")]


def test_a_mark_that_is_typed_is_text(host: Processor) -> None:
    plain, typed = "ab\n", "a|SPEAKER|<s>|NEWLINE|b|ENDOFTEXT|<0x04>\n"
    special = set(host.tokenizer.special.values())

    def marks(text: str) -> list[int]:
        return [i for i in host.render(chat_from_native([{"image": "x"}, {"text": text}])) if i in special]

    assert marks(typed) == marks(plain)
    ids = host.tokenizer.encode(typed)
    assert b"".join(map(host.tokenizer.token_bytes, ids)).decode() == " " + typed
