"""Qwen2-Audio: hears whole clips of up to 30 seconds and reads text; one axis of positions."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.audio_processor import SoundPrompt, sound_pad
from model.family import Family
from tokenization.media.mel import CONTEXT_FRAMES
from tokenization.processor import Prompt

if TYPE_CHECKING:
    from model.net.audio_tower import AudioTower
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights

SOUND_MARKS = ("<|audio_bos|>", "<|audio_eos|>")


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose audio tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen2.recipe import Senses, TextDefaults, build_qwen_lm, decoder_spec

    config = checkpoint.config
    defaults = TextDefaults(
        vocab=151936, hidden=4096, inter=22016, layers=32, heads=32, kv_heads=32, eps=1e-6, theta=1e4
    )
    tower = _tower(checkpoint, weights, ops, decoder_spec(config, defaults).hidden)
    senses = Senses(encoders={"audio": tower}, pads={"audio": sound_pad(config)}, marks=sound_mark_ids(checkpoint))
    return build_qwen_lm(config, weights, ops, senses, tied=False, defaults=defaults, mrope=False)


def sound_mark_ids(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The ids before and behind a sound, by their names in the tokenizer: config.json has no keys for them."""
    added = checkpoint.facts("tokenizer.json").read(list, "added_tokens", [])
    return tuple(token["id"] for token in added if token["content"] in SOUND_MARKS)


def _tower(checkpoint: Checkpoint, weights: "Weights", ops: "Ops", hidden: int) -> "AudioTower":
    """Its convolutions run over a clip padded to the longest one, and only attention hides the padding."""
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


def prompt(checkpoint: Checkpoint, max_pixels: int) -> Prompt:
    """The host half of this checkpoint."""
    return SoundPrompt(checkpoint, family="qwen2_audio")


FAMILY = Family(name="qwen2_audio", prompt=prompt, build=build, renames=RENAMES)
