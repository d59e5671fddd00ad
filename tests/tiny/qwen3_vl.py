"""Tiny random checkpoints of Qwen3-VL, as the hub's are."""

from pathlib import Path
from typing import Any

from tests.tiny.qwen2_vl import write_json, write_tokenizer
from tests.tiny.random_weights import write_random_weights

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
    "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
    "rope_theta": 5000000, "use_cache": True,
}  # fmt: skip
VISION: dict[str, Any] = {
    "deepstack_visual_indexes": [0, 2], "depth": 4, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
    "in_channels": 3, "intermediate_size": 48, "model_type": "qwen3_vl", "num_heads": 2,
    "num_position_embeddings": 36, "out_hidden_size": 64, "patch_size": 16, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}  # fmt: skip
CUTS: dict[str, Any] = {
    "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5], "processor_class": "Qwen3VLProcessor",
}  # fmt: skip


def write_qwen3_vl(
    path: Path, *, tied: bool = True, seed: int = 0, vision: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    """vision, text: keys of their sections that differ."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(path, template=TEMPLATE)
    start, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    inner = {**TEXT, "vocab_size": tokenizer.get_vocab_size() + 3, "tie_word_embeddings": tied, **(text or {})}
    write_json(path / "config.json", {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "text_config": {**inner, "bos_token_id": start, "eos_token_id": end},
        "tie_word_embeddings": tied, "vision_config": {**VISION, **(vision or {})},
    })  # fmt: skip
    write_json(
        path / "generation_config.json",
        {"bos_token_id": start, "eos_token_id": [end, start], "pad_token_id": start, "do_sample": True, "top_k": 20,
         "top_p": 0.8, "temperature": 0.7, "repetition_penalty": 1.0},
    )  # fmt: skip
    write_json(
        path / "preprocessor_config.json",
        {"size": {"longest_edge": 16777216, "shortest_edge": 4096}, **CUTS,
         "image_processor_type": "Qwen2VLImageProcessorFast"},
    )  # fmt: skip
    write_json(
        path / "video_preprocessor_config.json",
        {"size": {"longest_edge": 25165824, "shortest_edge": 4096}, **CUTS,
         "video_processor_type": "Qwen3VLVideoProcessor"},
    )  # fmt: skip
    return write_random_weights(path, {}, seed)
