"""The demo model's directory: vocabulary, template, configuration and weights, as published checkpoints have them.

Knows neither training nor serving.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from demo.net import DemoNet
from demo.sizes import Sizes

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|vision_bos|>",
    "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>", "<|VIDEO|>",
)  # fmt: skip
GROUNDING = ("<ref>", "</ref>", "<box>", "</box>")  # words of answers, so not special
PADS = {"image": "<|IMAGE|>", "video": "<|VIDEO|>", "audio": "<|AUDIO|>"}
AROUND = {
    "image": ("<|vision_bos|>", "<|vision_eos|>"),
    "video": ("<|vision_bos|>", "<|vision_eos|>"),
    "audio": ("<|audio_bos|>", "<|audio_eos|>"),
}
_PATTERN = (  # where text is cut before merging: digits one by one, words with the blank before them
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (  # with tools in Hermes' form: declared in the system message, called and answered in tags
    "{% macro said(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content or [] %}"
    "{% if part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part['type'] == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{% endmacro %}"
    "{% macro offered() %}# Tools\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}</tools>\n"
    'Call one so: <tool_call>\n{{ \'{"name": ..., "arguments": {...}}\' }}\n</tool_call>{% endmacro %}'
    "{% if tools and messages[0]['role'] != 'system' %}<|im_start|>system\n{{ offered() }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n{{ said(message['content']) }}\n"
    "</tool_response>"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ said(message['content']) }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first }}<tool_call>\n"
    "{{ '{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}{{ '}' }}\n</tool_call>{% endfor %}"
    "{% if tools and loop.first and message['role'] == 'system' %}{{ '\n\n' + offered() }}{% endif %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MAX_LENGTH = 4096


def train_tokenizer(lines: Iterable[str], vocab: int) -> Tokenizer:
    """A byte-level vocabulary of `vocab` entries and the marks behind them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in GROUNDING])
    return tokenizer


def id_of(tokenizer: Tokenizer, text: str) -> int:
    """The id of one entry of the vocabulary. KeyError: it has none."""
    found = tokenizer.token_to_id(text)
    if found is None:
        raise KeyError(text)
    return found


def write_files(path: Path, tokenizer: Tokenizer, sizes: Sizes) -> None:
    """Everything of the directory but the weights."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    ids = {text: id_of(tokenizer, text) for text in SPECIAL}
    end, finished = ids["<|im_end|>"], ids["<|endoftext|>"]
    _write(path / "config.json", _config(sizes, ids, tokenizer.get_vocab_size()))
    _write(path / "generation_config.json",
           {"eos_token_id": [end, finished], "pad_token_id": finished, "do_sample": False})  # fmt: skip
    _write(
        path / "tokenizer_config.json",
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
         "model_max_length": _MAX_LENGTH, "add_bos_token": False, "clean_up_tokenization_spaces": False,
         "errors": "replace", "extra_special_tokens": {
             "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
             "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>",
             "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"},
         "chat_template": TEMPLATE},  # there, too: tools that load the tokenizer alone find it nowhere else
    )  # fmt: skip
    _write(path / "chat_template.json", {"chat_template": TEMPLATE})
    grid = {"patch_size": sizes.patch, "merge_size": sizes.merge, "temporal_patch_size": 2,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
    _write(
        path / "preprocessor_config.json",
        {"processor_class": "Qwen2_5OmniProcessor", "image_processor_type": "Qwen2VLImageProcessor",
         "feature_extractor_type": "WhisperFeatureExtractor", **grid, "min_pixels": sizes.min_pixels,
         "max_pixels": sizes.max_pixels, "feature_size": sizes.mels, "sampling_rate": 16_000, "hop_length": 160,
         "n_fft": 400, "chunk_length": 30, "padding_side": "right", "padding_value": 0.0,
         "return_attention_mask": True},
    )  # fmt: skip
    _write(
        path / "video_preprocessor_config.json",
        {"video_processor_type": "Qwen2VLVideoProcessor", **grid,
         "size": {"shortest_edge": sizes.frame_min_pixels, "longest_edge": sizes.frame_max_pixels}},
    )  # fmt: skip


def write_weights(path: Path, net: DemoNet) -> None:
    """model.safetensors in float16, under the names that published checkpoints use."""
    tensors = {f"thinker.{name}": value.detach().to(torch.float16) for name, value in net.state_dict().items()}
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, path / "model.safetensors", {"format": "pt"}
    )


def read_weights(path: Path, net: DemoNet) -> None:
    """The inverse of `write_weights`. RuntimeError: the checkpoint is of another shape."""
    tensors = load_file(path / "model.safetensors")
    net.load_state_dict({name.removeprefix("thinker."): value.float() for name, value in tensors.items()})


def _config(sizes: Sizes, ids: dict[str, int], vocab: int) -> dict[str, Any]:
    text = {
        "model_type": "qwen2_5_omni_text", "vocab_size": vocab, "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inter, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads, "hidden_act": "silu", "max_position_embeddings": _MAX_LENGTH,
        "rms_norm_eps": sizes.eps, "rope_theta": sizes.rope_theta, "use_sliding_window": False,
        "rope_scaling": {"mrope_section": list(sizes.mrope), "rope_type": "default", "type": "default"},
        "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "model_type": "qwen2_5_omni_vision_encoder", "depth": sizes.vision_depth, "hidden_size": sizes.vision_width,
        "num_heads": sizes.vision_heads, "intermediate_size": sizes.vision_inter, "out_hidden_size": sizes.hidden,
        "patch_size": sizes.patch, "spatial_patch_size": sizes.patch, "spatial_merge_size": sizes.merge,
        "temporal_patch_size": 2, "in_channels": 3, "hidden_act": "silu", "window_size": 4 * sizes.cell,
        "fullatt_block_indexes": list(range(sizes.vision_depth)), "tokens_per_second": sizes.positions_per_second,
    }  # fmt: skip
    audio = {
        "model_type": "qwen2_5_omni_audio_encoder", "num_mel_bins": sizes.mels, "d_model": sizes.audio_width,
        "encoder_layers": sizes.audio_depth, "encoder_attention_heads": sizes.audio_heads,
        "encoder_ffn_dim": sizes.audio_inter, "max_source_positions": 1500, "n_window": sizes.audio_window,
        "output_dim": sizes.hidden, "activation_function": "gelu", "scale_embedding": False,
    }  # fmt: skip
    thinker = {
        "model_type": "qwen2_5_omni_thinker", "text_config": text, "vision_config": vision, "audio_config": audio,
        "audio_token_index": ids["<|AUDIO|>"], "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"], "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"], "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"], "pad_token_id": ids["<|endoftext|>"],
        "position_id_per_seconds": sizes.positions_per_second, "seconds_per_chunk": 2, "tie_word_embeddings": False,
    }  # fmt: skip
    return {
        "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "torch_dtype": "float16",
        "enable_audio_output": False, "tie_word_embeddings": False, "thinker_config": thinker,
    }  # fmt: skip


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
