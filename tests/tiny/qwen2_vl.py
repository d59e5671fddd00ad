"""Tiny random checkpoints, written to disk as the hub's are and loaded as real ones are."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Layout = Literal["hub", "v5"]

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
ORDINARY_ADDED = ["<tool_call>", "</tool_call>"]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "the quick brown fox jumps over the lazy dog and describes the picture; what is in this image? a helpful "
    "assistant answers, one two three numbers, red green blue; You are a helpful assistant. system user assistant "
    "1 2 3 4 5 10 20 pictures in a row. Hello, world! 你好，世界。这张图片里有什么？"
)


def trained_tokenizer(n: int) -> Tokenizer:
    """A byte-level BPE of `n` entries with Qwen2's pattern, without added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS] * 4, trainer)
    return tokenizer


def write_tokenizer(
    path: Path,
    template_in: str = "chat_template.json",
    special: Sequence[str] = SPECIAL,
    template: str = TEMPLATE,
    settings: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """A small vocabulary with these special tokens: write tokenizer.json, its config and the template."""
    tokenizer = trained_tokenizer(400)
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ORDINARY_ADDED])
    tokenizer.save(str(path / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 32768,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        **(settings or {}),
    }
    if template_in == "tokenizer_config.json":
        config["chat_template"] = template
    elif template_in == "chat_template.json":
        write_json(path / "chat_template.json", {"chat_template": template})
    else:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(path / "tokenizer_config.json", config)
    return tokenizer


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def qwen2_vl_tensors(
    rng: np.random.Generator, *, vocab: int, hidden: int, inter: int, layers: int, heads: int, kv_heads: int,
    width: int, depth: int, tied: bool, mlp_ratio: int = 2,
) -> Iterator[tuple[str, np.ndarray]]:  # fmt: skip
    """Name (as on the hub) and float32 value of every tensor of a Qwen2-VL."""

    def normal(*shape: int, std: float | None = None) -> np.ndarray:
        scale = std if std is not None else 1.4 / np.sqrt(shape[-1])
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def gain(n: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    def affine(name: str, n_out: int, n_in: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", normal(n_out, n_in)
        yield f"{name}.bias", normal(n_out, std=0.05)

    def layer_norm(name: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", gain(width)
        yield f"{name}.bias", normal(width, std=0.05)

    head_dim = hidden // heads
    yield "visual.patch_embed.proj.weight", normal(width, 3, 2, 14, 14, std=1 / np.sqrt(1176))
    for i in range(depth):
        block = f"visual.blocks.{i}"
        yield from layer_norm(f"{block}.norm1")
        yield from layer_norm(f"{block}.norm2")
        yield from affine(f"{block}.attn.qkv", 3 * width, width)
        yield from affine(f"{block}.attn.proj", width, width)
        yield from affine(f"{block}.mlp.fc1", mlp_ratio * width, width)
        yield from affine(f"{block}.mlp.fc2", width, mlp_ratio * width)
    yield from layer_norm("visual.merger.ln_q")
    yield from affine("visual.merger.mlp.0", 4 * width, 4 * width)
    yield from affine("visual.merger.mlp.2", hidden, 4 * width)
    yield "model.embed_tokens.weight", normal(vocab, hidden, std=0.15 if tied else 0.5)
    for i in range(layers):
        block = f"model.layers.{i}"
        yield f"{block}.input_layernorm.weight", gain(hidden)
        yield f"{block}.post_attention_layernorm.weight", gain(hidden)
        yield from affine(f"{block}.self_attn.q_proj", heads * head_dim, hidden)
        yield from affine(f"{block}.self_attn.k_proj", kv_heads * head_dim, hidden)
        yield from affine(f"{block}.self_attn.v_proj", kv_heads * head_dim, hidden)
        yield f"{block}.self_attn.o_proj.weight", normal(hidden, heads * head_dim)
        yield f"{block}.mlp.gate_proj.weight", normal(inter, hidden)
        yield f"{block}.mlp.up_proj.weight", normal(inter, hidden)
        yield f"{block}.mlp.down_proj.weight", normal(hidden, inter)
    yield "model.norm.weight", gain(hidden)
    if not tied:
        yield "lm_head.weight", normal(vocab, hidden, std=0.15)


def v5_name(name: str) -> str:
    """The name transformers 5 gives the tensor that the hub calls `name`."""
    if name.startswith("visual."):
        return "model." + name
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def special_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """The ids that config.json names."""
    return {
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "vision_token_id": tokenizer.token_to_id("<|vision_pad|>"),
    }


def write_qwen2_vl(
    path: Path, *, layout: Layout = "hub", tied: bool = True, seed: int = 0, hidden: int = 64, inter: int = 96,
    layers: int = 2, heads: int = 4, kv_heads: int = 2, width: int = 32, depth: int = 2,
    vision_heads: int = 2, mlp_ratio: int = 2, vocab: int | None = None,
    template_in: str = "chat_template.json", max_pixels: int = 28 * 28 * 1280,
) -> Path:  # fmt: skip
    """A complete Qwen2-VL directory, by default of 160 k parameters; `layout` is that of config and tensor names."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(path, template_in)
    # As on the hub, the model has more rows than the tokenizer has entries.
    vocab = vocab if vocab is not None else tokenizer.get_vocab_size() + 3
    ids = special_ids(tokenizer)
    third = hidden // heads // 2 // 8
    sections = [2 * third, 3 * third, 3 * third]
    text: dict[str, Any] = {
        "hidden_size": hidden, "intermediate_size": inter, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "max_position_embeddings": 32768, "use_sliding_window": False,
    }  # fmt: skip
    vision: dict[str, Any] = {"depth": depth, "embed_dim": width, "num_heads": vision_heads, "mlp_ratio": mlp_ratio,
                              "hidden_size": hidden, "patch_size": 14, "spatial_merge_size": 2,
                              "temporal_patch_size": 2, "in_chans": 3}  # fmt: skip
    top: dict[str, Any] = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
           "tie_word_embeddings": tied, "torch_dtype": "float32", **ids}  # fmt: skip
    if layout == "hub":
        rope: dict[str, Any] = {"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": sections}}
        config: dict[str, Any] = {**top, **text, **rope, "vision_config": vision}
        pixels: dict[str, Any] = {"min_pixels": 3136, "max_pixels": max_pixels}
    else:
        rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}}
        vision = {("in_channels" if key == "in_chans" else key): value for key, value in vision.items()}
        config = {**top, "text_config": {**text, **rope, "model_type": "qwen2_vl_text"}, "vision_config": vision}
        pixels = {"size": {"shortest_edge": 3136, "longest_edge": max_pixels}}
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
         "image_std": [0.26862954, 0.26130258, 0.27577711], **pixels},
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    tensors = dict(
        qwen2_vl_tensors(
            rng, vocab=vocab, hidden=hidden, inter=inter, layers=layers, heads=heads, kv_heads=kv_heads,
            width=width, depth=depth, tied=tied, mlp_ratio=mlp_ratio,
        )
    )  # fmt: skip
    if layout == "v5":
        tensors = {v5_name(name): value for name, value in tensors.items()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path
