"""Qwen-VL's networks, by the keys of a checkpoint; defaults are the published configuration class's."""

from configs.checkpoint import Checkpoint, ConfigSection
from model.families.qwen_vl.chatml import PICTURE_TOKENS
from model.net.absolute_vit import AbsoluteVit, AbsoluteVitSpec, build_absolute_vit
from model.net.decoder import DecoderNames, DecoderSpec, build_decoder
from model.net.linear_weights import take_embedding
from model.net.multimodal import Encoder, MultimodalLM
from model.net.resampler import ResamplerSpec, build_resampler
from model.net.rope import LogN, NtkRope
from model.net.vision import CLIP_MEAN, CLIP_STD, BlockSpec, PixelSpec
from model.ops.base import Ops
from model.weights import Weights
from tokenization.fixed_pictures import read_sides

PAD_AFTER_START = 2  # <img>, </img>, <imgpad> have neighbouring ids


def build(checkpoint: Checkpoint, weights: Weights, ops: Ops) -> MultimodalLM:
    """Compose tower, resampler and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    config = checkpoint.config
    spec = _decoder_spec(config)
    trained = config.count("seq_length", least=2)
    grows = trained if config.read(bool, "use_dynamic_ntk", True) else None
    logn = config.read(bool, "use_logn_attn", True)
    theta = config.positive("rotary_emb_base", 10000.0)
    shape = (config.count("vocab_size", 151936), spec.hidden)
    tied = config.read(bool, "tie_word_embeddings", False)
    embed, head = take_embedding(ops, weights, "transformer.wte.weight", "lm_head.weight", shape, tied)
    names = DecoderNames(
        layers="h", input_norm="ln_1", qkv=("attn.c_attn",), o="attn.c_proj", post_norm="ln_2",
        gate_up=("mlp.w2", "mlp.w1"), down="mlp.c_proj", norm="ln_f",
    )  # fmt: skip
    encoders: dict[str, Encoder] = {}
    placeholders: dict[str, int] = {}
    tokens: frozenset[int] = frozenset()
    if "visual" in config:
        encoders["image"] = _tower(config.child("visual"), weights, ops, spec.hidden)
        start = config.child("visual").token_id("image_start_id", 151857)
        placeholders["image"] = start + PAD_AFTER_START
        tokens = frozenset(range(start, start + PAD_AFTER_START))
    longest = max(32768, config.count("max_position_embeddings", 8192))
    model = MultimodalLM(
        ops=ops,
        embed=embed,
        head=head,
        rope=NtkRope(head_dim=spec.head_dim, theta=theta, trained_length=grows, device=ops.device),
        decoder=build_decoder(ops, weights, spec, "transformer.", names),
        encoders=encoders,
        placeholder_ids=placeholders,
        media_token_ids=tokens,
        logn=LogN(trained_length=trained, longest=longest, device=ops.device) if logn else None,
    )
    weights.finish()
    return model


def _decoder_spec(config: ConfigSection) -> DecoderSpec:
    config.expect("no_bias", (True,), True)
    config.expect("rotary_pct", (1.0,), 1.0)
    config.expect("scale_attn_weights", (True,), True)
    hidden, heads = config.count("hidden_size", 4096), config.count("num_attention_heads", 32)
    head_dim = config.count("kv_channels", 128)
    config.expect("hidden_size", (heads * head_dim,), 4096)
    return DecoderSpec(
        hidden=hidden,
        inter=config.count("intermediate_size", 22016) // 2,  # the file counts gate and up together
        layers=config.count("num_hidden_layers", 32),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        eps=config.positive("layer_norm_epsilon", 1e-6),
        qkv_bias=True,
    )


def _tower(visual: ConfigSection, weights: Weights, ops: Ops, hidden: int) -> AbsoluteVit:
    eps, prefix = 1e-6, "transformer.visual."
    visual.expect("n_queries", (PICTURE_TOKENS,), PICTURE_TOKENS)
    visual.expect("output_dim", (hidden,), 512)
    width = visual.count("width")
    side, patch = read_sides(visual, size=448, patch=14)
    pool = ResamplerSpec(queries=PICTURE_TOKENS, width=width, out=hidden, heads=hidden // 128, side=side, eps=eps)
    spec = AbsoluteVitSpec(
        block=BlockSpec(
            width=width,
            heads=visual.count("heads"),
            inter=int(width * visual.positive("mlp_ratio")),
            eps=eps,
            activation="gelu",
        ),
        depth=visual.count("layers"),
        patch=patch,
        side=side,
        positions=256,
        pixels=PixelSpec(rescale=1 / 255, mean=CLIP_MEAN, std=CLIP_STD),
    )
    return build_absolute_vit(ops, weights, spec, prefix, build_resampler(ops, weights, pool, prefix))
