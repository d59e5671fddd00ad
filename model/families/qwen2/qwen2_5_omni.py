"""Qwen2.5-Omni's thinker: text, pictures, videos and sounds in, text out; the talker is not served."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.families.qwen2.audio_features import FeatureExtractor
from model.families.qwen2.processor import Qwen2Processor
from model.family import Family, PixelBounds, Transcription
from model.grids.bounds import frame_rules, pixel_bounds
from model.grids.positions import (
    Block,
    TimeScale,
    audio_positions,
    interleave,
    interleaved_block,
    mrope_positions,
    single_block,
    vision_positions,
)
from model.media_tokens import MediaTokens, read_media_tokens
from tokenization.chat.boxes import TAGS
from tokenization.chat.parts import Kind
from tokenization.media.frame_sampling import PUBLISHED, FrameRules
from tokenization.placeholders import Layout, Spans
from tokenization.processor import Feature, Measure, Modality

if TYPE_CHECKING:
    from model.net.audio_tower import AudioTower
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


# ---- the host half


def thinker_config(checkpoint: Checkpoint) -> ConfigSection:
    """thinker_config of config.json where there is one, else config.json itself."""
    config = checkpoint.config
    return config.child("thinker_config") if "thinker_config" in config else config


def omni_tokens(checkpoint: Checkpoint) -> MediaTokens:
    """Each placeholder under its old key or its new one."""
    placeholders: dict[Kind, int] = {"image": 151655, "video": 151656, "audio": 151646}
    return read_media_tokens(
        checkpoint,
        thinker_config(checkpoint),
        {kind: ((f"{kind}_token_id", f"{kind}_token_index"), default) for kind, default in placeholders.items()},
        {
            "audio_start_token_id": "<|audio_bos|>",
            "audio_end_token_id": "<|audio_eos|>",
            "vision_start_token_id": "<|vision_bos|>",
            "vision_end_token_id": "<|vision_eos|>",
        },
    )


def omni_frame_rules(checkpoint: Checkpoint) -> FrameRules:
    """The published processor's class says how large a frame may be, over what the files say, which are of pictures.

    Only a checkpoint all of whose frames are smaller than the class's smallest keeps its own bounds: it says what it
    was trained on, and no save of a published directory looks like that.
    """
    own = frame_rules(checkpoint)
    if own.max_pixels < PUBLISHED.min_pixels:
        return own
    return msgspec.structs.replace(own, min_pixels=PUBLISHED.min_pixels, max_pixels=PUBLISHED.max_pixels)


def omni_pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    """A plan opens no processor: what config.json says to one is looked at here as well."""
    time_scale(thinker_config(checkpoint))
    return pixel_bounds(checkpoint, thinker_config(checkpoint), omni_frame_rules(checkpoint))


def time_scale(thinker: ConfigSection) -> TimeScale:
    found = TimeScale(
        per_second=thinker.positive("position_id_per_seconds", 25.0),
        chunk_seconds=thinker.positive("seconds_per_chunk", 2.0),
        merge=thinker.child("vision_config").count("spatial_merge_size", 2),
    )
    if not (found.per_second > 0 and found.chunk >= 1):
        raise CheckpointError(f"{thinker.location}: position_id_per_seconds or seconds_per_chunk is not above 0")
    return found


class Qwen25OmniProcessor(Qwen2Processor):
    """A video keeps its own time, also where the published processor takes two frames a second for granted."""

    modalities: Mapping[Kind, Modality] = {
        "image": Modality(positions="grid"),
        "video": Modality(positions="time", expansion="turns"),
        "audio": Modality(),
    }
    features: frozenset[Feature] = frozenset({"audio_in_video", "grounding"})

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError."""
        thinker = thinker_config(checkpoint)
        tokens = omni_tokens(checkpoint)
        frames = omni_frame_rules(checkpoint)
        super().__init__(checkpoint, max_pixels, config=thinker, tokens=tokens, frames=frames)
        self.handlers = {**self.handlers, "audio": FeatureExtractor(checkpoint, thinker.child("audio_config"))}
        self._sound_delimiters = [tokens.delimiters.get(key) for key in ("audio_start_token_id", "audio_end_token_id")]
        self._time_scale = time_scale(thinker)
        has: Mapping[Feature, bool] = {
            "audio_in_video": None not in self._sound_delimiters,  # we place them around a video with its sound
            # As special tokens they would be spelled.
            "grounding": all(len(self.tokenizer.encode(tag)) == 1 for tag in TAGS),
        }
        self.features = frozenset(feature for feature in self.features if has[feature])

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        """One run for each medium; of a video with sound chunks of both in turns, between the sound's delimiters."""
        short = np.asarray(ids, np.int64)
        parts: list[np.ndarray] = []
        spans: list[Spans] = []
        done, at = 0, 0  # ids that were taken, ids that were laid down
        places = np.flatnonzero(np.isin(short, list(self.placeholders.values())))
        for place, tracks in zip(places.tolist(), _media(measures), strict=True):
            parts.append(short[done:place])
            at += place - done
            done = place + 1
            pieces = self._pieces(tracks)
            if len(tracks) == 2:
                opening, closing = self._sound_delimiters
                parts.append(np.array([opening], np.int64))
                at += 1
            runs: list[list[tuple[int, int]]] = [[] for _ in tracks]
            for track, n in pieces:
                parts.append(np.full(n, self.placeholders[tracks[track].kind], np.int64))
                if runs[track] and sum(runs[track][-1]) == at:  # where the other track has ended
                    n, at = n + runs[track][-1][1], runs[track].pop()[0]
                runs[track].append((at, n))
                at += n
            if len(tracks) == 2:
                parts.append(np.array([closing], np.int64))
                at += 1
            spans += [tuple(run) for run in runs]
        return Layout(input_ids=np.concatenate([*parts, short[done:]]), spans=tuple(spans))

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        """Time-aligned m-rope: what is seen by its time, what is heard by its tokens."""
        blocks: list[Block] = []
        spans = iter(layout.spans)
        for tracks in _media(measures):
            start = next(spans)[0][0]
            moves = [self._moves(measure) for measure in tracks]
            if len(tracks) == 2:
                next(spans)
                blocks.append(interleaved_block(start, moves[0], moves[1], self._time_scale))
            else:
                blocks.append(single_block(start, moves[0]))
        return mrope_positions(len(layout.input_ids), blocks)

    def _moves(self, measure: Measure) -> np.ndarray:
        """int32 [3, n] of one track, counted from its own start."""
        if measure.kind == "audio":
            return audio_positions(measure.n_tokens)
        return vision_positions(
            measure.grid, self._time_scale, seconds_per_grid=measure.video.seconds_per_grid if measure.video else 1
        )

    def _pieces(self, tracks: Sequence[Measure]) -> list[tuple[int, int]]:
        """(track, placeholders) of each run of one medium."""
        if len(tracks) == 1:
            return [(0, tracks[0].n_tokens)]
        seen, heard = (self._moves(measure) for measure in tracks)
        return [(int(sound), stop - start) for sound, start, stop in interleave(seen, heard, self._time_scale)]


def _media(measures: Sequence[Measure]) -> Iterator[tuple[Measure, ...]]:
    """The tracks of each medium: one, or a video and its sound."""
    for i, measure in enumerate(measures):
        if measure.of_video:
            continue
        both = i + 1 < len(measures) and measures[i + 1].of_video
        yield (measure, measures[i + 1]) if both else (measure,)


# ---- the networks


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose both towers and the decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.composition import MediaEncoders
    from model.families.qwen2.recipe import (
        SPLIT_NAMES,
        TextDefaults,
        build_language_model,
        decoder_spec,
        pixel_specs,
        windowed_tower,
    )
    from model.net.rope_vit import build_rope_vit

    config = thinker_config(checkpoint)
    defaults = TextDefaults(hidden=3584, inter=18944, layers=28, heads=28, kv_heads=4, eps=1e-6)
    hidden = decoder_spec(config, defaults).hidden
    seeing = windowed_tower(config, pixel_specs(checkpoint), hidden)
    hearing = _audio_tower(config, weights, ops, hidden)
    media_encoders = MediaEncoders(
        encoders={**build_rope_vit(ops, weights, seeing, "visual.", SPLIT_NAMES), "audio": hearing},
        tokens=omni_tokens(checkpoint),
    )
    # What the text keys say of tying is their class's default, which does not hold here.
    tied = config.read(bool, "tie_word_embeddings", False)
    return build_language_model(config, weights, ops, media_encoders, tied=tied, defaults=defaults)


def _audio_tower(config: ConfigSection, weights: "Weights", ops: "Ops", hidden: int) -> "AudioTower":
    from model.families.qwen2.recipe import audio_spec
    from model.net.audio_tower import AudioTowerNames, build_audio_tower

    audio = config.child("audio_config")
    audio.expect("output_dim", (hidden,), 3584)
    window = audio.count("n_window", 100)
    spec = audio_spec(audio, hidden, chunk=2 * window, context=0)
    if window > spec.positions:
        raise CheckpointError(f"{audio.location}: n_window {window} does not lie in 1 to {spec.positions} positions")
    weights.drop("audio_tower.audio_bos_eos_token.weight")  # of training; no published code reads it
    return build_audio_tower(
        ops, weights, spec, "audio_tower.", AudioTowerNames(norm="ln_post", proj="audio_tower.proj")
    )


RENAMES = {  # hub, transformers 5 and a thinker alone, on disk -> the names that `build` uses
    "thinker.model.language_model.": "model.",
    "thinker.model.audio_tower.": "audio_tower.",
    "thinker.model.visual.": "visual.",
    "thinker.": "",
    "model.language_model.": "model.",
    "model.audio_tower.": "audio_tower.",
    "model.visual.": "visual.",
}
SKIPS = ("talker.", "token2wav.")  # what speaks


FAMILY = Family(
    name="qwen2_5_omni",
    models="Qwen2.5-Omni, what reads, sees and hears of it",
    processor=Qwen25OmniProcessor,
    build=build,
    renames=RENAMES,
    skips=SKIPS,
    config=thinker_config,
    transcription=Transcription(  # of its cookbook of sounds
        system="You are a speech recognition model.", prompt="Transcribe the audio into text."
    ),
    pixels=omni_pixel_bounds,
)
