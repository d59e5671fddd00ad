"""Tiny random checkpoints of InternVL3, in transformers' layout and in that in which they are published."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.tiny.qwen2_vl import write_json, write_tokenizer
from tests.tiny.random_weights import write_random_weights

# transformers 5 -> its saves, of which the first that fits is taken.
HUB_NAMES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
# transformers' saves -> as published, after the queries, keys and values of a block are one.
PUBLISHED_NAMES = {
    "vision_tower.embeddings.cls_token": "vision_model.embeddings.class_embedding",
    "vision_tower.embeddings.position_embeddings": "vision_model.embeddings.position_embedding",
    "vision_tower.embeddings.patch_embeddings.projection.": "vision_model.embeddings.patch_embedding.",
    "vision_tower.encoder.layer.": "vision_model.encoder.layers.",
    "multi_modal_projector.layer_norm.": "mlp1.0.",
    "multi_modal_projector.linear_1.": "mlp1.1.",
    "multi_modal_projector.linear_2.": "mlp1.3.",
}
_IN_A_BLOCK = {
    "attention.qkv.": "attn.qkv.", "attention.projection_layer.": "attn.proj.", "attention.q_norm.": "attn.q_norm.",
    "attention.k_norm.": "attn.k_norm.", "layernorm_before.": "norm1.", "layernorm_after.": "norm2.",
    "lambda_1": "ls1", "lambda_2": "ls2",
}  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}"
    "{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
# What the text models' directories have, and published ones of this line, too, where it does not count.
OTHER_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TILE = 56  # pixels of a tile's side; a token has 28
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
LARGE: dict[str, Any] = {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False}  # as that of 6B
TEXT: dict[str, Any] = {
    "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 8192,
    "model_type": "qwen2", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "use_sliding_window": False,
}  # fmt: skip
VISION: dict[str, Any] = {
    "attention_bias": True, "hidden_act": "gelu", "hidden_size": 32, "image_size": [TILE, TILE],
    "intermediate_size": 48, "layer_norm_eps": 1e-6, "model_type": "internvl_vision", "norm_type": "layer_norm",
    "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": [14, 14],
    "use_absolute_position_embeddings": True, "use_mask_token": False, "use_mean_pooling": True, "use_qk_norm": False,
}  # fmt: skip


def write_internvl(path: Path, *, seed: int = 0, vision: dict[str, Any] | None = None) -> Path:
    """In transformers' layout. vision: keys of its section that differ."""
    path.mkdir(parents=True, exist_ok=True)
    named = {
        "start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }  # fmt: skip
    settings = {"extra_special_tokens": named, "processor_class": "InternVLProcessor"}
    tokenizer = write_tokenizer(path, special=[*SPECIAL, "<video>"], template=TEMPLATE, settings=settings)
    end, start = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    write_json(path / "config.json", {
        "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 4,
        "image_token_id": tokenizer.token_to_id("<IMG_CONTEXT>"), "model_type": "internvl",
        "projector_hidden_act": "gelu", "text_config": {
            **TEXT, "vocab_size": tokenizer.get_vocab_size() + 3, "bos_token_id": start, "eos_token_id": end,
        }, "tie_word_embeddings": False, "torch_dtype": "float32", "vision_config": {**VISION, **(vision or {})},
        "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
    })  # fmt: skip
    write_json(path / "generation_config.json", {"bos_token_id": start, "eos_token_id": end})
    write_json(path / "preprocessor_config.json", {
        "crop_to_patches": False, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": MEAN, "image_processor_type": "GotOcr2ImageProcessor", "image_std": STD, "max_patches": 12,
        "min_patches": 1, "processor_class": "InternVLProcessor", "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"height": TILE, "width": TILE},
    })  # fmt: skip
    write_json(path / "processor_config.json", {"image_seq_length": 4, "processor_class": "InternVLProcessor"})
    return write_random_weights(path, HUB_NAMES, seed)


def write_published_internvl(path: Path, twin: Path) -> Path:
    """The layout in which the models are published, with the weights and the vocabulary of a `write_internvl`."""
    path.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_text((twin / file).read_text())
    settings = json.loads((path / "tokenizer_config.json").read_text()) | {"chat_template": OTHER_TEMPLATE}
    write_json(path / "tokenizer_config.json", settings)
    other = json.loads((twin / "config.json").read_text())
    vision = other["vision_config"]
    llm = {
        **other["text_config"], "architectures": ["Qwen2ForCausalLM"], "_name_or_path": "Qwen2.5-32B",
        "eos_token_id": other["text_config"]["bos_token_id"],
        "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}, "torch_dtype": "float32",
    }  # fmt: skip
    write_json(path / "config.json", {
        "architectures": ["InternVLChatModel"], "downsample_ratio": 0.5, "dynamic_image_size": True,
        "force_image_size": TILE, "llm_config": llm, "max_dynamic_patch": 12, "min_dynamic_patch": 1,
        "model_type": "internvl_chat", "pad2square": False, "ps_version": "v2", "select_layer": -1,
        "system_message": None, "template": "internvl2_5", "tie_word_embeddings": False, "torch_dtype": "float32",
        "use_backbone_lora": 0, "use_llm_lora": 0, "use_thumbnail": True, "vision_config": {
            "architectures": ["InternVisionModel"], "dropout": 0.0, "hidden_act": "gelu",
            "hidden_size": vision["hidden_size"], "image_size": TILE, "intermediate_size": vision["intermediate_size"],
            "layer_norm_eps": vision["layer_norm_eps"], "model_type": "intern_vit_6b",
            "norm_type": vision["norm_type"], "num_attention_heads": vision["num_attention_heads"], "num_channels": 3,
            "num_hidden_layers": vision["num_hidden_layers"], "patch_size": 14,
            "qk_normalization": vision["use_qk_norm"], "qkv_bias": vision["attention_bias"],
        },
    })  # fmt: skip
    write_json(path / "generation_config.json", {"_from_model_config": True})
    write_json(path / "preprocessor_config.json", {
        "crop_size": 448, "do_center_crop": True, "do_normalize": True, "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": MEAN, "image_std": STD, "resample": 3,
        "size": 448,
    })  # fmt: skip
    tensors = published_tensors(load_file(twin / "model.safetensors"))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def published_tensors(saved: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of transformers' saves, by their published names."""
    found: dict[str, np.ndarray] = {}
    for name, value in saved.items():
        block, part, kind = name.partition(".attention.q_proj.")
        if part:  # one matrix on the hub
            three = [saved[f"{block}.attention.{letter}_proj.{kind}"] for letter in "qkv"]
            name, value = f"{block}.attention.qkv.{kind}", np.concatenate(three)
        elif ".attention.k_proj." in name or ".attention.v_proj." in name:
            continue
        for prefix, published in PUBLISHED_NAMES.items():
            if name.startswith(prefix):
                name = published + name.removeprefix(prefix)
        if name.startswith("vision_model.encoder."):
            for inner, published in _IN_A_BLOCK.items():
                name = name.replace(inner, published)
        found[name] = value
    return found
