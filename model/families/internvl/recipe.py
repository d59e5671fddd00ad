"""The networks of an InternVL, by the keys of a checkpoint; defaults are the published configuration classes'."""

from dataclasses import replace

from configs.checkpoint import Checkpoint, ConfigSection
from model.composition import MediaEncoders, compose
from model.families.internvl.sizes import MERGE, as_published, picture_tokens, text_section, tile_of, vision_section
from model.net.absolute_vit import AbsoluteVit, AbsoluteVitNames, AbsoluteVitSpec, build_absolute_vit
from model.net.decoder import DecoderSpec
from model.net.mlp import Mlp, MlpSpec, take_mlp
from model.net.multimodal import MultimodalLM
from model.net.norm import take_norm
from model.net.rope import RopeSpec, read_theta
from model.net.vision import BlockNames, BlockSpec, PixelSpec, read_pixels
from model.ops.base import Ops
from model.weights import Weights

TOWER, PROJECTOR = "vision_tower.", "multi_modal_projector."
PUBLISHED_NAMES = AbsoluteVitNames(
    patch="embeddings.patch_embedding.weight",
    patch_bias="embeddings.patch_embedding.bias",
    positions="embeddings.position_embedding",
    class_token="embeddings.class_embedding",
    batched=True,
    norm=None,
    blocks="encoder.layers",
    block=BlockNames(
        norm1="norm1",
        qkv=("attn.qkv",),
        proj="attn.proj",
        norm2="norm2",
        up=("mlp.fc1",),
        down="mlp.fc2",
        whole_norms=("attn.q_norm", "attn.k_norm"),
        scales=("ls1", "ls2"),
    ),
)
NAMES = AbsoluteVitNames(
    patch="embeddings.patch_embeddings.projection.weight",
    patch_bias="embeddings.patch_embeddings.projection.bias",
    positions="embeddings.position_embeddings",
    class_token="embeddings.cls_token",
    batched=True,
    norm=None,
    blocks="encoder.layer",
    block=BlockNames(
        norm1="layernorm_before",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        proj="attention.projection_layer",
        norm2="layernorm_after",
        up=("mlp.fc1",),
        down="mlp.fc2",
        whole_norms=("attention.q_norm", "attention.k_norm"),
        scales=("lambda_1", "lambda_2"),
    ),
)
# Of the published code, which reads no file for it.
PUBLISHED_PIXELS = PixelSpec(rescale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config, text = checkpoint.config, text_section(checkpoint)
    published, spec = as_published(checkpoint), _decoder_spec(text)
    tower = _tower(checkpoint, weights, ops, spec.hidden)
    videos = tower if published else replace(tower, embed=tower.embed.of(_of_videos(checkpoint)))
    media = MediaEncoders(encoders={"image": tower, "video": videos}, tokens=picture_tokens(checkpoint))
    vocab, theta = text.count("vocab_size"), read_theta(text, 1e4, ("default", "dynamic"))
    tied = (text if published else config).read(bool, "tie_word_embeddings", not published)
    return compose(ops, weights, spec, media, vocab=vocab, tied=tied, rope=RopeSpec(theta=theta))


def _decoder_spec(text: ConfigSection) -> DecoderSpec:
    text.expect("hidden_act", ("silu",), "silu")
    text.expect("use_sliding_window", (False,), False)
    hidden, heads = text.count("hidden_size"), text.count("num_attention_heads")
    return DecoderSpec(
        hidden=hidden,
        inter=text.count("intermediate_size"),
        layers=text.count("num_hidden_layers"),
        heads=heads,
        kv_heads=text.count("num_key_value_heads"),
        head_dim=text.count("head_dim", hidden // heads),
        eps=text.positive("rms_norm_eps"),
        qkv_bias=True,
    )


def _tower(checkpoint: Checkpoint, weights: Weights, ops: Ops, hidden: int) -> AbsoluteVit:
    vision, tile, published = vision_section(checkpoint), tile_of(checkpoint), as_published(checkpoint)
    vision.expect("hidden_act", ("gelu",), "gelu")
    vision.expect("num_channels", (3,), 3)
    width, depth = vision.count("hidden_size"), vision.count("num_hidden_layers")
    spec = AbsoluteVitSpec(
        block=_block(vision, published),
        depth=depth,
        patch=tile.patch,
        side=tile.side,
        positions=tile.side**2,
        pixels=PUBLISHED_PIXELS if published else read_pixels(checkpoint.section("image_processor")),
        merge=MERGE,
    )
    if not published:
        config = checkpoint.config
        vision.expect("use_mask_token", (False,), False)
        vision.expect("use_mean_pooling", (True,), True)  # else there is a norm behind the last block
        vision.expect("use_absolute_position_embeddings", (True,), True)
        config.expect("vision_feature_layer", (-1,), -1)
        config.expect("vision_feature_select_strategy", ("default",), "default")
        config.expect("projector_hidden_act", ("gelu",), "gelu")
    connector = _connector(weights, ops, width, hidden, ("0", "1", "3") if published else None)
    return build_absolute_vit(ops, weights, spec, TOWER, connector, PUBLISHED_NAMES if published else NAMES)


def _block(vision: ConfigSection, published: bool) -> BlockSpec:
    """One `model_type` has two towers: they differ by these keys alone."""
    vision.expect("norm_type", ("layer_norm", "rms_norm"))
    kind, eps = vision.read(str, "norm_type"), vision.positive("layer_norm_eps")
    normed = vision.read(bool, "qk_normalization") if published else vision.read(bool, "use_qk_norm", False)
    biased = vision.read(bool, "qkv_bias") if published else vision.read(bool, "attention_bias", False)
    return BlockSpec(
        width=vision.count("hidden_size"),
        heads=vision.count("num_attention_heads"),
        inter=vision.count("intermediate_size"),
        eps=eps,
        activation="gelu",
        norm="rms" if kind == "rms_norm" else "layer",
        qkv_bias=biased,
        whole_norm_eps=(eps if published else 1e-6) if normed else None,
    )


def _connector(weights: Weights, ops: Ops, width: int, hidden: int, names: tuple[str, str, str] | None) -> Mlp:
    """[patches, width] in blocks of one token each -> [tokens, hidden]. The norm's epsilon is LayerNorm's own."""
    first, up, down = (PROJECTOR + name for name in names or ("layer_norm", "linear_1", "linear_2"))
    wide = MERGE**2 * width
    norm = take_norm(ops, weights, "layer", first, wide, 1e-5)
    spec = MlpSpec(width=wide, inter=hidden, out=hidden, activation="gelu", bias=True)
    mlp = take_mlp(ops, weights, [up], down, spec)
    return lambda x: mlp(norm(x.reshape(-1, wide)))


def _of_videos(checkpoint: Checkpoint) -> PixelSpec:
    """Frames are normalised as pictures are where no file speaks of videos."""
    return read_pixels(checkpoint.section("video_processor") or checkpoint.section("image_processor"))
