"""LLaVA-1.5's networks, by the keys of a checkpoint; defaults are the published configuration classes'."""

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.families.llava.sizes import picture_marks, pictures_of, shows_class, vision_config
from model.net.absolute_vit import AbsoluteVit, AbsoluteVitNames, AbsoluteVitSpec, build_absolute_vit
from model.net.decoder import DecoderSpec, build_decoder
from model.net.linear import take_embedding, take_linear
from model.net.multimodal import MultimodalLM
from model.net.rope import MRope, read_theta
from model.net.vision import Mlp, read_pixels
from model.ops.base import Ops
from model.weights import Weights

TOWER = "vision_tower."
NAMES = AbsoluteVitNames(
    patch="embeddings.patch_embedding.weight",
    positions="embeddings.position_embedding.weight",
    class_token="embeddings.class_embedding",
    norm="pre_layrnorm",  # so it is spelled on disk
    blocks="encoder.layers",
    norm1="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    proj="self_attn.out_proj",
    norm2="layer_norm2",
    first="mlp.fc1",
    second="mlp.fc2",
)


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text = config.child("text_config")
    spec, marks = _decoder_spec(text), picture_marks(checkpoint)
    vocab = text.read(int, "vocab_size", 32000)
    pad = marks.pads["image"]
    if pad >= vocab:
        raise CheckpointError(f"{marks.said[pad]} is {pad}, for which vocab_size {vocab} leaves no embedding")
    tied = any(section.read(bool, "tie_word_embeddings", False) for section in (config, text))
    shape = (vocab, spec.hidden)
    embed, head = take_embedding(ops, weights, "model.embed_tokens.weight", "lm_head.weight", shape, tied)
    sections = (spec.head_dim // 2,)
    theta = read_theta(text, 1e4)
    model = MultimodalLM(
        ops=ops,
        embed=embed,
        head=head,
        rope=MRope(head_dim=spec.head_dim, theta=theta, sections=sections, device=ops.device, dtype=ops.dtype),
        decoder=build_decoder(ops, weights, spec, "model."),
        encoders={"image": _tower(checkpoint, weights, ops, spec.hidden)},
        pad_ids={"image": pad},
        media_token_ids=frozenset(marks.ids),
    )
    weights.finish()
    return model


def _decoder_spec(text: ConfigSection) -> DecoderSpec:
    text.expect("model_type", ("llama",), "llama")
    text.expect("hidden_act", ("silu",), "silu")
    for key in ("attention_bias", "mlp_bias"):
        text.expect(key, (False,), False)
    hidden = text.read(int, "hidden_size", 4096)
    heads = text.read(int, "num_attention_heads", 32)
    return DecoderSpec(
        hidden=hidden,
        inter=text.read(int, "intermediate_size", 11008),
        layers=text.read(int, "num_hidden_layers", 32),
        heads=heads,
        kv_heads=text.read(int, "num_key_value_heads", heads),
        head_dim=text.read(int, "head_dim", hidden // heads),
        eps=text.read(float, "rms_norm_eps", 1e-6),
        qkv_bias=False,
    )


def _tower(checkpoint: Checkpoint, weights: Weights, ops: Ops, hidden: int) -> AbsoluteVit:
    """Without the blocks after the one whose output is taken, and without the norm after the last."""
    config, pictures = checkpoint.config, pictures_of(checkpoint.config)
    vision = vision_config(config)
    vision.expect("hidden_act", ("quick_gelu",), "quick_gelu")
    width, depth = vision.read(int, "hidden_size"), vision.read(int, "num_hidden_layers")
    n_blocks = _n_blocks(config, depth)
    spec = AbsoluteVitSpec(
        width=width,
        depth=n_blocks,
        heads=vision.read(int, "num_attention_heads"),
        inter=vision.read(int, "intermediate_size"),
        patch=pictures.patch,
        side=pictures.side,
        positions=pictures.side**2,
        eps=vision.read(float, "layer_norm_eps", 1e-5),
        pixels=read_pixels(checkpoint.section("image_processor")),
        activation="quick_gelu",
        shows_class=shows_class(config),
    )
    tower = build_absolute_vit(ops, weights, spec, TOWER, _projector(config, weights, ops, width, hidden), NAMES)
    for unused in (*(f"{NAMES.blocks}.{i}." for i in range(n_blocks, depth)), "post_layernorm."):
        weights.drop_under(TOWER + unused)
    return tower


def _n_blocks(config: ConfigSection, depth: int) -> int:
    """How many blocks the tower's output has gone through: of -2 all but the last."""
    layer = config.read(int, "vision_feature_layer", -2)
    n = layer if layer >= 0 else depth + 1 + layer
    if not 1 <= n <= depth:
        raise CheckpointError(f"{config.location}: vision_feature_layer {layer} is no output of {depth} blocks")
    return n


def _projector(config: ConfigSection, weights: Weights, ops: Ops, width: int, hidden: int) -> Mlp:
    config.expect("projector_hidden_act", ("gelu",), "gelu")
    bias = config.read(bool, "multimodal_projector_bias", True)
    first = take_linear(ops, weights, "multi_modal_projector.linear_1", hidden, width, bias=bias)
    second = take_linear(ops, weights, "multi_modal_projector.linear_2", hidden, hidden, bias=bias)
    return lambda x: second(ops.gelu(first(x)))
