"""Tiny random Qwen2.5-VL checkpoints: the decoder of tests/tiny/qwen2_vl.py behind a tower with windows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tiny.qwen2_vl import Layout, qwen2_vl_tensors, special_ids, v5_name, write_json, write_tokenizer

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
WIDTH, DEPTH, VISION_HEADS, VISION_INTER = 32, 4, 2, 48
SECTIONS = [2, 3, 3]
VISION: dict[str, Any] = {
    "depth": DEPTH, "hidden_size": WIDTH, "num_heads": VISION_HEADS, "intermediate_size": VISION_INTER,
    "out_hidden_size": HIDDEN, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "hidden_act": "silu", "window_size": 112, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2,
}  # fmt: skip


def write_qwen2_5_vl(path: Path, *, layout: Layout = "hub", tied: bool = False, seed: int = 0) -> Path:
    """A complete directory of 200 k parameters; `layout` is that of config and tensor names."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(path)
    vocab = tokenizer.get_vocab_size() + 3  # as on the hub, the model has more rows than the tokenizer has entries
    ids = special_ids(tokenizer)
    text: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": vocab, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "max_position_embeddings": 32768, "use_sliding_window": False,
    }  # fmt: skip
    top: dict[str, Any] = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
           "tie_word_embeddings": tied, "torch_dtype": "float32", **ids}  # fmt: skip
    if layout == "hub":
        rope: dict[str, Any] = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS}}
        config = {**top, **text, **rope, "vision_config": {**VISION, "in_chans": 3}}
    else:
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": SECTIONS}}
        inner = {**text, **rope, "model_type": "qwen2_5_vl_text"}
        config = {**top, "text_config": inner, "vision_config": {**VISION, "in_channels": 3}}
    write_json(path / "config.json", config)
    write_json(
        path / "generation_config.json",
        {"bos_token_id": ids["bos_token_id"], "eos_token_id": [ids["eos_token_id"], ids["bos_token_id"]],
         "pad_token_id": ids["bos_token_id"], "do_sample": True, "temperature": 0.1, "top_p": 0.8, "top_k": 20},
    )  # fmt: skip
    write_json(
        path / "preprocessor_config.json",
        {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2,
         "temporal_patch_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
         "image_std": [0.26862954, 0.26130258, 0.27577711], "min_pixels": 3136, "max_pixels": 28 * 28 * 1280},
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    decoder = qwen2_vl_tensors(
        rng, vocab=vocab, hidden=HIDDEN, inter=INTER, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, width=WIDTH,
        depth=0, tied=tied,
    )  # fmt: skip
    tensors = {name: value for name, value in decoder if not name.startswith("visual.")}
    tensors.update(tower_tensors(rng))
    if layout == "v5":
        tensors = {v5_name(name): value for name, value in tensors.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def tower_tensors(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Name (as on the hub) and float32 value of every tensor of the tower."""

    def normal(*shape: int, std: float | None = None) -> np.ndarray:
        scale = std if std is not None else 1 / np.sqrt(shape[-1])
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def affine(name: str, n_out: int, n_in: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", normal(n_out, n_in)
        yield f"{name}.bias", normal(n_out, std=0.05)

    def gain(name: str) -> tuple[str, np.ndarray]:
        return f"{name}.weight", (1 + 0.1 * rng.standard_normal(WIDTH)).astype(np.float32)

    yield "visual.patch_embed.proj.weight", normal(WIDTH, 3, 2, 14, 14, std=1 / np.sqrt(1176))
    for i in range(DEPTH):
        block = f"visual.blocks.{i}"
        yield gain(f"{block}.norm1")
        yield gain(f"{block}.norm2")
        yield from affine(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        yield from affine(f"{block}.attn.proj", WIDTH, WIDTH)
        yield from affine(f"{block}.mlp.gate_proj", VISION_INTER, WIDTH)
        yield from affine(f"{block}.mlp.up_proj", VISION_INTER, WIDTH)
        yield from affine(f"{block}.mlp.down_proj", WIDTH, VISION_INTER)
    yield gain("visual.merger.ln_q")
    yield from affine("visual.merger.mlp.0", 4 * WIDTH, 4 * WIDTH)
    yield from affine("visual.merger.mlp.2", HIDDEN, 4 * WIDTH)
