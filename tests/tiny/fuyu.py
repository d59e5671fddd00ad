"""Tiny random Fuyu checkpoints."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.tiny.qwen2_vl import Layout, write_json
from tests.tiny.sentencepiece import trained_pieces

HIDDEN, INTER, LAYERS, HEADS, PATCH = 64, 96, 2, 4, 30
MARKS = ("|SPEAKER|", "|NEWLINE|", "|ENDOFTEXT|")  # pieces like others, as on the hub
CONTROL = ("<unk>", "<s>", "</s>")


def write_fuyu(
    path: Path, *, layout: Layout = "hub", seed: int = 0, patch: int = PATCH, height: int = 1080, width: int = 1920,
    layers: int = LAYERS, hidden: int = HIDDEN,
) -> Path:  # fmt: skip
    """A complete directory of 360 k parameters; `layout` is that of config and tensor names. Pictures: the box."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_marked_pieces(path)
    vocab = tokenizer.get_vocab_size() + 3  # as on the hub, the model has more rows than the tokenizer has entries
    end = tokenizer.token_to_id("|ENDOFTEXT|")
    text: dict[str, Any] = {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": INTER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "hidden_act": "relu2", "max_position_embeddings": 16384, "layer_norm_eps": 1e-5,
        "qk_layernorm": True, "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_cache": True,
        "bos_token_id": end, "eos_token_id": end,
    }  # fmt: skip
    top: dict[str, Any] = {
        "architectures": ["FuyuForCausalLM"], "model_type": "fuyu", "patch_size": patch, "num_channels": 3,
        "image_size": 300, "image_token_id": tokenizer.token_to_id("|SPEAKER|"), "tie_word_embeddings": False,
    }  # fmt: skip
    if layout == "hub":
        config = {**top, **text, "rope_theta": 25000.0, "rope_scaling": None, "partial_rotary_factor": 0.5}
    else:
        rope = {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 0.5}
        config = {**top, "text_config": {**text, "model_type": "persimmon", "rope_parameters": rope}}
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"bos_token_id": end, "eos_token_id": end})
    write_json(
        path / "preprocessor_config.json",
        {"image_processor_type": "FuyuImageProcessor", "processor_class": "FuyuProcessor", "do_resize": True,
         "size": {"height": height, "width": width}, "resample": 2, "do_pad": True, "padding_value": 1.0,
         "padding_mode": "constant", "do_normalize": True, "image_mean": 0.5, "image_std": 0.5, "do_rescale": True,
         "rescale_factor": 1 / 255, "patch_size": {"height": patch, "width": patch}},
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    tensors = dict(_tensors(rng, vocab=vocab, hidden=hidden, layers=layers, patch=patch))
    named = {(v5_name(name) if layout == "v5" else name): value for name, value in tensors.items()}
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})
    return path


def write_marked_pieces(path: Path) -> Tokenizer:
    """tokenizer.json and tokenizer_config.json: scored pieces, with every mark among them, of which two are added."""
    document = json.loads(trained_pieces("unigram").to_str())
    pieces = [[piece, 0.0 if score > -259 else score] for piece, score in document["model"]["vocab"]]  # control, bytes
    document["model"]["vocab"] = pieces + [[mark, 0.0] for mark in MARKS]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    end = len(pieces) + MARKS.index("|ENDOFTEXT|")
    document["added_tokens"] = [{"id": 0, "content": "<unk>", **flags}, {"id": end, "content": MARKS[-1], **flags}]
    document["post_processor"] = None
    (path / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    write_json(
        path / "tokenizer_config.json",
        {"add_bos_token": False, "add_eos_token": False, "bos_token": "|ENDOFTEXT|", "eos_token": "|ENDOFTEXT|",
         "unk_token": "<unk>", "clean_up_tokenization_spaces": False, "model_max_length": 16384, "pad_token": None,
         "processor_class": "FuyuProcessor", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer"},
    )  # fmt: skip
    return Tokenizer.from_file(str(path / "tokenizer.json"))


def v5_name(name: str) -> str:
    """The name that transformers 5 gives the tensor that the hub calls `name`."""
    name = name.removeprefix("language_model.")
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else f"model.{name}"


def _tensors(
    rng: np.random.Generator, *, vocab: int, hidden: int, layers: int, patch: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Name (as on the hub) and float32 value of every tensor."""

    def normal(*shape: int, std: float | None = None) -> np.ndarray:
        scale = std if std is not None else 1.4 / np.sqrt(shape[-1])
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def affine(name: str, n_out: int, n_in: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", normal(n_out, n_in)
        yield f"{name}.bias", normal(n_out, std=0.1)

    def norm(name: str, n: int) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{name}.weight", (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)
        yield f"{name}.bias", normal(n, std=0.1)

    yield from affine("vision_embed_tokens", hidden, 3 * patch**2)
    yield "language_model.model.embed_tokens.weight", normal(vocab, hidden, std=0.5)
    for i in range(layers):
        block = f"language_model.model.layers.{i}"
        yield from norm(f"{block}.input_layernorm", hidden)
        yield from norm(f"{block}.post_attention_layernorm", hidden)
        yield from affine(f"{block}.self_attn.query_key_value", 3 * hidden, hidden)
        yield from affine(f"{block}.self_attn.dense", hidden, hidden)
        yield from norm(f"{block}.self_attn.q_layernorm", hidden // HEADS)
        yield from norm(f"{block}.self_attn.k_layernorm", hidden // HEADS)
        yield from affine(f"{block}.mlp.dense_h_to_4h", INTER, hidden)
        yield from affine(f"{block}.mlp.dense_4h_to_h", hidden, INTER)
    yield from norm("language_model.model.final_layernorm", hidden)
    yield "language_model.lm_head.weight", normal(vocab, hidden, std=0.15)
