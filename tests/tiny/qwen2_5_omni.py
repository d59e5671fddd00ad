"""Tiny random Qwen2.5-Omni checkpoints: both towers, the decoder, and a little of what speaks."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.tiny.qwen2_5_vl import HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, SECTIONS, VISION, WIDTH, tower_tensors
from tests.tiny.qwen2_audio import AUDIO, audio_tensors, extractor
from tests.tiny.qwen2_vl import qwen2_vl_tensors, write_json, write_tokenizer

OmniLayout = Literal["hub", "thinker", "v5"]
N_WINDOW = 20  # half a chunk of frames
SECONDS = 300  # what published sound is padded to
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>", "<|VIDEO|>",
]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = {
    "image_token": "<|IMAGE|>", "audio_token": "<|AUDIO|>", "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>", "vision_eos_token": "<|vision_eos|>", "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip


def write_qwen2_5_omni(
    path: Path, *, layout: OmniLayout = "hub", tied: bool = False, seed: int = 0, n_window: int = N_WINDOW
) -> Path:
    """A complete directory of 230 k parameters.

    layout: "hub" is the whole model with the thinker inside, "thinker" that part alone as the hub names it, "v5" that
    part alone as transformers 5 names it.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(
        path, special=SPECIAL, template=TEMPLATE, settings={"extra_special_tokens": TOKENS, **TOKENS}
    )
    vocab = tokenizer.get_vocab_size() + 3  # as on the hub, the model has more rows than the tokenizer has entries
    thinker = thinker_config(tokenizer, vocab, layout, tied=tied, n_window=n_window)
    if layout == "hub":
        thinker = {
            "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "torch_dtype": "float32",
            "enable_audio_output": True, "thinker_config": thinker,
        }  # fmt: skip
    write_json(path / "config.json", thinker)
    end, turn = (tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|im_end|>"))
    write_json(
        path / "generation_config.json",
        {"bos_token_id": end, "eos_token_id": [end, turn], "pad_token_id": end, "do_sample": True},
    )
    write_json(
        path / "preprocessor_config.json",
        {**extractor(SECONDS), "dither": 0.0, "processor_class": "Qwen2_5OmniProcessor",
         "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2,
         "temporal_patch_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
         "image_std": [0.26862954, 0.26130258, 0.27577711], "min_pixels": 3136, "max_pixels": 28 * 28 * 1280},
    )  # fmt: skip
    tensors = {disk_name(name, layout): value for name, value in omni_tensors(vocab, tied=tied, seed=seed).items()}
    if layout == "hub":
        tensors |= {
            "talker.codec_head.weight": np.zeros((3, 5), np.float32),
            "talker.model.layers.0.mlp.up_proj.weight": np.zeros((3, 5), np.float32),
            "token2wav.code2wav_dit_model.norm_out.linear.bias": np.zeros(4, np.float32),
        }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def thinker_config(
    tokenizer: Tokenizer, vocab: int, layout: OmniLayout, *, tied: bool, n_window: int
) -> dict[str, Any]:
    """The keys of the thinker."""
    text: dict[str, Any] = {
        "model_type": "qwen2_5_omni_text", "hidden_size": HIDDEN, "intermediate_size": INTER, "hidden_act": "silu",
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": vocab, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "use_sliding_window": False,
    }  # fmt: skip
    if layout == "v5":
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": SECTIONS}
        text["tie_word_embeddings"] = True  # the class's default, which does not count
    else:
        text["rope_scaling"] = {"mrope_section": SECTIONS, "rope_type": "default", "type": "default"}
        text["rope_theta"] = 1e6
    channels = "in_channels" if layout == "v5" else "in_chans"
    vision = {**VISION, channels: 3, "model_type": "qwen2_5_omni_vision_encoder", "tokens_per_second": 25}
    audio = {**AUDIO, "model_type": "qwen2_5_omni_audio_encoder", "n_window": n_window, "output_dim": HIDDEN}
    ids = {
        "audio_token_index": "<|AUDIO|>", "image_token_index": "<|IMAGE|>", "video_token_index": "<|VIDEO|>",
        "audio_start_token_id": "<|audio_bos|>", "audio_end_token_id": "<|audio_eos|>",
        "vision_start_token_id": "<|vision_bos|>", "vision_end_token_id": "<|vision_eos|>",
        "bos_token_id": "<|im_start|>", "eos_token_id": "<|im_end|>", "pad_token_id": "<|endoftext|>",
    }  # fmt: skip
    return {
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"], "model_type": "qwen2_5_omni_thinker",
        "torch_dtype": "float32", "position_id_per_seconds": 25, "seconds_per_chunk": 2, "user_token_id": 872,
        "tie_word_embeddings": tied, "text_config": text, "vision_config": vision, "audio_config": audio,
        **{key: tokenizer.token_to_id(token) for key, token in ids.items()},
    }  # fmt: skip


def omni_tensors(vocab: int, *, tied: bool, seed: int) -> dict[str, np.ndarray]:
    """Name, as the networks have it, and float32 value of every tensor of the thinker; its towers' q, k, v apart."""
    rng = np.random.default_rng(seed)
    decoder = qwen2_vl_tensors(
        rng, vocab=vocab, hidden=HIDDEN, inter=INTER, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, width=WIDTH,
        depth=0, tied=tied,
    )  # fmt: skip
    tensors = {name: value for name, value in decoder if not name.startswith("visual.")}
    for name, value in tower_tensors(rng):
        if ".attn.qkv." in name:
            parts = np.split(value, 3)
            tensors.update({name.replace("qkv", part): parts[i].copy() for i, part in enumerate("qkv")})
        else:
            tensors[name] = value
    tensors.update(audio_tensors(rng, norm="ln_post"))
    width = AUDIO["d_model"]
    tensors["audio_tower.proj.weight"] = (rng.standard_normal((HIDDEN, width)) / np.sqrt(width)).astype(np.float32)
    tensors["audio_tower.proj.bias"] = (0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
    tensors["audio_tower.audio_bos_eos_token.weight"] = rng.standard_normal((2, HIDDEN)).astype(np.float32)
    return tensors


def disk_name(name: str, layout: OmniLayout) -> str:
    """The name on disk of the tensor that the networks call `name`."""
    if layout == "thinker":
        return name
    if layout == "hub":
        return f"thinker.{name}"
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name.startswith("lm_head.") else f"model.{name}"
