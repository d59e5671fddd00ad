"""What parity tests share: a checkpoint loaded by transformers and by us, and our forward over lists of chunks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint, ConfigSection
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM
from model.ops.base import Ops
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights
from tests.parity.in_rows import Rows, hf_rows

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """A video in a layout: its grid, and the seconds from one temporal grid to the next."""

    grid: Grid
    seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """An audio in a layout: its valid log-mel frames."""

    frames: int


Layouts = Sequence[int | Grid | Film | Sound | Rows]


def load_ours(path: Path, dtype: torch.dtype = torch.float32) -> MultimodalLM:
    """The checkpoint as the engine loads it, on the CPU."""
    return load_over(load_ops(torch.device("cpu"), dtype), path)


def load_over(ops: Ops, path: Path) -> MultimodalLM:
    """The checkpoint over these operations."""
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)
    return family.build(checkpoint, Weights(checkpoint, family.renames, ops.dtype, ops.device, family.skips), ops)


def load_hf(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The checkpoint as transformers loads it."""
    import transformers

    name = Checkpoint(path).architecture
    if name.startswith("Qwen2_5Omni"):  # of all of it what reads, sees and hears
        name = "Qwen2_5OmniThinkerForConditionalGeneration"
    loader = getattr(transformers, name)
    return loader.from_pretrained(path, dtype=dtype, local_files_only=True).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt with its media, as both sides take it."""

    ids: Tensor  # int64 [n]; pads hold the id of their kind
    positions: Tensor  # int64 [3, n]
    grids: tuple[Grid, ...]
    pixels: tuple[Tensor, ...]  # uint8 [h * w, 588] each, of a video [t * h * w, 1176]; float32 log-mel of an audio
    pads: Tensor  # int64: rows that hold pads
    n_prompt: int | None = None  # how many of the ids are the prompt; None: all
    films: tuple[Film | None, ...] = ()  # for each grid: the video it is of; no entries: only images
    sounds: tuple[Sound | None, ...] = ()  # for each grid: the audio it is of; no entries: none
    in_rows: bool = False  # the pictures are `Rows`

    def kind(self, i: int) -> str:
        """Of the medium `i`."""
        if self.sounds and self.sounds[i]:
            return "audio"
        return "video" if self.films and self.films[i] else "image"


def make_sample(checkpoint: Path, layout: Layouts, seed: int = 0) -> Sample:
    """A random prompt: an int is that many tokens of text, a grid (1, h, w) an image of random patches.

    Positions follow the written rule: a video's time is floor(index * step), text goes on behind the greatest one.
    """
    rng = np.random.default_rng(seed)
    config = Checkpoint(checkpoint).config
    config = config.child("thinker_config") if "thinker_config" in config else config
    pads = pad_ids(config)
    ids: list[int] = []
    positions: list[np.ndarray] = []
    arrays: list[Tensor] = []
    media: list[Grid | Film | Sound | Rows] = []
    at = 0
    for part in layout:
        if isinstance(part, int):
            ids.extend(rng.integers(0, 200, part).tolist())
            positions.append(np.broadcast_to(np.arange(at, at + part), (3, part)))
            at += part
            continue
        kind = "image" if isinstance(part, tuple | Rows) else "video" if isinstance(part, Film) else "audio"
        seen = _places(part, config)
        ids.extend(part.ids(pads[kind]) if isinstance(part, Rows) else [pads[kind]] * len(seen))
        positions.append(np.array(seen).T + at)
        at += 1 + max(max(place) for place in seen)
        media.append(part)
        arrays.append(_array(part, config, rng))
    tensor = torch.tensor(ids)
    return Sample(
        ids=tensor,
        positions=torch.from_numpy(np.concatenate(positions, axis=1)).long(),
        grids=tuple(_grid(part) for part in media),
        pixels=tuple(arrays),
        pads=torch.isin(tensor, torch.tensor(list(pads.values()))).nonzero()[:, 0],
        films=tuple(part if isinstance(part, Film) else None for part in media),
        sounds=tuple(part if isinstance(part, Sound) else None for part in media),
        in_rows=any(isinstance(part, Rows) for part in media),
    )


def pad_ids(config: ConfigSection) -> dict[str, int]:
    """By kind, as config.json has them under either key."""
    keys = {kind: (f"{kind}_token_id", f"{kind}_token_index") for kind in ("image", "video", "audio")}
    return {kind: config.read(int, key) for kind, pair in keys.items() for key in pair if key in config}


def sees_one_size(config: ConfigSection) -> bool:
    """Whether every picture is as large as the tower, a token is a patch, and positions count on as text's."""
    return "image_size" in config.child("vision_config")


def _grid(part: Grid | Film | Sound | Rows) -> Grid:
    if isinstance(part, Sound):
        return (1, 1, part.frames)
    if isinstance(part, Rows):
        return (1, part.rows, part.columns)
    return part.grid if isinstance(part, Film) else part


def _places(part: Grid | Film | Sound | Rows, config: ConfigSection) -> list[tuple[int, int, int]]:
    """(time, height, width) of each token of a medium that begins at 0, the ends of rows among them."""
    if isinstance(part, Sound):
        return [(i, i, i) for i in range((part.frames + 1) // 2 // 2)]
    t, h, w = _grid(part)
    if isinstance(part, Rows) or sees_one_size(config):
        return [(i, i, i) for i in range(h * (w + isinstance(part, Rows)))]
    rate = config.read(int, "position_id_per_seconds", config.child("vision_config").read(int, "tokens_per_second", 0))
    step = part.seconds * rate if isinstance(part, Film) and rate else 1.0
    return [(math.floor(i * step), row, column) for i in range(t) for row in range(h // 2) for column in range(w // 2)]


def _array(part: Grid | Film | Sound | Rows, config: ConfigSection, rng: np.random.Generator) -> Tensor:
    """Random content; an audio of an encoder that hears whole clips has two frames more than valid ones."""
    if isinstance(part, Sound):
        audio = config.child("audio_config")
        rows = part.frames + (0 if "n_window" in audio else 2)
        return torch.from_numpy(rng.normal(0, 0.7, (rows, audio.read(int, "num_mel_bins"))).astype(np.float32))
    if isinstance(part, Rows):
        return part.patches(config.read(int, "patch_size"), rng)
    patch = config.child("vision_config").read(int, "patch_size", 14)
    columns = 3 * patch**2 * (2 if isinstance(part, Film) else 1)
    return torch.from_numpy(rng.integers(0, 256, (math.prod(_grid(part)), columns), dtype=np.uint8))


def hf_pixels(sample: Sample, checkpoint: Path, kind: str = "image") -> Tensor:
    """What transformers' processors hand to its model for the media of one kind.

    Float patches [n, 3 * 2 * patch^2]; [pictures, 3, side, side] for a model that sees one size.
    """
    file = Checkpoint(checkpoint).file("preprocessor_config.json")
    mean = torch.tensor(file.read(list, "image_mean"))[None, :, None]
    std = torch.tensor(file.read(list, "image_std"))[None, :, None]
    patches = torch.cat([part for i, part in enumerate(sample.pixels) if sample.kind(i) == kind])
    normal = (patches.view(len(patches), 3, -1).float() / 255 - mean) / std
    if sees_one_size(Checkpoint(checkpoint).config):
        (_, h, w), patch = sample.grids[0], 14
        grid = normal.view(-1, h, w, 3, patch, patch).permute(0, 3, 1, 4, 2, 5)
        return grid.reshape(-1, 3, h * patch, w * patch)
    if kind == "image":
        normal = normal[:, :, None].expand(-1, 3, 2, -1)
    return normal.flatten(1)


def hf_sounds(sample: Sample, checkpoint: Path) -> dict[str, Tensor]:
    """Log-mel frames and their mask, as transformers' processors hand them over: padded to one length."""
    found = [(mel, sound.frames) for mel, sound in zip(sample.pixels, sample.sounds, strict=True) if sound]
    if not found:
        return {}
    audio = Checkpoint(checkpoint).config.child("audio_config")
    longest = max(n for _, n in found) + 3
    whole = 0 if "n_window" in audio else 2 * audio.read(int, "max_source_positions", 0)
    width = whole or longest
    features = torch.full((len(found), found[0][0].shape[1], width), 0.5)
    mask = torch.zeros((len(found), width), dtype=torch.int64)
    for i, (mel, n) in enumerate(found):
        features[i, :, : len(mel)] = mel[:width].T
        mask[i, :n] = 1
    return {"input_features": features, "feature_attention_mask": mask}


def hf_media(sample: Sample, checkpoint: Path) -> dict[str, Tensor]:
    """Pixels, grids and frames as transformers' models take them."""
    if sample.in_rows:
        return {"pixel_values": hf_rows(torch.cat(sample.pixels))[None]}
    found: dict[str, Tensor] = hf_sounds(sample, checkpoint) if sample.sounds else {}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        grids = [g for i, g in enumerate(sample.grids) if sample.kind(i) == kind]
        if grids:
            found |= {pixels: hf_pixels(sample, checkpoint, kind), grid: torch.tensor(grids)}
    if sees_one_size(Checkpoint(checkpoint).config):
        found.pop("image_grid_thw", None)
    return found


@torch.inference_mode()
def hf_logits(model: Any, sample: Sample, checkpoint: Path) -> Tensor:
    """float32 [n, vocab]: logits of every position, by transformers."""
    media = hf_media(sample, checkpoint)
    if sample.in_rows:
        media["pixel_values"] = media["pixel_values"].to(model.dtype)
    # No attention mask: given both, 4.x and 5.x disagree on which position_ids win.
    axes = hasattr(model.config, "vision_config") and not sees_one_size(Checkpoint(checkpoint).config)
    positions = sample.positions[:, None] if axes else sample.positions[:1]
    out = model(input_ids=sample.ids[None], position_ids=positions, use_cache=False, **media)
    logits: Tensor = out.logits[0].float()
    return logits


class OurRun:
    """Sequences going through our forward in chunks, over one paged cache with blocks handed out crosswise."""

    def __init__(self, model: MultimodalLM, block_size: int = 16, blocks: int = 64) -> None:
        self.model = model
        self.block_size = block_size
        self.kv: KVCache = model.kv_cache(blocks, block_size)
        self._free = Random(0).sample(range(blocks), blocks)
        self._tables: dict[int, list[int]] = {}
        self._done: dict[int, int] = {}
        self._embeds: dict[int, Tensor] = {}

    def step(self, work: Sequence[tuple[int, Sample, int]], sample_all: bool = True) -> dict[int, Tensor]:
        """One forward over (key, sample, new tokens) of each sequence -> logits [new tokens or 1, vocab] by key."""
        ids, positions, slots, media_rows, media, rows, row = [], [], [], [], [], [], 0
        for key, sample, n in work:
            start = self._done.get(key, 0)
            stop = start + n
            table = self._tables.setdefault(key, [])
            while len(table) * self.block_size < stop:
                table.append(self._free.pop())
            ids.append(sample.ids[start:stop])
            positions.append(sample.positions[:, start:stop])
            slots += [table[i // self.block_size] * self.block_size + i % self.block_size for i in range(start, stop)]
            inside = (sample.pads >= start) & (sample.pads < stop)
            media_rows.append(sample.pads[inside] - start + row)
            if sample.grids:
                media.append(self._embeddings(key, sample)[inside])
            rows.append(torch.arange(row if sample_all else row + n - 1, row + n))
            self._done[key] = stop
            row += n
        width = max(len(self._tables[key]) for key, _, _ in work)
        tables = [self._tables[key] + [0] * (width - len(self._tables[key])) for key, _, _ in work]
        found = torch.cat(media) if media else None
        batch = ForwardBatch(
            ids=torch.cat(ids),
            positions=torch.cat(positions, dim=1),
            media_rows=torch.cat(media_rows),
            media_embeds=found if found is not None and len(found) else None,
            slots=torch.tensor(slots),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            q_lens=tuple(n for _, _, n in work),
            kv_lens=tuple(self._done[key] for key, _, _ in work),
            sample_rows=torch.cat(rows),
            prompt_lens=tuple(sample.n_prompt or len(sample.ids) for _, sample, _ in work),
        )
        logits = self.model.compute_logits(self.model.forward(batch, self.kv))
        sizes = [len(part) for part in rows]
        return {key: part for (key, _, _), part in zip(work, logits.split(sizes), strict=True)}

    def whole(self, sample: Sample, chunks: Sequence[int] | None = None, key: int = 0) -> Tensor:
        """Logits of every position [n, vocab]; `chunks` are lengths whose sum is n (default: all at once)."""
        steps = chunks if chunks is not None else [len(sample.ids)]
        assert sum(steps) == len(sample.ids)
        return torch.cat([self.step([(key, sample, n)])[key] for n in steps])

    def _embeddings(self, key: int, sample: Sample) -> Tensor:
        if key not in self._embeds:
            media = enumerate(zip(sample.pixels, sample.grids, strict=True))
            self._embeds[key] = torch.cat([self.model.encode(sample.kind(i), [p], [g])[0] for i, (p, g) in media])
        return self._embeds[key]
