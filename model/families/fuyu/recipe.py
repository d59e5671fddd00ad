"""Fuyu's networks, by the keys of a checkpoint; defaults are the published configuration classes'."""

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, text_config
from model.families.fuyu.sizes import IMAGE_TOKEN_ID, PATCH
from model.net.decoder import DecoderNames, DecoderSpec, build_decoder
from model.net.linear_weights import take_embedding
from model.net.multimodal import MultimodalLM
from model.net.patch_projection import PatchProjection
from model.net.rope import MRope, RopeSpec
from model.net.vision import PixelSpec, take_patch_linear
from model.ops.base import Ops
from model.weights import Weights

NAMES = DecoderNames(
    qkv=("self_attn.query_key_value",),
    qkv_per_head=True,
    head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    o="self_attn.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    norm="final_layernorm",
)


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose projection and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text = text_config(config)
    theta, share = _rope(text)
    spec = _decoder_spec(text, share)
    vocab, placeholder = text.count("vocab_size", 262144), config.token_id("image_token_id", IMAGE_TOKEN_ID)
    if placeholder >= vocab:
        raise CheckpointError(
            f"{config.location}: image_token_id {placeholder} has no embedding: vocab_size is {vocab}"
        )
    tied = config.read(bool, "tie_word_embeddings", False)
    shape = (vocab, spec.hidden)
    embed, head = take_embedding(ops, weights, "model.embed_tokens.weight", "lm_head.weight", shape, tied)
    rope = MRope(RopeSpec(theta=theta), head_dim=spec.head_dim, device=ops.device, dtype=ops.dtype, turned=spec.turned)
    model = MultimodalLM(
        ops=ops,
        embed=embed,
        head=head,
        rope=rope,
        decoder=build_decoder(ops, weights, spec, "model.", NAMES),
        encoders={"image": _projection(checkpoint, weights, ops, spec.hidden)},
        placeholder_ids={"image": placeholder},
    )
    weights.finish()
    return model


def _decoder_spec(text: ConfigSection, share: float) -> DecoderSpec:
    """share: of a head's dims that turn."""
    text.expect("hidden_act", ("relu2",), "relu2")
    hidden, heads = text.count("hidden_size", 4096), text.count("num_attention_heads", 64)
    head_dim = hidden // heads
    turned = int(head_dim * share)
    if hidden % heads or head_dim % 2 or turned % 2 or not 0 < turned <= head_dim:
        raise CheckpointError(
            f"{text.location}: hidden_size {hidden}, num_attention_heads {heads} and partial_rotary_factor {share} "
            "give no heads that can turn in pairs"
        )
    return DecoderSpec(
        hidden=hidden,
        inter=text.count("intermediate_size", 16384),
        layers=text.count("num_hidden_layers", 36),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        eps=text.positive("layer_norm_eps", 1e-5),
        qkv_bias=True,
        bias=True,
        norm="layer",
        head_norm=text.read(bool, "qk_layernorm", True),
        activation="relu_squared",
        turned=turned,
    )


def _rope(text: ConfigSection) -> tuple[float, float]:
    """(theta, share of a head that turns), from keys of their own (hub) or `rope_parameters` (transformers 5)."""
    rope = text.child("rope_scaling").merged(text.child("rope_parameters"))
    rope.expect("rope_type" if "rope_type" in rope else "type", ("default",), "default")
    theta = rope.positive("rope_theta", text.positive("rope_theta", 25000.0))
    return theta, rope.positive("partial_rotary_factor", text.positive("partial_rotary_factor", 0.5))


def _projection(checkpoint: Checkpoint, weights: Weights, ops: Ops, hidden: int) -> PatchProjection:
    config, pictures = checkpoint.config, checkpoint.section("image_processor")
    config.expect("num_channels", (3,), 3)
    for key in ("do_rescale", "do_normalize"):
        pictures.expect(key, (True,), True)
    pixels = PixelSpec(
        rescale=pictures.positive("rescale_factor", 1 / 255),
        mean=_per_channel(pictures, "image_mean"),
        std=_per_channel(pictures, "image_std"),
    )
    patch = config.count("patch_size", PATCH)
    shape = (hidden, patch, patch, 3)
    return PatchProjection(embed=take_patch_linear(ops, weights, "vision_embed_tokens", shape, pixels), patch=patch)


def _per_channel(pictures: ConfigSection, key: str) -> tuple[float, ...]:
    """One number for all three channels, or one for each."""
    value = pictures.read(object, key, 0.5)
    values = value if isinstance(value, list) else [value] * 3
    numbers = tuple(float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool))
    if len(values) != 3 or len(numbers) != 3:
        raise CheckpointError(f"{pictures.location}: {key!r} is {value!r}, expected a number or three")
    return numbers
