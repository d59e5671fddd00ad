"""What the demo model learns to read is what the server lays out: ids, positions, pixels, mel frames, clip frames."""

import io
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from demo import studio as studio_module
from demo.checkpoint import train_tokenizer, write_files
from demo.clips import Clip, moving
from demo.encode import encode_clip, encode_sound
from demo.pictures import draw_scene
from demo.prompts import IGNORED, Encoded, Example, Extent, Parts, Reader, Ref
from demo.sizes import Sizes
from demo.sounds import tone
from demo.studio import Studio
from demo.tooling import NAME, declare, said_call, system_text
from demo.words import Words
from model.grids.positions import TimeScale, vision_positions
from model.registry import family_of
from tests.tables import each_of
from tokenization.chat.dialects import chat_from_native, chat_from_openai, with_tools
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FrameSampling, sample_frames
from tokenization.media.source import Source
from tokenization.processor import Measure, Processor, StageClock

pytestmark = pytest.mark.slow

SIZES = Sizes()
LIMITS = MediaConfig()
Turn = tuple[tuple[str | bytes, ...], str]  # question (text, or the bytes of a medium), answer


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo")
    write_files(path, train_tokenizer(Words.load().corpus(np.random.default_rng(0), 2000), 600), SIZES)
    return path


@pytest.fixture(scope="module")
def processor(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).processor(checkpoint, LIMITS.max_pixels)


@pytest.fixture(scope="module")
def reader(path: Path) -> Reader:
    return Reader(Tokenizer.from_file(str(path / "tokenizer.json")), SIZES)


def png(image: Image.Image) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()


def kind_of(data: bytes) -> str:
    return "image" if data[:4] == b"\x89PNG" else "audio" if data[8:12] == b"WAVE" else "video"


PICTURE = png(draw_scene(np.random.default_rng(1), (300, 200), 2).image)
OTHER = png(draw_scene(np.random.default_rng(2), (300, 200), 1).image)
SOUND = encode_sound(tone(np.random.default_rng(3), "low", 1.23).samples, 16_000, "wav float")


def clip(seconds: float = 2.6, size: tuple[int, int] = (240, 160)) -> Clip:
    return moving(np.random.default_rng(4), "left", size, seconds)


CLIP = encode_clip(clip(), 10, "avi mjpeg")


def source(data: bytes) -> Source:
    return Source(kind=kind_of(data), param="x", data=data)  # type: ignore[arg-type]


def measured(processor: Processor, media: Sequence[bytes]) -> tuple[list[Measure], dict[str, Extent]]:
    """What the server measures of each, and the same as batches have it."""
    found = [processor.measure(source(data), LIMITS) for data in media]
    extents = {
        one.kind: Extent(grid=one.grid, seconds=one.video.seconds_per_grid if one.video else 1.0) for one in found
    }
    return found, {str(kind): extent for kind, extent in extents.items()}


def read(processor: Processor, reader: Reader, turns: Sequence[Turn]) -> tuple[Encoded, np.ndarray, np.ndarray, int]:
    """Our reading of the chat with its last answer; the server's ids [n], positions [3, n] and delta before that."""
    numbers = {"image": count(), "video": count(), "audio": count()}
    asked: list[Parts] = []
    sent: list[list[dict[str, Any]]] = []
    for parts, _ in turns:
        kinds = [None if isinstance(part, str) else kind_of(part) for part in parts]
        asked.append(
            tuple(
                part if isinstance(part, str) else Ref(str(kind), next(numbers[str(kind)]))
                for part, kind in zip(parts, kinds, strict=True)
            )
        )
        sent.append([{kind or "text": "x" if kind else part} for part, kind in zip(parts, kinds, strict=True)])
    answers = [answer for _, answer in turns]
    past = [{"inputs": inputs, "text": text} for inputs, text in zip(sent[:-1], answers[:-1], strict=True)]
    measures, extents = measured(processor, [part for parts, _ in turns for part in parts if isinstance(part, bytes)])
    layout = processor.expand(processor.render(chat_from_native({"inputs": sent[-1], "history": past})), measures)
    positions, delta = processor.positions(layout, measures)
    history = tuple(zip(asked[:-1], answers[:-1], strict=True))
    ours = reader.encode(Example(parts=asked[-1], answer=answers[-1], history=history), extents)
    return ours, layout.input_ids, positions, delta


CHATS: dict[str, list[Turn]] = {
    "text": [(("Who are you?",), "I am a small model.")],
    "picture": [((PICTURE, "how many things are there"), "2")],
    "text first": [(("What is in this picture?", PICTURE), "red circle")],
    "clip": [((CLIP, "Which way does it move?"), "left")],
    "sound": [(("High or low?", SOUND), "low")],
    "two pictures": [((PICTURE, OTHER, "Do both show the same shape?"), "no")],
    "mixed": [((CLIP, PICTURE, SOUND, "What do you hear?"), "low")],
    "mixed otherwise": [(("Listen", SOUND, "and look: ", PICTURE, CLIP), "low")],
    "Chinese": [((PICTURE, "图中有几个圆形？请只回答数字"), "2")],
    "Chinese answer": [((PICTURE, "这是什么颜色的？"), "红色圆形，蓝色星形")],
    "tags": [((PICTURE, "Where is the star?"), "<ref>star</ref><box>(10,20),(300,990)</box>")],
    "tags asked": [(("Where is <ref>the star</ref>?", PICTURE), "no")],
    "odd text": [((PICTURE, "  What's THIS,\n\nthen??  1234 café "), "a star")],
    "history": [((PICTURE, "How many?"), "2"), (("And what colour?",), "red"), (("在哪里",), "<ref>a</ref>")],
}


@each_of("name", CHATS)
def test_a_chat_is_read_as_the_server_reads_it(processor: Processor, reader: Reader, name: str) -> None:
    ours, ids, positions, delta = read(processor, reader, CHATS[name])
    n, n_all = len(ids), len(ours.ids)
    assert ours.ids[:n].tolist() == ids.tolist()
    np.testing.assert_array_equal(ours.positions[:, :n], positions)
    answer, end = ours.ids[n:-1].tolist(), int(ours.ids[-1])
    assert answer == processor.tokenizer.encode(CHATS[name][-1][1])
    assert processor.tokenizer.is_special(end) and processor.tokenizer.token_bytes(end) == b"<|im_end|>"
    np.testing.assert_array_equal(ours.positions[:, n:], np.tile(np.arange(n, n_all) + delta, (3, 1)))
    np.testing.assert_array_equal(ours.labels[n - 1 : -1], ours.ids[n:])
    assert ours.labels[-1] == IGNORED
    if len(CHATS[name]) == 1:
        assert (ours.labels[: n - 1] == IGNORED).all()


def test_every_answer_of_a_conversation_is_learnt(processor: Processor, reader: Reader) -> None:
    ours, _, _, _ = read(processor, reader, CHATS["history"])
    said = b"".join(processor.tokenizer.token_bytes(int(i)) for i in ours.labels if i != IGNORED).decode()
    assert said == "<|im_end|>".join([*(answer for _, answer in CHATS["history"]), ""])
    places = np.flatnonzero(ours.labels != IGNORED)
    np.testing.assert_array_equal(ours.ids[places + 1], ours.labels[places])


def test_tools_are_shown_as_the_server_shows_them(processor: Processor, reader: Reader) -> None:
    """The declaration, a call in the history, and its result, by the template that the checkpoint brings."""
    for seed in range(6):
        declared = declare(np.random.default_rng(seed))
        arguments = declared.arguments("star", None) or {}
        call = {"id": "a", "type": "function", "function": {"name": NAME, "arguments": arguments}}
        messages = [
            {"role": "user", "content": "How many stars?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "2"},
        ]
        chat, _ = with_tools(chat_from_openai(messages), {"tools": [declared.tool]})
        theirs = processor.expand(processor.render(chat), []).input_ids
        back = ("<tool_response>\n2\n</tool_response>",)
        asked = Example(
            parts=back, answer="2", history=((("How many stars?",), said_call(arguments)),),
            system=system_text([declared.tool]),
        )  # fmt: skip
        assert reader.encode(asked, {}).ids[: len(theirs)].tolist() == theirs.tolist()


def test_a_question_that_is_one_string_reads_the_same(processor: Processor) -> None:
    plain = processor.render(chat_from_openai([{"role": "user", "content": "Who are you?"}]))
    assert plain == processor.render(chat_from_native([{"text": "Who are you?"}]))


def test_boxes_are_understood(processor: Processor) -> None:
    assert "grounding" in processor.features and processor.modalities.keys() == {"image", "video", "audio"}


# ---- time


@each_of("fps", [8, 10, 12, 15, 24, 25, 30, 60])
def test_clips_stand_where_the_server_puts_them(reader: Reader, fps: int) -> None:
    """All lengths of clips that training draws."""
    for n_frames in sorted({max(4, round(hundredths / 100 * fps)) for hundredths in range(80, 501)}):
        plan = sample_frames(n_frames, fps, MediaOptions(), MediaConfig())
        grid = (len(plan.indices) // 2, 4, 4)
        extent = Extent(grid=grid, seconds=plan.seconds_per_grid)
        ours = reader.encode(Example(parts=(Ref("video", 0), "x"), answer="y"), {"video": extent})
        ((_, start, n),) = ours.places
        theirs = vision_positions(
            grid, TimeScale(per_second=SIZES.positions_per_second), seconds_per_grid=plan.seconds_per_grid
        )
        np.testing.assert_array_equal(ours.positions[:, start : start + n] - start, theirs)


# ---- pixels and frames of sound


@pytest.fixture
def unworn(monkeypatch: pytest.MonkeyPatch) -> Studio:
    """A studio that draws and does not wear."""
    for wear in ("lit_picture", "worn_picture"):
        monkeypatch.setattr(studio_module, wear, lambda rng, image: image)
    monkeypatch.setattr(studio_module, "worn_sound", lambda rng, samples: samples)
    monkeypatch.setattr(Studio, "_grain", lambda self, frames: frames)
    return Studio(np.random.default_rng(7), SIZES)


def load(processor: Processor, data: bytes) -> tuple[Measure, np.ndarray]:
    measure = processor.measure(source(data), LIMITS)
    return measure, processor.load(source(data), measure, LIMITS, StageClock())


def test_a_picture_becomes_the_patches_that_the_server_cuts(processor: Processor, unworn: Studio) -> None:
    same = 0
    for _ in range(12):
        size, grid = unworn.picture_size()
        image = unworn.scene(size).image
        measure, patches = load(processor, png(image))
        ours = unworn.patches(image, Extent(grid=measure.grid))
        assert ours.dtype == patches.dtype
        np.testing.assert_array_equal(ours, patches)
        same += measure.grid == grid
    assert same >= 8  # a picture of over 320 pixels is drawn smaller, and rounding may then come to another grid


def test_a_picture_of_its_own_size_has_the_grid_that_the_server_chooses(processor: Processor) -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        studio = Studio(rng, SIZES)
        size, grid = studio.picture_size()
        if max(size) < 320:  # not drawn smaller
            blank = png(Image.new("RGB", size))
            assert processor.measure(source(blank), LIMITS).grid == grid


def test_a_sound_becomes_the_frames_that_the_server_makes(processor: Processor, unworn: Studio) -> None:
    for _ in range(3):
        made, mel, extent = unworn.sounds(2)
        for sound, ours in zip(made, mel, strict=True):
            measure, theirs = load(processor, encode_sound(sound.samples, 16_000, "wav float"))
            assert measure.grid == extent.grid and ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@each_of("codec", ["avi mjpeg", "mp4 h264", "webm vp9"])
def test_a_clip_is_looked_at_where_the_server_looks(
    processor: Processor, unworn: Studio, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """The same clip encoded: its grid and its times are equal, its pixels as near as the codec leaves them."""
    sampled: list[tuple[int, float, FrameSampling]] = []

    def noting(n_frames: int, fps: float, *rest: Any, **named: Any) -> FrameSampling:
        sampled.append((n_frames, fps, sample_frames(n_frames, fps, *rest, **named)))
        return sampled[-1][2]

    monkeypatch.setattr(studio_module, "sample_frames", noting)
    for _ in range(2):
        (clip, _), patches, extent = unworn.clips(2)
        n_frames, fps, sampling = sampled[-1]
        measure, theirs = load(processor, encode_clip(clip, fps, codec))
        assert measure.video is not None and measure.video.info is not None
        assert measure.video.info.n_frames == n_frames
        assert measure.video.indices == sampling.indices
        assert measure.grid == extent.grid
        assert measure.video.seconds_per_grid == pytest.approx(extent.seconds, rel=1e-3)
        assert theirs.shape == patches[0].shape
        apart = np.abs(theirs.astype(int) - patches[0].astype(int))
        assert apart.mean() < 6, apart.mean()
        other = np.abs(theirs.astype(int) - patches[1].astype(int))
        assert apart.mean() < other.mean() / 3
