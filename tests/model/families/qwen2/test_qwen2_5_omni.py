"""How a model that sees and hears reads a chat: whose pads lie where, what it points at, what its files may say."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.qwen2.qwen2_5_omni import Qwen25OmniProcessor, thinker_config
from tests.samples.pictures import encoded, photo
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import add_tags, film, tone
from tests.samples.videos import make_clip
from tests.tables import each_of
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_vl import write_json
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.source import Source, tracks
from tokenization.processor import Measure, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()
MAX_PIXELS = LIMITS.max_pixels


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_5_omni(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def processor(path: Path) -> Qwen25OmniProcessor:
    return Qwen25OmniProcessor(Checkpoint(path), MAX_PIXELS)


def of(path: Path) -> Qwen25OmniProcessor:
    return Qwen25OmniProcessor(Checkpoint(path), MAX_PIXELS)


def copy(path: Path, target: Path) -> Path:
    """The small files of a checkpoint."""
    for file in path.glob("*.json"):
        shutil.copy(file, target)
    return target


def sound(n: int = 16000) -> Source:
    return Source(kind="audio", param="inputs[0].audio", data=make_wav(tone(n)))


def talkie(seconds: float, n: int | None) -> Source:
    options = MediaOptions(use_audio=True)
    return Source(kind="video", param="inputs[0].video", data=film(seconds, sound=n), options=options)


def names(processor: Qwen25OmniProcessor, ids: list[int] | np.ndarray) -> list[str]:
    """Of each special id its text; of words one dot."""
    shown = [
        processor.tokenizer.token_bytes(i).decode() if processor.tokenizer.is_special(i) else "." for i in map(int, ids)
    ]
    return [name for i, name in enumerate(shown) if name != "." or shown[i - 1] != "."]


def test_the_thinker_inside_and_alone_are_read_alike(processor: Qwen25OmniProcessor, tmp_path: Path) -> None:
    chat = chat_from_native([{"audio": "a"}, {"image": "b"}, {"text": "x"}, {"video": "c"}])
    for layout in ("thinker", "v5"):
        single_block = write_qwen2_5_omni(tmp_path / layout, layout=layout)
        assert of(single_block).render(chat) == processor.render(chat)
        assert "audio_config" in thinker_config(Checkpoint(single_block))


def test_new_names_of_the_pads(processor: Qwen25OmniProcessor, path: Path, tmp_path: Path) -> None:
    config = json.loads((copy(path, tmp_path) / "config.json").read_text())
    thinker = config["thinker_config"]
    for kind in ("image", "video", "audio"):
        thinker[f"{kind}_token_id"] = thinker.pop(f"{kind}_token_index")
    write_json(tmp_path / "config.json", config)
    chat = chat_from_native([{"audio": "a"}, {"image": "b"}, {"video": "c"}])
    assert of(tmp_path).render(chat) == processor.render(chat)


def test_all_kinds_in_their_order(processor: Qwen25OmniProcessor) -> None:
    ids = processor.render(chat_from_native([{"audio": "a"}, {"text": "x"}, {"video": "b"}, {"image": "c"}]))
    assert names(processor, ids)[4:-4] == [
        "<|im_start|>", ".", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", ".", "<|vision_bos|>", "<|VIDEO|>",
        "<|vision_eos|>", "<|vision_bos|>", "<|IMAGE|>", "<|vision_eos|>",
    ]  # fmt: skip
    assert processor.modalities.keys() == {"image", "video", "audio"} and "audio_in_video" in processor.features


def test_a_picture_keeps_its_own_size(processor: Qwen25OmniProcessor) -> None:
    measure = processor.measure(Source(kind="image", param="", data=encoded(photo(120, 90), "PNG")), LIMITS)
    assert measure.size == (120, 90) and measure.grid == (1, 6, 8) and measure.dtype == "uint8"


def test_a_video_and_its_sound_take_turns(processor: Qwen25OmniProcessor) -> None:
    """Five seconds at two frames a second, 56 x 84 pixels: the minimum of pixels makes a frame larger."""
    ids = processor.render(chat_from_native([{"text": "x"}, {"video": "v", "use_audio_in_video": True}, {"text": "y"}]))
    both = tracks(talkie(5, 56000))
    measures = [processor.measure(track, LIMITS) for track in both]
    seen, heard = measures
    assert (seen.kind, heard.kind, heard.of_video, seen.of_video) == ("video", "audio", True, False)
    assert seen.grid[0] == 5 and heard.n_tokens == 87  # 3.5 s
    layout = processor.expand(ids, measures)
    assert len(layout.input_ids) == len(ids) + sum(measure.n_added for measure in measures)
    frame = seen.n_tokens // 5
    at = layout.spans[0][0][0]
    assert layout.spans == (
        ((at, 2 * frame), (at + 2 * frame + 50, 2 * frame), (at + 4 * frame + 87, frame)),
        ((at + 2 * frame, 50), (at + 4 * frame + 50, 37)),
    )
    shown = names(processor, layout.input_ids[[at - 3, at - 2, at - 1, at, at + 2 * frame]])
    assert shown == [".", "<|vision_bos|>", "<|audio_bos|>", "<|VIDEO|>", "<|AUDIO|>"]
    assert names(processor, layout.input_ids[at + 5 * frame + 87 :])[:3] == ["<|audio_eos|>", "<|vision_eos|>", "."]
    positions, delta = processor.positions(layout, measures)
    assert positions[0, at - 2] == positions[0, at - 1] == positions[0, at] - 1
    assert positions[0, at + 2 * frame] == positions[0, at]  # both begin at once
    assert delta == positions.max() + 1 - len(layout.input_ids)


def test_runs_of_one_track_without_the_other_between_are_one(processor: Qwen25OmniProcessor) -> None:
    ids = processor.render(chat_from_native([{"video": "v"}]))
    seen = Measure(kind="video", grid=(2, 4, 4), shape=(32, 1176), n_tokens=8)
    heard = Measure(kind="audio", grid=(1, 1, 1000), shape=(1000, 16), n_tokens=250, of_video=True)
    layout = processor.expand(ids, [seen, heard])
    ((at, n),) = layout.spans[0]
    assert n == 8 and layout.spans[1] == ((at + 8, 250),)


def test_a_video_without_sound_is_refused_by_name(processor: Qwen25OmniProcessor) -> None:
    _, silent = tracks(talkie(1, None))
    with pytest.raises(ChatError, match="use_audio_in_video: ") as caught:
        processor.measure(silent, LIMITS)
    assert caught.value.param is None


def test_sight_is_bytes_and_sound_is_floats(processor: Qwen25OmniProcessor) -> None:
    sounds = set()
    for track in (*tracks(talkie(1, 16000)), sound()):
        measure = processor.measure(track, LIMITS)
        array = processor.load(track, measure, LIMITS, StageClock())
        assert array.shape == measure.shape and array.dtype == np.dtype(measure.dtype)
        assert array.nbytes == measure.nbytes
        sounds.add(array.tobytes())
    assert len(sounds) == 2  # the tone beside the video is the same tone


def test_the_largest_of_each_kind(processor: Qwen25OmniProcessor) -> None:
    found = processor.largest(MediaConfig(max_audio_seconds=20, max_frames=16), 4096)
    assert [measure.kind for measure in found] == ["image", "video", "audio"]
    assert found[2].grid == (1, 1, 2000) and found[2].shape == (2000, 16)
    assert all(measure.n_tokens <= 4096 for measure in found)
    assert [measure.grid[2] for measure in processor.largest(LIMITS, 10)][2] == 42


# ---- boxes


def test_a_vocabulary_with_ordinary_tags_grounds(processor: Qwen25OmniProcessor, path: Path, tmp_path: Path) -> None:
    assert "grounding" not in processor.features
    add_tags(copy(path, tmp_path))
    pointing = of(tmp_path)
    assert "grounding" in pointing.features
    inputs: list[dict[str, Any]] = [{"image": "a"}, {"ref": "the cat", "box": [[1, 2, 30, 400], [5, 6, 7, 8]]}]
    ids = pointing.render(chat_from_native([*inputs, {"text": "what?"}]))
    typed = "<ref>the cat</ref><box>(1,2),(30,400)</box><box>(5,6),(7,8)</box>what?"
    assert ids == pointing.render(chat_from_native([inputs[0], {"text": typed}]))
    said = b"".join(pointing.tokenizer.token_bytes(i) for i in ids if not pointing.tokenizer.is_special(i)).decode()
    assert typed in said and pointing.tokenizer.encode("<box>")[0] in ids
    assert pointing.render(chat_from_native([inputs[0], {"box": [[1, 2, 3, 4]]}])) == pointing.render(
        chat_from_native([inputs[0], {"text": "<box>(1,2),(3,4)</box>"}])
    )


def test_special_tags_and_missing_ones_do_not(path: Path, tmp_path: Path) -> None:
    add_tags(copy(path, tmp_path), special=True)
    assert "grounding" not in of(tmp_path).features


# ---- what the files say of videos


def planned(
    processor: Qwen25OmniProcessor, limits: MediaConfig = LIMITS, **options: Any
) -> tuple[int, tuple[int, int]]:
    """Frames and size of a clip of eight seconds."""
    data = make_clip(n=64, rate=8, size=(240, 320), codec="mjpeg", container="avi", pixels="yuvj420p")
    measure = processor.measure(Source(kind="video", param="", data=data, options=MediaOptions(**options)), limits)
    assert measure.video is not None
    return len(measure.video.indices), measure.video.size


@each_of(
    ("settings", "options", "found"),
    [
        ({}, {}, (16, (280, 392))),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12544}}, {}, (16, (84, 112))),
        ({"min_pixels": 3136, "max_pixels": 12544}, {}, (16, (84, 112))),
        ({"size": {"shortest_edge": 3136, "longest_edge": 12845056}}, {}, (16, (280, 392))),
        ({"max_pixels": 12544}, {"max_pixels": 50176}, (16, (168, 252))),
        ({"max_pixels": 12544, "min_pixels": 3136}, {"max_pixels": 6272}, (16, (56, 84))),
        ({"fps": 1}, {}, (8, (280, 392))),
        ({"fps": 1}, {"fps": 4}, (32, (280, 392))),
        ({"max_frames": 6}, {}, (6, (280, 392))),
        ({"max_frames": 6}, {"num_frames": 10}, (10, (280, 392))),
        ({"fps": 0.1, "min_frames": 2}, {}, (2, (280, 392))),
    ],
    copied=("path",),
)
def test_the_checkpoint_s_own_sampling(
    path: Path, tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], found: tuple[int, tuple[int, int]]
) -> None:
    write_json(copy(path, tmp_path) / "video_preprocessor_config.json", settings)
    assert planned(of(tmp_path), **options) == found


def test_the_server_s_caps_win(path: Path, tmp_path: Path) -> None:
    write_json(copy(path, tmp_path) / "video_preprocessor_config.json", {"fps": 8, "max_pixels": 50176})
    limits = MediaConfig(max_frames=8, max_pixels=12544)
    assert planned(of(tmp_path), limits) == (8, (84, 112))


@each_of(
    ("settings", "message"),
    [
        ({"fps": 0}, "'fps' is 0, expected a number above 0"),
        ({"min_frames": 9, "max_frames": 8}, "min_frames 9, max_frames 8"),
        ({"fps": "2"}, "fps"),
    ],
    copied=("path",),
)
def test_settings_that_fit_no_video(path: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    write_json(copy(path, tmp_path) / "video_preprocessor_config.json", settings)
    with pytest.raises(CheckpointError, match=message):
        of(tmp_path)


def test_time_that_stands_still_is_refused(path: Path, tmp_path: Path) -> None:
    config = json.loads((copy(path, tmp_path) / "config.json").read_text())
    config["thinker_config"]["position_id_per_seconds"] = 0
    write_json(tmp_path / "config.json", config)
    with pytest.raises(CheckpointError, match="position_id_per_seconds"):
        of(tmp_path)
