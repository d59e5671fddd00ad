"""What transformers' own Qwen3-VL code says of a prompt: its text, its frames, its sizes. None of it needs torchvision.

Only its classes want that: the functions that are called here take numbers and words.
"""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.parity.theirs import transformers
from tokenization.processor import Measure

MARKED = "<|vision_start|><|video_pad|><|vision_end|>"


def their_processor(path: Path) -> Any:
    """Its text half: an object of its class without the video processor that its `__init__` asks for."""
    found: Any = object.__new__(transformers.Qwen3VLProcessor)
    found.tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
    found.chat_template = json.loads((path / "chat_template.json").read_text())["chat_template"]
    found.image_token, found.video_token = "<|image_pad|>", "<|video_pad|>"
    found.vision_start_token, found.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    found.image_processor = SimpleNamespace(merge_size=2)
    found.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    return found


def _videos() -> Any:
    """The module, which the package itself hides where there is no torchvision."""
    return importlib.import_module("transformers.models.qwen3_vl.video_processing_qwen3_vl")


def their_frames(n_frames: int, rate: float, **asked: Any) -> list[int]:
    """Indices that its video processor looks at. asked: fps, num_frames."""
    rules = SimpleNamespace(fps=2, num_frames=None, min_frames=4, max_frames=768)
    metadata: Any = SimpleNamespace(total_num_frames=n_frames, fps=rate)
    found: list[int] = _videos().Qwen3VLVideoProcessor.sample_frames(rules, metadata, **asked).tolist()
    return found


def their_size(n: int, height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """Of `n` frames. size: the file's (shortest_edge, longest_edge)."""
    found: tuple[int, int] = _videos().smart_resize(n, height, width, 2, 32, *size)
    return found


def their_ids(processor: Any, messages: list[dict[str, Any]], measures: Sequence[Measure], *, outer: bool) -> list[int]:
    """Of a whole chat. outer: the template's marks stay around a video, as in 5.23; in 4.57 they do not."""
    text: str = processor.tokenizer.apply_chat_template(
        messages, chat_template=processor.chat_template, add_generation_prompt=True, tokenize=False
    )
    for measure in measures:
        grid = torch.tensor([measure.grid])
        if measure.video is None:
            old, new = "<|image_pad|>", processor.replace_image_token({"image_grid_thw": grid}, 0)
        else:
            seen = SimpleNamespace(fps=measure.video.fps, frames_indices=list(measure.video.indices))
            new = processor.replace_video_token({"video_grid_thw": grid, "video_metadata": [seen]}, 0)
            old = "<|video_pad|>" if outer else MARKED
        assert old in text
        text = text.replace(old, new.replace("_pad|>", "_done|>"), 1)
    text = text.replace("_done|>", "_pad|>")
    ids: list[int] = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
