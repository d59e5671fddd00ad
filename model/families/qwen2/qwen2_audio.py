"""Qwen2-Audio: text and whole sounds of up to 30 seconds in, text out; one axis of positions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.audio_features import FeatureExtractor
from model.family import Family, Transcription
from model.media_tokens import MediaTokens, read_media_tokens
from tokenization.chat.parts import Kind
from tokenization.media.mel import CONTEXT_FRAMES
from tokenization.processor import Modality, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

if TYPE_CHECKING:
    from model.net.audio_tower import AudioTower
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


# ---- the host half


# What the published processor's class renders. It never asks the tokenizer, whose file holds a template for text alone.
TEMPLATE = (
    "{% set sounds = namespace(n=0) %}"
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if 'audio' in part or 'audio_url' in part or 'audio' in (part.type, message.type) %}"
    "{% set sounds.n = sounds.n + 1 %}"
    "{{ 'Audio %d: <|audio_bos|><|AUDIO|><|audio_eos|>\\n' % sounds.n }}"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def sound_tokens(checkpoint: Checkpoint) -> MediaTokens:
    """The placeholder under its old key or its new one; for the marks around it config.json has no keys."""
    return read_media_tokens(
        checkpoint,
        checkpoint.config,
        {"audio": (("audio_token_id", "audio_token_index"), 151646)},
        {"audio_bos_token_id": "<|audio_bos|>", "audio_eos_token_id": "<|audio_eos|>"},
    )


class Qwen2AudioProcessor(TemplateProcessor):
    """Refuses sounds longer than the encoder's positions (30 s); the published processor cuts them off silently."""

    modalities: Mapping[Kind, Modality] = {"audio": Modality()}

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels is not used. Raises CheckpointError for a damaged tokenizer, template or preprocessor config."""
        config = checkpoint.config
        tokens = sound_tokens(checkpoint)
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        self.template = ChatTemplate.from_checkpoint(checkpoint, TEMPLATE)
        audio = config.child("audio_config")
        positions = audio.count("max_source_positions", 1500)
        self.handlers = {"audio": FeatureExtractor(checkpoint, audio, positions=positions)}


# ---- the networks


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose audio tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.composition import MediaEncoders
    from model.families.qwen2.recipe import TextDefaults, build_language_model, decoder_spec

    config = checkpoint.config
    defaults = TextDefaults(
        vocab=151936, hidden=4096, inter=22016, layers=32, heads=32, kv_heads=32, eps=1e-6, theta=1e4
    )
    tower = _tower(checkpoint, weights, ops, decoder_spec(config, defaults).hidden)
    media_encoders = MediaEncoders(encoders={"audio": tower}, tokens=sound_tokens(checkpoint))
    return build_language_model(config, weights, ops, media_encoders, tied=False, defaults=defaults, mrope=False)


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


FAMILY = Family(
    name="qwen2_audio",
    models="Qwen2-Audio",
    processor=Qwen2AudioProcessor,
    build=build,
    renames=RENAMES,
    transcription=Transcription(prompt="Detect the language and recognize the speech:"),  # of its evaluation
)
