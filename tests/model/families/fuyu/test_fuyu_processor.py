"""Fuyu's host half: what it refuses, what bounds make of a picture, a template of the checkpoint's own."""

from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.registry import family_of
from tests.published.edits import edit_json
from tests.samples.pictures import encoded, photo
from tests.tables import each_of
from tests.tiny.fuyu import write_fuyu
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.rendering import with_rendering
from tokenization.media.source import Source
from tokenization.processor import Measure, Processor, StageClock
from tokenization.text.template import OUR_OWN

pytestmark = pytest.mark.network

LIMITS = MediaConfig()
PNG = encoded(photo(640, 480), "PNG")


def host_of(path: Path, max_pixels: int = LIMITS.max_pixels) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).host(checkpoint, max_pixels)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fuyu(tmp_path_factory.mktemp("tiny"))


def measured(host: Processor, data: bytes = PNG, **options: Any) -> Measure:
    source = Source(kind="image", param="here", data=data, options=MediaOptions(**options))
    found = host.measure(source, LIMITS)
    assert host.load(source, found, LIMITS, StageClock()).shape == found.shape
    return found


def test_a_picture_in_an_answer_is_refused_by_its_field(path: Path) -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [picture]}]
    with pytest.raises(ChatError) as caught:
        host_of(path).render(chat_from_openai([*messages, messages[0]]))
    assert caught.value.param == "messages[1].content[0]"


def test_tools_have_no_place(path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "x"}]
    with pytest.raises(ChatError, match="tool's answer"):
        host_of(path).render(chat_from_openai(messages))


def test_bounds_of_a_request(path: Path) -> None:
    host = host_of(path)
    assert measured(host).grid == (1, 16, 22)
    smaller = measured(host, max_pixels=100_000)
    assert smaller.grid[1] * smaller.grid[2] * 900 <= 100_000 and smaller.reduced is None
    assert measured(host, low_detail=True).grid[1:] < (16, 22)
    with pytest.raises(ChatError, match="takes no min_pixels") as caught:
        measured(host, min_pixels=100_000)
    assert caught.value.param is None
    chat = with_rendering(chat_from_native([{"image": "x"}]), {"mm_processor_kwargs": {"min_pixels": 9}})
    with pytest.raises(ChatError) as caught:
        host.fit(chat)
    assert caught.value.param == "mm_processor_kwargs.min_pixels"


def test_the_server_s_cap_is_told(path: Path) -> None:
    found = measured(host_of(path, max_pixels=100_000))
    assert found.reduced is not None and found.reduced.limit == "max_pixels" and found.reduced.wanted == (640, 480)
    assert found.grid[1] * found.grid[2] * 900 <= 100_000
    (largest,) = host_of(path, max_pixels=100_000).largest(LIMITS, 4096)
    assert largest.n_tokens == 111 and largest.shape == (111, 2700)


def test_no_second_copy_of_a_picture_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 640 * 480 * 4)
    measured(host_of(path), encoded(photo(640, 480).convert("RGBA"), "PNG"))


def test_the_largest_picture_fills_the_box(path: Path) -> None:
    host = host_of(path, max_pixels=1080 * 1920)
    (largest,) = host.largest(LIMITS, 16384)
    assert (largest.grid, largest.n_tokens, largest.n_added) == ((1, 36, 64), 2304, 2304 + 36 - 1)
    assert host.largest(LIMITS, 1) == ()
    family = family_of(Checkpoint(path))
    pixels = family.pixels(Checkpoint(path))
    assert pixels is not None and pixels.image == 1080 * 1920


def test_a_picture_of_which_nothing_is_left(path: Path) -> None:
    with pytest.raises(ChatError, match="cannot be used") as caught:
        measured(host_of(path), encoded(photo(1, 4000), "PNG"))
    assert caught.value.param is None


def test_a_template_of_the_checkpoint_counts(tmp_path: Path) -> None:
    path = write_fuyu(tmp_path)
    assert host_of(path).origins["chat template"] == OUR_OWN
    part = "{% if part.type == 'image' %}|SPEAKER|{% else %}{{ part.text }}{% endif %}"
    template = "{% for part in messages[0].content %}" + part + "{% endfor %}<s>Q"
    (path / "chat_template.jinja").write_text(template)
    host = host_of(path)
    ids = host.render(chat_from_native([{"image": "x"}, {"text": "read"}]))
    assert ids == [host.placeholders["image"], *host.tokenizer.encode("read"), 1, *host.tokenizer.encode("Q")]
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(CheckpointError, match="not exactly one place"):
        host_of(path)


@each_of(
    ("changed", "said"),
    [
        ({"do_pad": False}, "do_pad = False"),
        ({"resample": 3}, "resample = 3"),
        ({"padding_mode": "edge"}, "padding_mode = 'edge'"),
        ({"padding_value": 0.5}, "padding_value 0.5 is no whole number"),
    ],
    ids=str,
)
def test_pictures_that_are_prepared_otherwise(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    path = edit_json(write_fuyu(tmp_path), lambda values: values.update(changed), "preprocessor_config.json")
    with pytest.raises(CheckpointError, match=said):
        host_of(path)


def test_another_padding_is_seen(tmp_path: Path) -> None:
    values = {"padding_value": 200}
    path = edit_json(write_fuyu(tmp_path), lambda found: found.update(values), "preprocessor_config.json")
    host, source = host_of(path), Source(kind="image", param="", data=encoded(photo(31, 30), "PNG"))
    pixels = host.load(source, host.measure(source, LIMITS), LIMITS, StageClock()).reshape(2, 3, 30, 30)
    assert (pixels[1, :, :, 1:] == 200).all() and not (pixels[0] == 200).all()


def test_a_pad_that_the_vocabulary_calls_otherwise(tmp_path: Path) -> None:
    path = edit_json(write_fuyu(tmp_path), lambda values: values.update(image_token_id=5))
    with pytest.raises(CheckpointError, match=r"image_token_id 5 is not \d+, the id of \|SPEAKER\|"):
        host_of(path)


def test_a_vocabulary_without_a_mark(tmp_path: Path) -> None:
    path = write_fuyu(tmp_path)
    file = path / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("|NEWLINE|", "|OLDLINE|"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"does not hold '\|NEWLINE\|'"):
        host_of(path)
