"""The Qwen2 decoder with encoders for media, by the keys of a checkpoint; defaults are the published classes'."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, text_config, whole
from model.composition import MediaEncoders, compose
from model.net.audio_tower import AudioTowerSpec
from model.net.decoder import DecoderSpec
from model.net.multimodal import MultimodalLM
from model.net.rope import RopeSpec, in_blocks, read_sections, read_theta, read_yarn
from model.net.rope_vit import FRAMES, RopeVitNames, RopeVitSpec
from model.net.vision import BlockNames, BlockSpec, PixelSpec, read_pixels
from model.ops.base import Ops
from model.weights import Weights
from tokenization.chat.parts import Kind

FULL_BLOCKS = [7, 15, 23, 31]  # of the tower with windows
_PLAIN = BlockNames(norm1="norm1", qkv=("attn.qkv",), proj="attn.proj", norm2="norm2", up=("mlp.fc1",), down="mlp.fc2")
_GATED = replace(_PLAIN, up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")
PLAIN_NAMES, GATED_NAMES = RopeVitNames(block=_PLAIN), RopeVitNames(block=_GATED)
SPLIT_NAMES = RopeVitNames(block=replace(_GATED, qkv=("attn.q", "attn.k", "attn.v")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDefaults:
    """The published class's values for keys that a configuration leaves out."""

    vocab: int = 152064
    hidden: int = 8192
    inter: int = 29568
    layers: int = 80
    heads: int = 64
    kv_heads: int = 8
    eps: float = 1e-5
    theta: float = 1e6


VISION_TEXT = TextDefaults()


def build_language_model(
    config: ConfigSection,
    weights: Weights,
    ops: Ops,
    media_encoders: MediaEncoders,
    *,
    tied: bool,
    defaults: TextDefaults = VISION_TEXT,
    mrope: bool = True,
) -> MultimodalLM:
    """Take every tensor by its hub name; config: the keys around `text_config`. Raises CheckpointError."""
    text, spec = text_config(config), decoder_spec(config, defaults)
    theta = read_theta(text, defaults.theta, ("mrope", "default", "yarn") if mrope else ("default",))
    rows = in_blocks(read_sections(text, spec.head_dim)) if mrope else None
    rope = RopeSpec(theta=theta, rows=rows, yarn=read_yarn(text))
    vocab = text.count("vocab_size", defaults.vocab)
    return compose(ops, weights, spec, media_encoders, vocab=vocab, tied=tied, rope=rope)


def decoder_spec(config: ConfigSection, defaults: TextDefaults = VISION_TEXT) -> DecoderSpec:
    text = text_config(config)
    text.expect("hidden_act", ("silu",), "silu")
    text.expect("use_sliding_window", (False,), False)
    hidden = text.count("hidden_size", defaults.hidden)
    heads = text.count("num_attention_heads", defaults.heads)
    return DecoderSpec(
        hidden=hidden,
        inter=text.count("intermediate_size", defaults.inter),
        layers=text.count("num_hidden_layers", defaults.layers),
        heads=heads,
        kv_heads=text.count("num_key_value_heads", defaults.kv_heads),
        head_dim=hidden // heads,
        eps=text.positive("rms_norm_eps", defaults.eps),
        qkv_bias=True,
    )


def tied_anywhere(config: ConfigSection) -> bool:
    """Old files may say it in either place."""
    key = "tie_word_embeddings"
    return config.read(bool, key, False) or text_config(config).read(bool, key, False)


def vision_config(config: ConfigSection) -> ConfigSection:
    """The tower's keys, after the values that all towers of the line share have been checked."""
    vision = config.child("vision_config")
    for key in ("in_chans", "in_channels"):
        vision.expect(key, (3,), 3)
    vision.expect("temporal_patch_size", (FRAMES,), FRAMES)
    vision.child("rope_parameters").expect("rope_theta", (1e4,), 1e4)
    return vision


def windowed_tower(config: ConfigSection, pixels: Mapping[Kind, PixelSpec], hidden: int) -> RopeVitSpec:
    """Gated blocks, most of which see windows."""
    vision = vision_config(config)
    vision.expect("hidden_act", ("silu",), "silu")
    vision.expect("out_hidden_size", (hidden,), 3584)
    patch, merge = vision.count("patch_size", 14), vision.count("spatial_merge_size", 2)
    window, depth = vision.count("window_size", 112), vision.count("depth", 32)
    full = [whole(block) for block in vision.read(list, "fullatt_block_indexes", FULL_BLOCKS)]
    if window < patch * merge:
        raise CheckpointError(f"{vision.location}: window_size {window} is less than a token of {patch * merge} pixels")
    if not all(isinstance(i, int) and 0 <= i < depth for i in full):
        raise CheckpointError(f"{vision.location}: fullatt_block_indexes {full} are not blocks of {depth}")
    return RopeVitSpec(
        block=BlockSpec(
            width=vision.count("hidden_size", 3584),
            heads=vision.count("num_heads", 16),
            inter=vision.count("intermediate_size", 3420),
            eps=1e-6,
            activation="swiglu",
            norm="rms",
        ),
        depth=depth,
        patch=patch,
        merge=merge,
        out=hidden,
        pixels=pixels,
        window=window // patch // merge,
        full_blocks=frozenset(full),
    )


def audio_spec(audio: ConfigSection, hidden: int, *, chunk: int | None, context: int) -> AudioTowerSpec:
    audio.expect("activation_function", ("gelu",), "gelu")
    return AudioTowerSpec(
        mels=audio.count("num_mel_bins", 128),
        block=BlockSpec(
            width=audio.count("d_model", 1280),
            heads=audio.count("encoder_attention_heads", 20),
            inter=audio.count("encoder_ffn_dim", 5120),
            eps=1e-5,
            activation="gelu",
        ),
        depth=audio.count("encoder_layers", 32),
        out=hidden,
        positions=audio.count("max_source_positions", 1500),
        chunk=chunk,
        context=context,
    )


def pixel_specs(checkpoint: Checkpoint) -> dict[Kind, PixelSpec]:
    """How raw pixels are normalised: of videos as of pictures where no file speaks of videos."""
    pictures = checkpoint.section("image_processor")
    videos = checkpoint.section("video_processor") or pictures
    return {"image": read_pixels(pictures), "video": read_pixels(videos)}
