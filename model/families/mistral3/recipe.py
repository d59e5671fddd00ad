"""Mistral Small 3.1's networks, by the keys of a checkpoint; defaults are the published configuration classes'."""

from configs.checkpoint import Checkpoint, ConfigSection
from model.composition import MediaEncoders, compose
from model.families.mistral3.sizes import picture_tokens, pictures_of, text_section, vision_section
from model.net.decoder import DecoderSpec
from model.net.mlp import Mlp, MlpSpec, take_mlp
from model.net.multimodal import MultimodalLM
from model.net.norm import take_norm
from model.net.rope import RopeSpec, read_theta
from model.net.rope_vit import RopeVit, RopeVitNames, RopeVitSpec, build_still_vit
from model.net.vision import BlockNames, BlockSpec, read_pixels
from model.ops.base import Linear, Ops
from model.weights import Weights

TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
NAMES = RopeVitNames(
    patch="patch_conv",
    first_norm="ln_pre",
    blocks="transformer.layers",
    block=BlockNames(
        norm1="attention_norm",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        proj="attention.o_proj",
        norm2="ffn_norm",
        up=("feed_forward.gate_proj", "feed_forward.up_proj"),
        down="feed_forward.down_proj",
    ),
)


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text = text_section(config)
    spec, tokens = _decoder_spec(text), picture_tokens(checkpoint)
    media = MediaEncoders(encoders={"image": _tower(checkpoint, weights, ops, spec)}, tokens=tokens)
    vocab, theta = text.count("vocab_size"), read_theta(text, text.positive("rope_theta"))
    tied = config.read(bool, "tie_word_embeddings", True)
    return compose(ops, weights, spec, media, vocab=vocab, tied=tied, rope=RopeSpec(theta=theta))


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
        block=BlockSpec(
            width=width,
            heads=heads,
            inter=vision.count("intermediate_size"),
            eps=1e-5,
            activation="swiglu" if vision.read(str, "hidden_act", "gelu") == "silu" else "geglu",
            norm="rms",
            bias=False,
        ),
        depth=vision.count("num_hidden_layers"),
        patch=pictures.patch,
        merge=pictures.merge,
        out=decoder.hidden,
        pixels={"image": read_pixels(checkpoint.section("image_processor"))},
        theta=read_theta(vision, 1e4, ("axial", "default")),
        apart=True,
    )
    for table in ("inv_freq", "original_inv_freq"):  # which some saves hold, and the tower makes itself
        weights.drop(f"{TOWER}patch_positional_embedding.{table}")
    norm = take_norm(ops, weights, "rms", f"{PROJECTOR}norm", width, decoder.eps)
    merger = _merger(config, weights, ops, spec)
    return build_still_vit(ops, weights, spec, TOWER, NAMES, norm, merger)


def _merger(config: ConfigSection, weights: Weights, ops: Ops, spec: RopeVitSpec) -> Mlp:
    """[tokens, merge^2 * width] -> [tokens, hidden]"""
    config.expect("projector_hidden_act", ("gelu",), "gelu")
    bias = config.read(bool, "multimodal_projector_bias", False)
    merging = _merging_layer(weights, ops, spec)
    two = MlpSpec(width=spec.block.width, inter=spec.out, out=spec.out, activation="gelu", bias=bias)
    projector = take_mlp(ops, weights, [f"{PROJECTOR}linear_1"], f"{PROJECTOR}linear_2", two)
    return lambda x: projector(merging(x))


def _merging_layer(weights: Weights, ops: Ops, spec: RopeVitSpec) -> Linear:
    """On disk its columns are (channel, patch of the token); the rows of a token's patches lie one after another."""
    n, width = spec.merge**2, spec.block.width
    name = f"{PROJECTOR}patch_merger.merging_layer.weight"
    matrix = weights.take(name, (width, width * n))
    return ops.linear(matrix.view(width, width, n).transpose(1, 2).flatten(1))
