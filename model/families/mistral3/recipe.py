"""Mistral Small 3.1's networks, by the keys of a checkpoint; defaults are the published configuration classes'."""

from configs.checkpoint import Checkpoint, ConfigSection
from model.composition import MediaEncoders, compose
from model.families.mistral3.sizes import picture_tokens, pictures_of, text_section, vision_section
from model.net.decoder import DecoderSpec
from model.net.linear import take_linear
from model.net.multimodal import MultimodalLM
from model.net.norm import take_rms_norm
from model.net.rope import read_theta
from model.net.rope_vit import RopeVit, RopeVitNames, RopeVitSpec, build_still_vit
from model.net.vision import Mlp, read_pixels
from model.ops.base import Linear, Ops
from model.weights import Weights

TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
NAMES = RopeVitNames(
    patch="patch_conv.weight",
    first_norm="ln_pre",
    blocks="transformer.layers",
    norm1="attention_norm",
    proj="attention.o_proj",
    norm2="ffn_norm",
    mlp="feed_forward",
)


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text = text_section(config)
    spec, tokens = _decoder_spec(text), picture_tokens(checkpoint)
    media = MediaEncoders(encoders={"image": _tower(checkpoint, weights, ops, spec)}, tokens=tokens)
    vocab, theta = text.count("vocab_size"), read_theta(text, text.positive("rope_theta"))
    tied = config.read(bool, "tie_word_embeddings", True)
    return compose(ops, weights, spec, media, vocab=vocab, tied=tied, theta=theta)


def _decoder_spec(text: ConfigSection) -> DecoderSpec:
    text.expect("model_type", ("mistral",), "mistral")
    text.expect("hidden_act", ("silu",), "silu")
    text.expect("sliding_window", (None,), None)
    hidden, heads = text.count("hidden_size"), text.count("num_attention_heads")
    return DecoderSpec(
        hidden=hidden,
        inter=text.count("intermediate_size"),
        layers=text.count("num_hidden_layers"),
        heads=heads,
        kv_heads=text.count("num_key_value_heads"),
        head_dim=text.count("head_dim", hidden // heads),
        eps=text.positive("rms_norm_eps"),
        qkv_bias=False,
    )


def _tower(checkpoint: Checkpoint, weights: Weights, ops: Ops, decoder: DecoderSpec) -> RopeVit:
    config, pictures = checkpoint.config, pictures_of(checkpoint)
    vision = vision_section(config)
    vision.expect("hidden_act", ("silu", "gelu"), "gelu")
    config.expect("vision_feature_layer", (-1,), -1)
    width, heads = vision.count("hidden_size"), vision.count("num_attention_heads")
    vision.expect("head_dim", (width // heads,), width // heads)
    spec = RopeVitSpec(
        width=width,
        depth=vision.count("num_hidden_layers"),
        heads=heads,
        inter=vision.count("intermediate_size"),
        patch=pictures.patch,
        merge=pictures.merge,
        out=decoder.hidden,
        pixels={"image": read_pixels(checkpoint.section("image_processor"))},
        blocks="gated",
        gate="silu" if vision.read(str, "hidden_act", "gelu") == "silu" else "gelu",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        bias=False,
        eps=1e-5,
        theta=read_theta(vision, 1e4, ("axial", "default")),
        apart=True,
    )
    for table in ("inv_freq", "original_inv_freq"):  # which some saves hold, and the tower makes itself
        weights.drop(f"{TOWER}patch_positional_embedding.{table}")
    norm = take_rms_norm(ops, weights, f"{PROJECTOR}norm", width, decoder.eps)
    merger = _merger(config, weights, ops, spec)
    return build_still_vit(ops, weights, spec, TOWER, NAMES, norm, merger)


def _merger(config: ConfigSection, weights: Weights, ops: Ops, spec: RopeVitSpec) -> Mlp:
    """[tokens, merge^2 * width] -> [tokens, hidden]"""
    config.expect("projector_hidden_act", ("gelu",), "gelu")
    bias = config.read(bool, "multimodal_projector_bias", False)
    merging = _merging_layer(weights, ops, spec)
    first = take_linear(ops, weights, f"{PROJECTOR}linear_1", spec.out, spec.width, bias=bias)
    second = take_linear(ops, weights, f"{PROJECTOR}linear_2", spec.out, spec.out, bias=bias)
    return lambda x: second(ops.gelu(first(merging(x))))


def _merging_layer(weights: Weights, ops: Ops, spec: RopeVitSpec) -> Linear:
    """On disk its columns are (channel, patch of the token); the rows of a token's patches lie one after another."""
    n = spec.merge**2
    name = f"{PROJECTOR}patch_merger.merging_layer.weight"
    matrix = weights.take(name, (spec.width, spec.width * n))
    return ops.linear(matrix.view(spec.width, spec.width, n).transpose(1, 2).flatten(1))
