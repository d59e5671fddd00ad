"""The golden set of the original Qwen-VL code: its cases as our side takes them, and checkpoints with other settings.

meta.json beside the data says what each array is.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen_vl.processor import QwenVLProcessor
from tests.parity.harness import Sample
from tokenization.media.source import Source
from tokenization.processor import Measure, StageClock

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen_vl_v1"
CKPT = GOLDEN / "ckpt"
IMG, IMG_END, IMG_PAD = 509, 510, 511
MARGIN = 0.01  # greedy tokens are compared where the best logit leads by more
IMAGES = ("cat_300x420.png", "dot_29x41.png", "full_448x448.png", "alpha_90x60.png", "gray_64x100.png")
VISION: Any = np.load(GOLDEN / "vision.npz")
LOGITS: Any = np.load(GOLDEN / "lm.npz")


def read_json(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt and how it goes on by argmax."""

    name: str
    ids: tuple[int, ...]  # between <img> and </img> stand pads
    images: tuple[str, ...]  # file names
    spans: tuple[tuple[int, int], ...]  # (start, length) of each run of pads
    greedy: tuple[int, ...]
    margins: tuple[float, ...]  # best minus second logit, of the row that gives each token
    settings: dict[str, Any]  # what config.json says otherwise

    @property
    def logits(self) -> np.ndarray:
        """float32 [len(greedy) + 1, vocab]: of the last prompt position, then behind each greedy token."""
        found: np.ndarray = LOGITS[self.name]
        return found

    def sure(self, step: int) -> bool:
        """Whether the token of this step is a test: it and everything before it has a clear lead."""
        return min(self.margins[: step + 1]) > MARGIN


@cache
def cases() -> dict[str, Case]:
    """Every case with a greedy continuation."""
    found = {}
    for name, entry in read_json("lm.json").items():
        if "greedy" in entry:
            settings = {key: entry[key] for key in ("seq_length", "use_dynamic_ntk", "use_logn_attn") if key in entry}
            ids, images, spans = _spans(entry["input_ids"])
            found[name] = Case(
                name=name, ids=ids, images=images, spans=spans, greedy=tuple(entry["greedy"]),
                margins=tuple(entry["greedy_margin"]), settings=settings,
            )  # fmt: skip
    return found


def _spans(ids: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...], tuple[tuple[int, int], ...]]:
    """The original writes an image's path as bytes into its span; ours holds pads."""
    out, images, spans, at = list(ids), [], [], 0
    while IMG in out[at:]:
        start = out.index(IMG, at) + 1
        end = out.index(IMG_END, start)
        images.append(bytes(i for i in out[start:end] if i != IMG_PAD).decode())
        out[start:end] = [IMG_PAD] * (end - start)
        spans.append((start, end - start))
        at = end
    return tuple(out), tuple(images), tuple(spans)


def checkpoint_with(path: Path, **settings: Any) -> Path:
    """The golden checkpoint with other values in config.json; `visual_` in front of a key names one of `visual`."""
    path.mkdir(parents=True, exist_ok=True)
    config = json.loads((CKPT / "config.json").read_text())
    for key, value in settings.items():
        if key.startswith("visual_"):
            config["visual"][key.removeprefix("visual_")] = value
        else:
            config[key] = value
    for file in CKPT.iterdir():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    (path / "config.json").write_text(json.dumps(config))
    return path


def processor_at(path: Path = CKPT) -> QwenVLProcessor:
    return QwenVLProcessor(Checkpoint(path), 1 << 20)


def pixels_of(host: QwenVLProcessor, image: str) -> tuple[np.ndarray, Measure]:
    """The array of one golden image, and its measure."""
    source = Source(kind="image", param="image", data=(GOLDEN / image).read_bytes())
    measure = host.measure(source, MediaConfig())
    return host.load(source, measure, MediaConfig(), StageClock()), measure


def sample_of(case: Case, host: QwenVLProcessor) -> Sample:
    """Processor and golden continuation: what teacher forcing feeds."""
    ids = torch.tensor(case.ids + case.greedy)
    media = [pixels_of(host, image) for image in case.images]
    return Sample(
        ids=ids,
        positions=torch.arange(len(ids)).expand(3, -1),
        grids=tuple(measure.grid for _, measure in media),
        pixels=tuple(torch.from_numpy(pixels) for pixels, _ in media),
        pads=(ids == IMG_PAD).nonzero()[:, 0],
        n_prompt=len(case.ids),
    )
