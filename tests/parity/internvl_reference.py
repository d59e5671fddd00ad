"""What transformers' own InternVL code says of a chat: ids and pixels. Only its video processor needs torchvision.

Frames go through its Pillow-backed image processor, which resizes and normalises them as its videos' does.
"""

import json
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from configs.checkpoint import Checkpoint
from tests.parity.harness import Layouts, Sample
from tests.parity.theirs import transformers
from tests.tiny.internvl import MEAN, STD, TILE

IMAGE, VIDEO = "<IMG_CONTEXT>", "<video>"


class TheirProcessor:
    """Of a directory in transformers' layout."""

    def __init__(self, path: Path, template: str | None = None) -> None:
        """template: instead of the directory's own, with `<video>` in the place of a video."""
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(path))
        self.images = transformers.GotOcr2ImageProcessorPil.from_pretrained(str(path))
        stored = json.loads((path / "chat_template.json").read_text())["chat_template"]
        self._template = stored if template is None else template
        self._own: Any = object.__new__(transformers.InternVLProcessor)  # its functions of text alone are called
        self._own.start_image_token, self._own.image_token, self._own.end_image_token = "<img>", IMAGE, "</img>"
        self._own.image_seq_length = json.loads((path / "processor_config.json").read_text())["image_seq_length"]

    def text(self, messages: list[dict[str, Any]]) -> str:
        found: str = self.tokenizer.apply_chat_template(
            messages, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        return found

    def inputs(self, messages: list[dict[str, Any]], media: Sequence[Any], **asked: Any) -> tuple[Tensor, Tensor]:
        """int64 [n] ids, and the pixels of all tiles. media: pictures, and lists of frames; asked: of pictures."""
        left, pixels = iter(media), []

        def placed(match: re.Match[str]) -> str:
            one = next(left)
            if match.group() == IMAGE:
                out = self.images([one], crop_to_patches=True, return_tensors="pt", **asked)
                pixels.append(out["pixel_values"])
                return str(self._own.replace_image_token({"num_patches": out["num_patches"].tolist()}, 0))
            out = self.images(list(one), crop_to_patches=False, return_tensors="pt")
            pixels.append(out["pixel_values"])
            return str(self._own.replace_video_token({"pixel_values_videos": [out["pixel_values"]]}, 0))

        text = re.sub(f"{IMAGE}|{VIDEO}", placed, self.text(messages))
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids), torch.cat(pixels) if pixels else torch.empty(0)


def messages_of(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """One user's turn; what is no text is a picture, or a list of frames."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image" if isinstance(part, Image.Image) else "video"}
        for part in parts
    ]  # fmt: skip
    return [{"role": "user", "content": content}]


def decoded(content: bytes, indices: Sequence[int]) -> list[Image.Image]:
    with av.open(BytesIO(content), "r") as file:
        frames: list[Image.Image] = [frame.to_image() for frame in file.decode(video=0)]  # type: ignore[no-untyped-call]
    return [frames[i] for i in indices]


def their_frames(n_frames: int, rate: float, **asked: Any) -> list[int]:
    """Indices that its video processor looks at. asked: fps, num_frames."""
    rules: Any = SimpleNamespace(num_frames=asked.pop("usual", None), initial_shift=True)
    metadata: Any = SimpleNamespace(total_num_frames=n_frames, fps=rate)
    found: list[int] = video_class().sample_frames(rules, metadata, **asked).tolist()
    return found


def video_class() -> Any:
    """Its module imports torchvision, of which sampling needs nothing."""
    import importlib
    import sys
    from types import ModuleType

    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    names.append(f"{names[-1]}.functional")
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = ModuleType(name)
    try:
        module = importlib.import_module("transformers.models.internvl.video_processing_internvl")
    finally:
        for name in missing:
            del sys.modules[name]
    return module.InternVLVideoProcessor


def as_patches(tiles: np.ndarray) -> np.ndarray:
    """[n, 3, side, side] raw values -> as an array of ours: token by token, columns (channel, y, x)."""
    n, _, side, _ = tiles.shape
    tokens = side // 28
    cut = tiles.reshape(n, 3, tokens, 2, 14, tokens, 2, 14).transpose(0, 2, 5, 3, 6, 1, 4, 7)
    return cut.reshape(-1, 588)


def as_tiles(patches: np.ndarray, side: int) -> np.ndarray:
    """Of patches of `as_patches`, the tiles again."""
    tokens = side // 28
    cut = patches.reshape(-1, tokens, tokens, 2, 2, 3, 14, 14).transpose(0, 5, 1, 3, 6, 2, 4, 7)
    return cut.reshape(-1, 3, side, side)


def normalised(tiles: np.ndarray) -> Tensor:
    """uint8 [n, 3, side, side] -> float32, by the mean and the deviation of tests/tiny/internvl.py."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(tiles).float() / 255 - mean) / std


def tiled_sample(path: Path, layout: Layouts, seed: int) -> Sample:
    """A random prompt: an int is that many tokens of text, a grid (n, 4, 4) a picture of n tiles of random pixels."""
    rng, pad = np.random.default_rng(seed), Checkpoint(path).config.count("image_token_id")
    ids: list[int] = []
    grids = tuple(part for part in layout if isinstance(part, tuple))
    for part in layout:
        assert isinstance(part, int | tuple)
        ids += [pad] * 4 * part[0] if isinstance(part, tuple) else rng.integers(0, 200, part).tolist()
    found = torch.tensor(ids)
    return Sample(
        ids=found,
        positions=torch.arange(len(ids)).expand(3, -1),
        grids=grids,
        pixels=tuple(torch.from_numpy(rng.integers(0, 256, (16 * n, 588), dtype=np.uint8)) for n, _, _ in grids),
        pads=(found == pad).nonzero()[:, 0],
    )


@torch.inference_mode()
def tiled_logits(model: Any, sample: Sample, _: Path) -> Tensor:
    """float32 [n, vocab]: logits of every position, by transformers."""
    media = {}
    if sample.pixels:
        media["pixel_values"] = normalised(as_tiles(torch.cat(sample.pixels).numpy(), TILE)).to(model.dtype)
    logits: Tensor = model(input_ids=sample.ids[None], use_cache=False, **media).logits[0].float()
    return logits
