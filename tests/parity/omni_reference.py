"""Qwen2.5-Omni's ids and positions by transformers' own methods, for chats of words and measured media.

Its processor does not start without torchvision: the methods are called on one that was never set up.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from model.families.qwen2.audio_features import audio_tokens
from tests.parity.theirs import transformers
from tests.tiny.qwen2_5_omni import TEMPLATE
from tokenization.media.video_plan import VideoPlan
from tokenization.processor import Measure

Part = str | list[Measure]  # words, or a medium's tracks


def load_processor(path: Path) -> Any:
    """The processor without its parts that read media."""
    found = transformers.Qwen2_5OmniProcessor.__new__(transformers.Qwen2_5OmniProcessor)
    found.tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    found.image_processor = found.video_processor = SimpleNamespace(merge_size=2)
    for name in ("image", "video", "audio"):
        setattr(found, f"{name}_token", f"<|{name.upper()}|>")
    found.audio_bos_token, found.audio_eos_token = "<|audio_bos|>", "<|audio_eos|>"
    return found


def load_thinker(path: Path) -> Any:
    """The model without weights, which its rope index does not need."""
    config = transformers.Qwen2_5OmniThinkerConfig.from_pretrained(str(path / "config.json"))
    with torch.device("meta"):
        return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)


def image(h: int, w: int) -> Measure:
    return Measure(kind="image", grid=(1, h, w), shape=(h * w, 588), n_tokens=h * w // 4)


def video(t: int, h: int, w: int, seconds: float = 1.0) -> Measure:
    clip = VideoPlan(indices=(), seconds_per_grid=seconds, fps=2.0, size=(h * 14, w * 14), info=None)
    return Measure(kind="video", grid=(t, h, w), shape=(t * h * w, 1176), n_tokens=t * h * w // 4, video=clip)


def audio(frames: int, *, of_video: bool = False) -> Measure:
    return Measure(
        kind="audio", grid=(1, 1, frames), shape=(frames, 16), n_tokens=audio_tokens(frames), of_video=of_video
    )


def talkie(t: int, h: int, w: int, frames: int, seconds: float = 1.0) -> list[Measure]:
    return [video(t, h, w, seconds), audio(frames, of_video=True)]


def flat(parts: Sequence[Part]) -> list[Measure]:
    return [measure for part in parts if not isinstance(part, str) for measure in part]


def messages_of(parts: Sequence[Part]) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": part[0].kind} for part in parts]
    return [{"role": "user", "content": content}]


def their_ids(processor: Any, parts: Sequence[Part]) -> list[int]:
    """Rendered and expanded by the processor's own methods."""
    measures = flat(parts)
    heard = {"num_audio_tokens": np.array([m.n_tokens for m in measures if m.kind == "audio"])}
    audios = [m for m in measures if m.kind == "audio"]
    videos = [m for m in measures if m.kind == "video"]
    grids = {kind: np.array([m.grid for m in measures if m.kind == kind]) for kind in ("image", "video")}
    indices: list[int | None] = [None] * len(videos)
    order = [m for m in measures if m.kind != "image"]
    for i, measure in enumerate(order):
        if measure.of_video:
            indices[sum(m.kind == "video" for m in order[:i]) - 1] = sum(m.kind == "audio" for m in order[:i])
    seen = {
        "video_grid_thw": grids["video"],
        "video_second_per_grid": [m.video.seconds_per_grid for m in videos if m.video],
    }
    timing = {"position_id_per_seconds": 25, "seconds_per_chunk": 2.0}
    with_sound = {"load_audio_from_video": any(m.of_video for m in measures), "video_to_audio_indices": indices}
    text = processor.tokenizer.apply_chat_template(
        messages_of(parts), chat_template=TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    (text,), _ = processor.get_text_with_replacements(
        [text],
        [processor.replace_image_token({"image_grid_thw": grids["image"]}, i) for i in range(len(grids["image"]))],
        [processor.replace_video_token(seen, i, heard, **with_sound, **timing) for i in range(len(videos))],
        [processor.replace_audio_token(heard, i) for i, m in enumerate(audios) if not m.of_video],
    )
    return list(processor.tokenizer(text)["input_ids"])


def their_positions(thinker: Any, ids: np.ndarray, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
    input_ids = torch.from_numpy(ids)[None]
    named: dict[str, Any] = {}
    for kind in ("image", "video"):
        grids = [measure.grid for measure in measures if measure.kind == kind]
        named[f"{kind}_grid_thw"] = torch.tensor(grids) if grids else None
    named["second_per_grids"] = torch.tensor([m.video.seconds_per_grid for m in measures if m.video])
    named["audio_seqlens"] = torch.tensor([m.grid[2] for m in measures if m.kind == "audio"])
    named["use_audio_in_video"] = any(measure.of_video for measure in measures)
    found, delta = thinker.get_rope_index(input_ids, attention_mask=torch.ones_like(input_ids), **named)
    return found[:, 0].numpy(), int(delta)
