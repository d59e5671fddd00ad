"""Tiny random checkpoints of ViP-LLaVA, with the keys and the tensor names of the hub's directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.layouts.templates import VIP_TURNS
from tests.tiny.llava import PIXELS, VISION
from tests.tiny.qwen2_vl import write_json
from tests.tiny.random_weights import write_random_weights
from tests.tiny.sentencepiece import write_pieces

HUB_NAMES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
# After which blocks features are taken: the published order of a tower of 24 is -2, -5, -8, -11, 6.
LAYERS: dict[str, Any] = {"vision_feature_layers": [-2, -3, -4, -5, 1]}


def write_vip_llava(path: Path, *, seed: int = 0, values: Mapping[str, Any] = LAYERS) -> Path:
    """A complete directory: five features of a tower of six blocks, of which the last is left out.

    values: of config.json; which features are taken, under the key that says it: the hub's is the older one.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_pieces(path, special=("<image>", "<pad>"), settings={"pad_token": "<pad>"})
    vocab = tokenizer.get_vocab_size() + 3
    image, pad = (tokenizer.token_to_id(text) for text in ("<image>", "<pad>"))
    text: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "vocab_size": vocab, "torch_dtype": "float32",
    }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["VipLlavaForConditionalGeneration"], "model_type": "vipllava", "torch_dtype": "float32",
        "ignore_index": -100, "image_token_index": image, "pad_token_id": pad, "projector_hidden_act": "gelu",
        "projector_layernorm_eps": 1e-5, "text_config": text, "vision_config": {**VISION, "num_hidden_layers": 6},
        "tie_word_embeddings": False, "vocab_size": vocab, **values,
    }  # fmt: skip
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": pad})
    write_json(path / "preprocessor_config.json", PIXELS)
    processor = {
        "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": VISION["patch_size"],
        "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
    }  # fmt: skip
    write_json(path / "processor_config.json", processor)
    write_json(path / "chat_template.json", {"chat_template": VIP_TURNS})
    return write_random_weights(path, HUB_NAMES, seed)
