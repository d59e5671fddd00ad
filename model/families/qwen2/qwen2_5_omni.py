"""Qwen2.5-Omni's thinker: reads, sees and hears, and answers in text; what speaks is not served."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint, CheckpointError, Facts
from model.families.qwen2.omni_processor import OmniPrompt, omni_marks, omni_pads, thinker_facts
from model.family import Family
from tokenization.processor import Prompt

if TYPE_CHECKING:
    from model.net.audio_tower import AudioTower
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose both towers and the decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen2.recipe import (
        Senses,
        TextDefaults,
        build_qwen_lm,
        decoder_spec,
        pixel_spec,
        windowed_tower,
    )
    from model.net.rope_vit import build_qwen_vit

    config = thinker_facts(checkpoint)
    defaults = TextDefaults(hidden=3584, inter=18944, layers=28, heads=28, kv_heads=4, eps=1e-6)
    hidden = decoder_spec(config, defaults).hidden
    eyes = windowed_tower(config, pixel_spec(checkpoint), hidden, ("attn.q", "attn.k", "attn.v"))
    ears = _audio_tower(config, weights, ops, hidden)
    senses = Senses(
        encoders={**build_qwen_vit(ops, weights, eyes, "visual."), "audio": ears},
        pads=omni_pads(config),
        marks=omni_marks(config),
    )
    # What the text keys say of tying is their class's default, which does not hold here.
    tied = config.read(bool, "tie_word_embeddings", False)
    return build_qwen_lm(config, weights, ops, senses, tied=tied, defaults=defaults)


def _audio_tower(config: Facts, weights: "Weights", ops: "Ops", hidden: int) -> "AudioTower":
    from model.families.qwen2.recipe import audio_spec
    from model.net.audio_tower import AudioTowerNames, build_audio_tower

    audio = config.child("audio_config")
    audio.expect("output_dim", (hidden,), 3584)
    window = audio.read(int, "n_window", 100)
    spec = audio_spec(audio, hidden, chunk=2 * window, context=0)
    if not 1 <= window <= spec.positions:
        raise CheckpointError(f"{audio.where}: n_window {window} does not lie in 1 to {spec.positions} positions")
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


def prompt(checkpoint: Checkpoint, max_pixels: int) -> Prompt:
    """The host half of this checkpoint; `max_pixels` is the server's cap on one image."""
    return OmniPrompt(checkpoint, max_pixels, family="qwen2_5_omni")


FAMILY = Family(
    name="qwen2_5_omni", prompt=prompt, build=build, renames=RENAMES, skips=SKIPS, facts=thinker_facts
)  # fmt: skip
