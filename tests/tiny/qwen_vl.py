"""A tiny checkpoint of the original Qwen-VL that always gives the same answer: a chain of tokens, whatever it is asked.

No layer adds anything to the embeddings, and the head sends each token of the chain to the next one. The answer's
tokens are entries of the vocabulary, so that it may hold any text.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from model.families.qwen_vl.vocabulary import IM_END, IMG, SPECIAL
from tests.tiny.qwen2_vl import write_json

HIDDEN, WIDTH, INTER = 128, 32, 64


def write_qwen_vl(path: Path, answer: Sequence[str], *, sees: bool = True) -> Path:
    """The directory as the hub's is. `answer`: words that become one token each, or names of special tokens.

    No token comes twice. With `sees` false it is the text-only Qwen.
    """
    path.mkdir(parents=True, exist_ok=True)
    words = [piece.encode() for piece in answer if piece not in SPECIAL]
    tokens = [bytes([byte]) for byte in range(256)] + words
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    (path / "qwen.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    ids = {name: len(tokens) + i for i, name in enumerate(SPECIAL)}
    chain = [
        ord("\n"),
        *(ids[piece] if piece in ids else tokens.index(piece.encode()) for piece in answer),
        ids[IM_END],
    ]
    if len(set(chain)) < len(chain):
        raise ValueError("a chain of tokens cannot come back to one of them")
    vocab = len(tokens) + len(SPECIAL) + 3
    config: dict[str, Any] = {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "hidden_size": HIDDEN, "kv_channels": 32,
        "intermediate_size": 2 * INTER, "num_attention_heads": 4, "num_hidden_layers": 1, "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 10000, "seq_length": 2048, "max_position_embeddings": 8192, "vocab_size": vocab,
        "no_bias": True, "use_dynamic_ntk": True, "use_logn_attn": True, "torch_dtype": "float32",
    }  # fmt: skip
    if sees:
        config["visual"] = {
            "heads": 2, "image_size": 56, "image_start_id": ids[IMG], "layers": 1, "mlp_ratio": 2.0,
            "output_dim": HIDDEN, "patch_size": 14, "width": WIDTH,
        }  # fmt: skip
    write_json(path / "config.json", config)
    generation = {"chat_format": "chatml", "eos_token_id": ids["<|endoftext|>"], "max_window_size": 6144}
    write_json(path / "generation_config.json", generation)
    save_file(_tensors(chain, vocab, sees), path / "model.safetensors", metadata={"format": "pt"})
    return path


def _tensors(chain: Sequence[int], vocab: int, sees: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        values: np.ndarray = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return values.astype(np.float32)

    embed = normal(vocab, HIDDEN)
    head = np.zeros((vocab, HIDDEN), np.float32)
    for token, following in zip(chain, chain[1:], strict=False):
        head[following] = 10 * embed[token]
    block = "transformer.h.0."
    found = {
        "transformer.wte.weight": embed,
        "lm_head.weight": head,
        "transformer.ln_f.weight": np.ones(HIDDEN, np.float32),
        f"{block}ln_1.weight": np.ones(HIDDEN, np.float32),
        f"{block}ln_2.weight": np.ones(HIDDEN, np.float32),
        f"{block}attn.c_attn.weight": normal(3 * HIDDEN, HIDDEN),
        f"{block}attn.c_attn.bias": normal(3 * HIDDEN),
        f"{block}attn.c_proj.weight": np.zeros((HIDDEN, HIDDEN), np.float32),
        f"{block}mlp.w1.weight": normal(INTER, HIDDEN),
        f"{block}mlp.w2.weight": normal(INTER, HIDDEN),
        f"{block}mlp.c_proj.weight": np.zeros((HIDDEN, INTER), np.float32),
    }
    return found | (_vision_tensors(normal) if sees else {})


def _vision_tensors(normal: Any) -> dict[str, np.ndarray]:
    visual = "transformer.visual."
    block, pool = f"{visual}transformer.resblocks.0.", f"{visual}attn_pool."
    found = {
        f"{visual}conv1.weight": normal(WIDTH, 3, 14, 14),
        f"{visual}positional_embedding": normal(256, WIDTH),
        f"{visual}proj": normal(HIDDEN, HIDDEN),
        f"{pool}query": normal(256, HIDDEN),
        f"{pool}pos_embed": normal(256, HIDDEN),
        f"{pool}kv_proj.weight": normal(HIDDEN, WIDTH),
        f"{pool}attn.in_proj_weight": normal(3 * HIDDEN, HIDDEN),
        f"{pool}attn.in_proj_bias": normal(3 * HIDDEN),
        f"{block}attn.in_proj.weight": normal(3 * WIDTH, WIDTH),
        f"{block}attn.in_proj.bias": normal(3 * WIDTH),
        f"{block}attn.out_proj.weight": normal(WIDTH, WIDTH),
        f"{block}attn.out_proj.bias": normal(WIDTH),
        f"{block}mlp.c_fc.weight": normal(2 * WIDTH, WIDTH),
        f"{block}mlp.c_fc.bias": normal(2 * WIDTH),
        f"{block}mlp.c_proj.weight": normal(WIDTH, 2 * WIDTH),
        f"{block}mlp.c_proj.bias": normal(WIDTH),
        f"{pool}attn.out_proj.weight": normal(HIDDEN, HIDDEN),
        f"{pool}attn.out_proj.bias": normal(HIDDEN),
    }
    norms = [(f"{visual}ln_pre", WIDTH), (f"{block}ln_1", WIDTH), (f"{block}ln_2", WIDTH)]
    norms += [(f"{pool}ln_q", HIDDEN), (f"{pool}ln_kv", HIDDEN), (f"{visual}ln_post", HIDDEN)]
    for name, width in norms:
        found |= {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}
    return found
