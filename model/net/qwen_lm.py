"""The second Qwen language model with 3-axis positions, read from a checkpoint's files around a vision tower.

Defaults are those of the published configuration and processor classes. Knows no tower's own keys and no request.
"""

from configs.checkpoint import Checkpoint, CheckpointError, Facts
from model.net.decoder import DecoderSpec, build_decoder
from model.net.linear import take_embedding
from model.net.multimodal import MultimodalLM
from model.net.qwen_vit import FRAMES, QwenVitSpec, build_qwen_vit
from model.net.rope import MRope
from model.net.vision import PixelSpec
from model.ops.base import Ops
from model.weights import Weights
from tokenization.qwen_prompt import mark_ids, pad_ids

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]


def build_qwen_lm(checkpoint: Checkpoint, weights: Weights, ops: Ops, tower: QwenVitSpec) -> MultimodalLM:
    """Take every tensor by its name on the hub. Raises CheckpointError for what does not fit."""
    text, spec = text_facts(checkpoint), decoder_spec(checkpoint)
    theta, sections = _rope(text, spec.head_dim)
    shape = (text.read(int, "vocab_size", 152064), spec.hidden)
    tied = checkpoint.config.read(bool, "tie_word_embeddings", False) or text.read(bool, "tie_word_embeddings", False)
    embed, head = take_embedding(ops, weights, "model.embed_tokens.weight", "lm_head.weight", shape, tied)
    model = MultimodalLM(
        ops=ops,
        embed=embed,
        head=head,
        rope=MRope(head_dim=spec.head_dim, theta=theta, sections=sections, device=ops.device, dtype=ops.dtype),
        decoder=build_decoder(ops, weights, spec, "model."),
        encoders=build_qwen_vit(ops, weights, tower, "visual."),
        pad_ids={str(kind): pad for kind, pad in pad_ids(checkpoint.config).items()},
        placeholder_ids=frozenset(mark_ids(checkpoint.config)),
    )
    weights.finish()
    return model


def text_facts(checkpoint: Checkpoint) -> Facts:
    """The text model's keys: under `text_config` in new files, flat in those on the hub."""
    return checkpoint.config.child("text_config").merged(checkpoint.config)


def decoder_spec(checkpoint: Checkpoint) -> DecoderSpec:
    """The sizes of the decoder."""
    text = text_facts(checkpoint)
    text.expect("hidden_act", ("silu",), "silu")
    text.expect("use_sliding_window", (False,), False)
    hidden, heads = text.read(int, "hidden_size", 8192), text.read(int, "num_attention_heads", 64)
    return DecoderSpec(
        hidden=hidden,
        inter=text.read(int, "intermediate_size", 29568),
        layers=text.read(int, "num_hidden_layers", 80),
        heads=heads,
        kv_heads=text.read(int, "num_key_value_heads", 8),
        head_dim=hidden // heads,
        eps=text.read(float, "rms_norm_eps", 1e-5),
        qkv_bias=True,
    )


def vision_facts(checkpoint: Checkpoint) -> Facts:
    """The tower's keys, after the values that all towers of the line share have been checked."""
    vision = checkpoint.config.child("vision_config")
    for key in ("in_chans", "in_channels"):
        vision.expect(key, (3,), 3)
    vision.expect("temporal_patch_size", (FRAMES,), FRAMES)
    vision.child("rope_parameters").expect("rope_theta", (1e4,), 1e4)
    return vision


def pixel_spec(checkpoint: Checkpoint) -> PixelSpec:
    """How raw pixels are normalised; videos as pictures."""
    pixels = checkpoint.facts("preprocessor_config.json")
    pixels.expect("do_rescale", (True,), True)
    pixels.expect("do_normalize", (True,), True)
    return PixelSpec(
        rescale=pixels.read(float, "rescale_factor", 1 / 255),
        mean=tuple(pixels.read(list, "image_mean", CLIP_MEAN)),
        std=tuple(pixels.read(list, "image_std", CLIP_STD)),
    )


def _rope(text: Facts, head_dim: int) -> tuple[float, tuple[int, ...]]:
    """(theta, mrope sections), from `rope_theta` and `rope_scaling` (hub) or `rope_parameters` (transformers 5)."""
    rope = text.child("rope_scaling").merged(text.child("rope_parameters"))
    kind = "rope_type" if "rope_type" in rope else "type"
    rope.expect(kind, ("mrope", "default"), "default")
    theta = rope.read(float, "rope_theta", text.read(float, "rope_theta", 1e6))
    sections = tuple(rope.read(list, "mrope_section"))
    if len(sections) != 3 or sum(sections) != head_dim // 2:
        raise CheckpointError(
            f"{rope.where}: mrope_section is {list(sections)}; three sections must add up to {head_dim // 2}"
        )
    return theta, sections
