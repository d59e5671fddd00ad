"""Tiny random Mistral Small 3.1 checkpoints."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from tests.layouts.templates import DATED_SYSTEM
from tests.tiny.qwen2_vl import write_json, write_tokenizer
from tests.tiny.random_weights import write_random_weights

# transformers 5 -> the hub, of which the first that fits is taken.
HUB_NAMES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}
SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
]  # fmt: skip
LONGEST = 308  # pixels of a picture's longer side; a token has 28
VISION: dict[str, Any] = {
    "attention_dropout": 0.0, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "image_size": LONGEST,
    "initializer_range": 0.02, "intermediate_size": 48, "model_type": "pixtral", "num_attention_heads": 2,
    "num_channels": 3, "num_hidden_layers": 2, "patch_size": 14, "rope_theta": 10000.0,
}  # fmt: skip


def write_mistral3(path: Path, *, seed: int = 0) -> Path:
    """A complete directory; of the decoder heads times their width is not the hidden size."""
    path.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "pad_token": "<pad>", "add_bos_token": True, "add_eos_token": False, "processor_class": "PixtralProcessor",
    }  # fmt: skip
    tokenizer = write_tokenizer(path, special=SPECIAL, template=DATED_SYSTEM, settings=settings)
    _open_texts(tokenizer, path)
    text = {
        "attention_dropout": 0.0, "head_dim": 24, "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02,
        "intermediate_size": 96, "max_position_embeddings": 4096, "model_type": "mistral", "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0,
        "sliding_window": None, "use_cache": True, "vocab_size": tokenizer.get_vocab_size() + 3,
    }  # fmt: skip
    write_json(path / "config.json", {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": tokenizer.token_to_id("[IMG]"),
        "model_type": "mistral3", "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "spatial_merge_size": 2, "text_config": text, "tie_word_embeddings": False, "torch_dtype": "float32",
        "vision_config": VISION, "vision_feature_layer": -1,
    })  # fmt: skip
    bos, eos = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    write_json(path / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})
    write_json(path / "preprocessor_config.json", {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_processor_type": "PixtralImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711], "patch_size": {"height": 14, "width": 14},
        "processor_class": "PixtralProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": LONGEST},
    })  # fmt: skip
    write_json(path / "processor_config.json", {
        "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]", "patch_size": 14,
        "processor_class": "PixtralProcessor", "spatial_merge_size": 2,
    })  # fmt: skip
    return write_random_weights(path, HUB_NAMES, seed)


def _open_texts(tokenizer: Tokenizer, path: Path) -> None:
    """With <s> in front of every text, as the hub's tokenizer.json says."""
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", start)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
