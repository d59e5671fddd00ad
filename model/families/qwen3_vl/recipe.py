"""The networks of a Qwen3-VL, by the keys of a checkpoint; defaults are the published classes'."""

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, text_config, whole
from model.composition import MediaEncoders, compose
from model.families.qwen3_vl.processor import patch_size
from model.media_tokens import vision_tokens
from model.net.decoder import DecoderSpec
from model.net.multimodal import MultimodalLM
from model.net.rope import RopeSpec, in_turns, read_sections, read_theta, read_yarn, rope_section
from model.net.rope_vit import FRAMES, RopeVitNames, RopeVitSpec, build_rope_vit
from model.net.vision import BlockNames, BlockSpec, read_pixels
from model.ops.base import Ops
from model.weights import Weights

NAMES = RopeVitNames(
    block=BlockNames(
        norm1="norm1", qkv=("attn.qkv",), proj="attn.proj", norm2="norm2", up=("mlp.linear_fc1",), down="mlp.linear_fc2"
    ),
    merger=("norm", "linear_fc1", "linear_fc2"),
)
TAPS = [8, 16, 24]
HALF = (0.5, 0.5, 0.5)  # the mean and deviation of Qwen3VLVideoProcessor
SECTIONS = (24, 20, 20)


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Take every tensor by its hub name. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    text, spec = text_config(config), _decoder_spec(config)
    tower = _tower_spec(checkpoint, spec.hidden)
    theta = read_theta(text, 5e5, ("mrope", "default", "yarn"))
    rope_section(text).expect("mrope_interleaved", (True,), True)
    media = MediaEncoders(
        encoders=build_rope_vit(ops, weights, tower, "visual.", NAMES),
        tokens=vision_tokens(checkpoint),
        deepstack=len(tower.taps),
    )
    return compose(
        ops, weights, spec, media,
        vocab=text.count("vocab_size", 151936), tied=config.read(bool, "tie_word_embeddings", False),
        rope=RopeSpec(theta=theta, rows=in_turns(read_sections(text, spec.head_dim, SECTIONS)), yarn=read_yarn(text)),
    )  # fmt: skip


def _decoder_spec(config: ConfigSection) -> DecoderSpec:
    text = text_config(config)
    text.expect("hidden_act", ("silu",), "silu")
    text.expect("attention_bias", (False,), False)
    return DecoderSpec(
        hidden=text.count("hidden_size", 4096),
        inter=text.count("intermediate_size", 22016),
        layers=text.count("num_hidden_layers", 32),
        heads=text.count("num_attention_heads", 32),
        kv_heads=text.count("num_key_value_heads", 32),
        head_dim=text.count("head_dim", 128),
        eps=text.positive("rms_norm_eps", 1e-6),
        qkv_bias=False,
        head_norm=True,
    )


def _tower_spec(checkpoint: Checkpoint, hidden: int) -> RopeVitSpec:
    vision = checkpoint.config.child("vision_config")
    vision.expect("hidden_act", ("gelu_pytorch_tanh",), "gelu_pytorch_tanh")
    vision.expect("out_hidden_size", (hidden,), 3584)
    vision.expect("in_channels", (3,), 3)
    vision.expect("temporal_patch_size", (FRAMES,), FRAMES)
    vision.child("rope_parameters").expect("rope_theta", (1e4,), 1e4)
    patches, depth = patch_size(checkpoint), vision.count("depth", 27)
    taps = [whole(tap) for tap in vision.read(list, "deepstack_visual_indexes", TAPS)]
    if len(set(taps)) < len(taps) or not all(type(i) is int and 0 <= i < depth for i in taps):
        raise CheckpointError(f"{vision.location}: deepstack_visual_indexes {taps} are not blocks of {depth}")
    pictures = checkpoint.section("image_processor")
    videos = checkpoint.section("video_processor")
    return RopeVitSpec(
        block=BlockSpec(
            width=vision.count("hidden_size", 1152),
            heads=vision.count("num_heads", 16),
            inter=vision.count("intermediate_size", 4304),
            eps=1e-6,
            activation="gelu_tanh",
        ),
        depth=depth,
        patch=patches.side,
        merge=patches.merge,
        out=hidden,
        pixels={"image": read_pixels(pictures), "video": read_pixels(videos, mean=HALF, std=HALF)},
        patch_bias=True,
        positions=vision.count("num_position_embeddings", 2304),
        taps=tuple(taps),
    )
