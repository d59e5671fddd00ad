"""Tiny random Qwen2-Audio checkpoints, and the tensors of an audio tower."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tiny.qwen2_vl import Layout, qwen2_vl_tensors, write_json, write_tokenizer

HIDDEN, INTER, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 4
AUDIO: dict[str, Any] = {
    "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "max_source_positions": 150, "activation_function": "gelu", "scale_embedding": False,
}  # fmt: skip
SECONDS = 3  # of the longest clip: two frames of 10 ms to a position
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|en|>",
]  # fmt: skip
TEMPLATE = (
    "{% set audio_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
    "{% if 'audio' in content or 'audio_url' in content or message['type'] == 'audio' or content['type'] == 'audio' %}"
    "{% set audio_count.value = audio_count.value + 1 %}"
    "Audio {{ audio_count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def extractor(seconds: int) -> dict[str, Any]:
    """What preprocessor_config.json says of sound; `seconds` is what clips are padded to."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": AUDIO["num_mel_bins"], "hop_length": 160,
        "n_fft": 400, "sampling_rate": 16000, "chunk_length": seconds, "n_samples": seconds * 16000,
        "nb_max_frames": seconds * 100, "padding_side": "right", "padding_value": 0.0, "return_attention_mask": True,
    }  # fmt: skip


def write_qwen2_audio(path: Path, *, layout: Layout = "hub", seed: int = 0) -> Path:
    """A complete directory of 140 k parameters; `layout` is that of the tensor names and of the rope in the config."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(path, special=SPECIAL, template=TEMPLATE)
    vocab = tokenizer.get_vocab_size() + 3  # as on the hub, the model has more rows than the tokenizer has entries
    end, turn = (tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>"))
    text: dict[str, Any] = {
        "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": vocab, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192, "bos_token_id": end, "eos_token_id": turn,
    }  # fmt: skip
    if layout == "hub":
        text |= {"rope_theta": 10000, "use_mrope": False, "sliding_window": 32768}
    else:
        text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config: dict[str, Any] = {
        "architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio", "torch_dtype": "float32",
        "audio_token_index": tokenizer.token_to_id("<|AUDIO|>"), "ignore_index": -100,
        "audio_config": {"model_type": "qwen2_audio_encoder", **AUDIO}, "text_config": text,
    }  # fmt: skip
    write_json(path / "config.json", config)
    write_json(
        path / "generation_config.json",
        {"bos_token_id": end, "eos_token_id": [end, turn], "pad_token_id": end, "do_sample": True,
         "temperature": 0.7, "top_p": 0.5, "top_k": 20, "repetition_penalty": 1.1},
    )  # fmt: skip
    write_json(path / "preprocessor_config.json", {**extractor(SECONDS), "processor_class": "Qwen2AudioProcessor"})
    rng = np.random.default_rng(seed)
    decoder = qwen2_vl_tensors(
        rng, vocab=vocab, hidden=HIDDEN, inter=INTER, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, width=32,
        depth=0, tied=False,
    )  # fmt: skip
    tensors = {name: value for name, value in decoder if not name.startswith("visual.")}
    tensors.update(audio_tensors(rng, norm="layer_norm"))
    tensors["audio_tower.embed_positions.weight"] = _normal(rng, AUDIO["max_source_positions"], 32, std=0.3)
    tensors.update(_affine(rng, "multi_modal_projector.linear", HIDDEN, 32))
    named = {(v5_name if layout == "v5" else hub_name)(name): value for name, value in tensors.items()}
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})
    return path


def hub_name(name: str) -> str:
    """The hub's name of the tensor that the networks call `name`."""
    return f"language_model.{name}" if name.startswith(("model.", "lm_head.")) else name


def v5_name(name: str) -> str:
    """The name that transformers 5 gives the tensor that the networks call `name`."""
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else f"model.{name}"


def audio_tensors(rng: np.random.Generator, *, norm: str) -> Iterator[tuple[str, np.ndarray]]:
    """Name and float32 value of the tensors that all audio towers of these sizes have; `norm` is their last norm."""
    width, inter = AUDIO["d_model"], AUDIO["encoder_ffn_dim"]
    for name, n_in in (("conv1", AUDIO["num_mel_bins"]), ("conv2", width)):
        yield f"audio_tower.{name}.weight", _normal(rng, width, n_in, 3, std=1.4 / np.sqrt(3 * n_in))
        yield f"audio_tower.{name}.bias", _normal(rng, width, std=0.3)
    for i in range(AUDIO["encoder_layers"]):
        block = f"audio_tower.layers.{i}"
        yield from _norm(rng, f"{block}.self_attn_layer_norm", width)
        yield from _norm(rng, f"{block}.final_layer_norm", width)
        yield f"{block}.self_attn.k_proj.weight", _normal(rng, width, width)
        for name in ("q_proj", "v_proj", "out_proj"):
            yield from _affine(rng, f"{block}.self_attn.{name}", width, width)
        yield from _affine(rng, f"{block}.fc1", inter, width)
        yield from _affine(rng, f"{block}.fc2", width, inter)
    yield from _norm(rng, f"audio_tower.{norm}", width)


def _normal(rng: np.random.Generator, *shape: int, std: float | None = None) -> np.ndarray:
    scale = std if std is not None else 1.4 / np.sqrt(shape[-1])
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def _affine(rng: np.random.Generator, name: str, n_out: int, n_in: int) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{name}.weight", _normal(rng, n_out, n_in, std=1 / np.sqrt(n_in))
    yield f"{name}.bias", _normal(rng, n_out, std=0.1)


def _norm(rng: np.random.Generator, name: str, width: int) -> Iterator[tuple[str, np.ndarray]]:
    yield f"{name}.weight", (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)
    yield f"{name}.bias", _normal(rng, width, std=0.05)
