"""Qwen2-Audio: text and whole sounds of up to 30 seconds in, text out; one axis of positions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from configs.checkpoint import Checkpoint, ConfigSection
from configs.serve import MediaConfig
from model.families.qwen2.audio_features import FeatureExtractor
from model.family import Family
from tokenization.chat.parts import Chat, Kind
from tokenization.media.mel import CONTEXT_FRAMES
from tokenization.media.source import Source
from tokenization.pads import expand_pads, plain_positions, render_pads
from tokenization.processor import Layout, Measure, StageClock
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

if TYPE_CHECKING:
    from model.net.audio_tower import AudioTower
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


# ---- the host half


def audio_pad_id(config: ConfigSection) -> int:
    """The id of each token of a sound in the prompt, under its old key or its new one."""
    return config.read(int, "audio_token_id", config.read(int, "audio_token_index", 151646))


class Qwen2AudioProcessor:
    """Refuses sounds longer than the encoder's positions (30 s); the published processor cuts them off silently."""

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels is not used. Raises CheckpointError for a damaged tokenizer, template or preprocessor config."""
        config = checkpoint.config
        self._pads: dict[Kind, int] = {"audio": audio_pad_id(config)}
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tuple(self._pads.values()))
        self.modalities: frozenset[Kind] = frozenset(self._pads)
        self.takes_audio_in_video = False
        self.supports_grounding = False
        self.stop_ids: tuple[int, ...] = ()
        self._template = ChatTemplate.from_checkpoint(checkpoint)
        audio = config.child("audio_config")
        self._feature_extractor = FeatureExtractor(
            checkpoint, audio, positions=audio.read(int, "max_source_positions", 1500)
        )

    def fit(self, chat: Chat) -> Chat:
        return chat

    def render(self, chat: Chat) -> list[int]:
        return render_pads(chat, self._template, self.tokenizer, self._pads)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        return self._feature_extractor.measure(source, limits)

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        found = self._feature_extractor.largest(limits, max_tokens)
        return () if found is None else (found,)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """float32 `measure.shape`: log-mel, a frame in each row."""
        with clock.stage("mel", measure.kind):
            return self._feature_extractor.load(measure)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        return expand_pads(ids, self._pads, measures)

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        return plain_positions(len(layout.input_ids))


# ---- the networks


AUDIO_MARKS = ("<|audio_bos|>", "<|audio_eos|>")


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose audio tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen2.recipe import MediaEncoders, TextDefaults, build_language_model, decoder_spec

    config = checkpoint.config
    defaults = TextDefaults(
        vocab=151936, hidden=4096, inter=22016, layers=32, heads=32, kv_heads=32, eps=1e-6, theta=1e4
    )
    tower = _tower(checkpoint, weights, ops, decoder_spec(config, defaults).hidden)
    media_encoders = MediaEncoders(
        encoders={"audio": tower}, pads={"audio": audio_pad_id(config)}, media_token_ids=media_token_ids(checkpoint)
    )
    return build_language_model(config, weights, ops, media_encoders, tied=False, defaults=defaults, mrope=False)


def media_token_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The ids before and after a sound, by their names in the tokenizer: config.json has no keys for them."""
    added = checkpoint.file("tokenizer.json").read(list, "added_tokens", [])
    return tuple(token["id"] for token in added if token["content"] in AUDIO_MARKS)


def _tower(checkpoint: Checkpoint, weights: "Weights", ops: "Ops", hidden: int) -> "AudioTower":
    """Its convolutions run over a sound padded to the longest one; only attention hides the padding."""
    from model.families.qwen2.recipe import audio_spec
    from model.net.audio_tower import AudioTowerNames, build_audio_tower

    audio = checkpoint.config.child("audio_config")
    spec = audio_spec(audio, hidden, chunk=None, context=CONTEXT_FRAMES)
    names = AudioTowerNames(norm="layer_norm", proj="multi_modal_projector.linear", positions="embed_positions")
    return build_audio_tower(ops, weights, spec, "audio_tower.", names)


RENAMES = {  # hub, and transformers 5, on disk -> the names that `build` uses
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.audio_tower.": "audio_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


FAMILY = Family(name="qwen2_audio", processor=Qwen2AudioProcessor, build=build, renames=RENAMES)
