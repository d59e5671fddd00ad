"""The line's networks, by the keys of a checkpoint; defaults are the published configuration classes'."""

from collections.abc import Callable
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, whole
from model.composition import MediaEncoders, compose
from model.families.llava.sizes import picture_tokens, pictures_of, shows_class, vision_config
from model.net.absolute_vit import AbsoluteVit, AbsoluteVitNames, AbsoluteVitSpec, build_absolute_vit
from model.net.decoder import DecoderSpec
from model.net.mlp import Mlp, MlpSpec, take_mlp
from model.net.multimodal import MultimodalLM
from model.net.norm import take_norm
from model.net.rope import RopeSpec, read_theta
from model.net.vision import BlockNames, BlockSpec, read_pixels
from model.ops.base import Ops
from model.weights import Weights

TOWER = "vision_tower."
NAMES = AbsoluteVitNames(
    patch="embeddings.patch_embedding.weight",
    positions="embeddings.position_embedding.weight",
    class_token="embeddings.class_embedding",
    norm="pre_layrnorm",  # so it is spelled on disk
    blocks="encoder.layers",
    block=BlockNames(
        norm1="layer_norm1",
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        proj="self_attn.out_proj",
        norm2="layer_norm2",
        up=("mlp.fc1",),
        down="mlp.fc2",
    ),
)

VIP_FEATURES = (-2, -5, -8, -11, 6)  # outputs of the tower, as published


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What of the tower the decoder sees, and through what."""

    features: tuple[int, ...]  # after how many blocks each is taken
    projector: Callable[[ConfigSection, Weights, Ops, int, int], Mlp]  # of their width, to that of the decoder


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """LLaVA-1.5: the output of one block. Raises CheckpointError as `_build` does."""
    config = checkpoint.config
    features = (_block(config, config.read(int, "vision_feature_layer", -2)),)
    return _build(checkpoint, weights, ops, Between(features=features, projector=_projector))


def build_vip(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """ViP-LLaVA: the outputs of several blocks, normed together. Raises CheckpointError as `_build` does."""
    config = checkpoint.config
    features = _vip_features(config)
    width = len(VIP_FEATURES) * vision_config(config).count("hidden_size")
    # A directory of the hub names one block, beside weights that take those of the published code.
    if len(features) == 1 and weights.shape_of("multi_modal_projector.projector_layernorm.weight") == (width,):
        weights.warn(f"{config.location} names one block of the tower, the weights take several: {VIP_FEATURES}")
        features = tuple(_block(config, layer) for layer in VIP_FEATURES)
    return _build(checkpoint, weights, ops, Between(features=features, projector=_normed_projector))


def _build(checkpoint: Checkpoint, weights: Weights, ops: Ops, between: Between) -> MultimodalLM:
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text = config.child("text_config")
    spec, tokens = _decoder_spec(text), picture_tokens(checkpoint)
    media = MediaEncoders(encoders={"image": _tower(checkpoint, weights, ops, spec.hidden, between)}, tokens=tokens)
    vocab, theta = text.count("vocab_size", 32000), read_theta(text, 1e4)
    tied = any(section.read(bool, "tie_word_embeddings", False) for section in (config, text))
    return compose(ops, weights, spec, media, vocab=vocab, tied=tied, rope=RopeSpec(theta=theta))


def _decoder_spec(text: ConfigSection) -> DecoderSpec:
    text.expect("model_type", ("llama",), "llama")
    text.expect("hidden_act", ("silu",), "silu")
    for key in ("attention_bias", "mlp_bias"):
        text.expect(key, (False,), False)
    hidden = text.count("hidden_size", 4096)
    heads = text.count("num_attention_heads", 32)
    return DecoderSpec(
        hidden=hidden,
        inter=text.count("intermediate_size", 11008),
        layers=text.count("num_hidden_layers", 32),
        heads=heads,
        kv_heads=text.count("num_key_value_heads", heads),
        head_dim=text.count("head_dim", hidden // heads),
        eps=text.positive("rms_norm_eps", 1e-6),
        qkv_bias=False,
    )


def _tower(checkpoint: Checkpoint, weights: Weights, ops: Ops, hidden: int, between: Between) -> AbsoluteVit:
    """Without the blocks after the last one whose output is taken, and without the norm after the last."""
    config, pictures = checkpoint.config, pictures_of(checkpoint.config)
    vision = vision_config(config)
    vision.expect("hidden_act", ("quick_gelu",), "quick_gelu")
    width, depth = vision.count("hidden_size"), vision.count("num_hidden_layers")
    n_blocks = max(between.features)
    spec = AbsoluteVitSpec(
        block=BlockSpec(
            width=width,
            heads=vision.count("num_attention_heads"),
            inter=vision.count("intermediate_size"),
            eps=vision.positive("layer_norm_eps", 1e-5),
            activation="quick_gelu",
        ),
        depth=n_blocks,
        patch=pictures.patch,
        side=pictures.side,
        positions=pictures.side**2,
        pixels=read_pixels(checkpoint.section("image_processor")),
        features=between.features,
        shows_class=shows_class(config),
    )
    projector = between.projector(config, weights, ops, len(between.features) * width, hidden)
    tower = build_absolute_vit(ops, weights, spec, TOWER, projector, NAMES)
    for unused in (*(f"{NAMES.blocks}.{i}." for i in range(n_blocks, depth)), "post_layernorm."):
        weights.drop_under(TOWER + unused)
    return tower


def _vip_features(config: ConfigSection) -> tuple[int, ...]:
    """The hub's directories have the key's older name, which wins in transformers, too; a number is a list of one."""
    key = "vision_feature_layers" if "vision_feature_layers" in config else "vision_feature_layer"
    found = config.read(object, key, list(VIP_FEATURES))
    layers = [whole(one) for one in found] if isinstance(found, list) else [whole(found)]
    if not layers or not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"{config.location}: {key!r} is {found!r}, expected a list of numbers")
    return tuple(_block(config, layer, key) for layer in layers)


def _block(config: ConfigSection, layer: int, key: str = "vision_feature_layer") -> int:
    """How many blocks the tower's output `layer` has gone through: -2 all but the last."""
    depth = vision_config(config).count("num_hidden_layers")
    n = layer if layer >= 0 else depth + 1 + layer
    if not 1 <= n <= depth:
        raise CheckpointError(f"{config.location}: {key} {layer} is no output of {depth} blocks")
    return n


def _projector(config: ConfigSection, weights: Weights, ops: Ops, width: int, hidden: int) -> Mlp:
    bias = config.read(bool, "multimodal_projector_bias", True)
    return _two_linears(config, weights, ops, width, hidden, bias)


def _normed_projector(config: ConfigSection, weights: Weights, ops: Ops, width: int, hidden: int) -> Mlp:
    eps = config.positive("projector_layernorm_eps", 1e-5)
    norm = take_norm(ops, weights, "layer", "multi_modal_projector.projector_layernorm", width, eps)
    linears = _two_linears(config, weights, ops, width, hidden, True)
    return lambda x: linears(norm(x))


def _two_linears(config: ConfigSection, weights: Weights, ops: Ops, width: int, hidden: int, bias: bool) -> Mlp:
    config.expect("projector_hidden_act", ("gelu",), "gelu")
    spec = MlpSpec(width=width, inter=hidden, out=hidden, activation="gelu", bias=bias)
    return take_mlp(ops, weights, ["multi_modal_projector.linear_1"], "multi_modal_projector.linear_2", spec)
