"""Tiny random LLaVA-1.5 checkpoints: as on the hub, and as transformers 5 names and saves them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.layouts.templates import PICTURES_FIRST
from tests.tiny.qwen2_vl import Layout, qwen2_vl_tensors, write_json
from tests.tiny.sentencepiece import write_pieces

HIDDEN, INTER, LAYERS, HEADS = 64, 96, 2, 4
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14, "projection_dim": 32, "vocab_size": 100, "model_type": "clip_vision_model",
}  # fmt: skip
N_PADS = 16  # of every picture
PIXELS: dict[str, Any] = {
    "crop_size": {"height": 56, "width": 56}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711],
    "processor_class": "LlavaProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 56},
}  # fmt: skip


def write_llava(path: Path, *, layout: Layout = "hub", seed: int = 0) -> Path:
    """A complete directory of 160 k parameters; `layout` is that of the tensor names and of the rope in the config."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_pieces(path, special=("<image>", "<pad>"), settings={"pad_token": "<pad>"})
    vocab = tokenizer.get_vocab_size() + 3  # as on the hub, the model has more rows than the tokenizer has entries
    image, pad = (tokenizer.token_to_id(text) for text in ("<image>", "<pad>"))
    text: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": vocab, "torch_dtype": "float32",
    }  # fmt: skip
    if layout == "v5":
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config: dict[str, Any] = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "torch_dtype": "float32",
        "ignore_index": -100, "image_token_index": image, "pad_token_id": pad, "projector_hidden_act": "gelu",
        "text_config": text, "vision_config": VISION, "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    }  # fmt: skip
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": pad})
    write_json(path / "preprocessor_config.json", PIXELS)
    processor = {
        "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": VISION["patch_size"],
        "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
    }  # fmt: skip
    write_json(path / "processor_config.json", processor)
    write_json(path / "chat_template.json", {"chat_template": PICTURES_FIRST})
    rng = np.random.default_rng(seed)
    decoder = qwen2_vl_tensors(
        rng, vocab=vocab, hidden=HIDDEN, inter=INTER, layers=LAYERS, heads=HEADS, kv_heads=HEADS, width=32, depth=0,
        tied=False,
    )  # fmt: skip
    tensors = {
        name: value
        for name, value in decoder
        if not name.startswith("visual.") and not ("self_attn" in name and name.endswith(".bias"))
    }
    tensors.update(_tower(rng))
    for name, n_in in (("linear_1", VISION["hidden_size"]), ("linear_2", HIDDEN)):
        tensors.update(_affine(rng, f"multi_modal_projector.{name}", HIDDEN, n_in))
    named = {(v5_name if layout == "v5" else hub_name)(name): value for name, value in tensors.items()}
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})
    return path


def hub_name(name: str) -> str:
    """The hub's name of the tensor that the networks call `name`."""
    if name.startswith("vision_tower."):
        return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
    return f"language_model.{name}" if name.startswith(("model.", "lm_head.")) else name


def v5_name(name: str) -> str:
    """The name that transformers 5 gives the tensor that the networks call `name`."""
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else f"model.{name}"


def _tower(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    width, inter, side = VISION["hidden_size"], VISION["intermediate_size"], VISION["image_size"] // 14
    embeddings = "vision_tower.embeddings"
    yield f"{embeddings}.class_embedding", _normal(rng, width, std=0.5)
    yield f"{embeddings}.patch_embedding.weight", _normal(rng, width, 3, 14, 14, std=1.4 / np.sqrt(588))
    yield f"{embeddings}.position_embedding.weight", _normal(rng, side**2 + 1, width, std=0.3)
    for name in ("pre_layrnorm", "post_layernorm"):
        yield from _norm(rng, f"vision_tower.{name}", width)
    for i in range(VISION["num_hidden_layers"]):
        block = f"vision_tower.encoder.layers.{i}"
        for name in ("layer_norm1", "layer_norm2"):
            yield from _norm(rng, f"{block}.{name}", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _affine(rng, f"{block}.self_attn.{name}", width, width)
        yield from _affine(rng, f"{block}.mlp.fc1", inter, width)
        yield from _affine(rng, f"{block}.mlp.fc2", width, inter)


def _normal(rng: np.random.Generator, *shape: int, std: float | None = None) -> np.ndarray:
    scale = 1.4 / np.sqrt(shape[-1]) if std is None else std
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _affine(rng: np.random.Generator, name: str, n_out: int, n_in: int) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{name}.weight", _normal(rng, n_out, n_in)
    yield f"{name}.bias", _normal(rng, n_out, std=0.05)


def _norm(rng: np.random.Generator, name: str, width: int) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{name}.weight", (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)
    yield f"{name}.bias", _normal(rng, width, std=0.05)
