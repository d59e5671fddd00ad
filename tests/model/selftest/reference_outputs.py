"""Computes what the self-test knows to be right: `python -m tests.model.selftest.reference_outputs` writes it anew.

Operations and angles are written here from their definitions, in numpy's float64 over the stored inputs. The demo
model's log-probabilities are those of transformers in float64. Nothing of model/ops and model/net is asked.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from configs.settings import EMBEDDED_MODEL
from model.selftest.attention_cases import BLOCK, SMALL_SEGMENTS, SMALL_STEP
from model.selftest.cases import Case
from model.selftest.host import random_picture
from model.selftest.known import FILE, IDS, LOGPROBS, label, unknown_cases
from model.selftest.models import KNOWN_SIDE, QUESTION
from tests.parity.harness import load_hf

Array = NDArray[Any]
Given = dict[str, Array]  # float64, or int64
_EPS = 1e-6
_POISON = 25.0  # what the cache held


def main() -> None:
    arrays: Given = {}
    for case in unknown_cases():
        given = drawn(case)
        arrays |= {f"{label(case)}/in/{name}": x for name, x in given.items()}
        wide = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in given.items()}
        for i, found in enumerate(computed(case, wide)):
            arrays[f"{label(case)}/out/{i}"] = found.astype(np.float32)
    ids, logprobs = prompt_logprobs()
    arrays |= {IDS: ids, LOGPROBS: logprobs.astype(np.float32)}
    np.savez_compressed(FILE, **arrays)  # type: ignore[arg-type]  # its stub takes one for `allow_pickle`


def drawn(case: Case) -> Given:
    """Sixteenths, or whole numbers where nothing is computed: the same in each dtype. Angles stay float32."""
    found = {}
    for name, x in case.draw(torch.Generator().manual_seed(1)).items():
        if not x.is_floating_point():
            found[name] = x.numpy()
        elif name in ("cos", "sin"):
            found[name] = x.float().numpy()
        else:
            steps = 1 if case.tolerance == 0 else 16
            found[name] = ((x * steps).round() / steps).to(torch.bfloat16).to(torch.float16).numpy()
    return found


# ---- operations


def computed(case: Case, given: Given) -> Sequence[Array]:
    """In the order of what the operation gives."""
    return _DEFINED[case.op](case, given)


def _rms_norm(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + _EPS) * weight)


def _layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + _EPS) * weight + bias)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _linear(case: Case, given: Given) -> Sequence[Array]:
    bias = given["bias"] if case.name.endswith("bias") else 0
    return [np.einsum("ri,oi->ro", given["x"], given["weight"]) + bias]


def _swiglu(_: Case, given: Given) -> Sequence[Array]:
    gate, up = np.split(given["x"], 2, axis=-1)
    return [gate * _sigmoid(gate) * up]


def _rotary(_: Case, given: Given) -> Sequence[Array]:
    """Dims i and i + dim / 2 are a complex number, which an angle turns."""
    first, second = np.split(given["x"][:, 1], 2, axis=-1)
    cos, sin = (given[name][:, None, : first.shape[-1]] for name in ("cos", "sin"))
    turned = (first + 1j * second) * (cos + 1j * sin)
    return [np.concatenate([turned.real, turned.imag], axis=-1)]


def _attention(query: Array, key: Array, value: Array, seen: Array) -> Array:
    """query [q, heads, d]; key, value [k, kv_heads, d]; seen bool [q, k]: softmax(q k / sqrt(d)) v, head by head."""
    share = query.shape[1] // key.shape[1]
    out = np.empty_like(query)
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // share].T / math.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max()) * seen
        out[:, head] = weights / weights.sum(-1, keepdims=True) @ value[:, head // share]
    return out


def _paged(_: Case, given: Given) -> Sequence[Array]:
    found, row, start = [], 0, 0
    for q, kv in zip(*SMALL_STEP, strict=True):
        seen = np.arange(kv)[None] <= np.arange(kv - q, kv)[:, None]
        keys = slice(start, start + kv)
        found.append(_attention(given["query"][row : row + q], given["key"][keys], given["value"][keys], seen))
        row, start = row + q, start + kv
    return [np.concatenate(found)]


def _segments(_: Case, given: Given) -> Sequence[Array]:
    found = []
    for part in np.split(given["qkv"], np.cumsum(SMALL_SEGMENTS)[:-1]):
        query, key, value = np.moveaxis(part, 1, 0)
        found.append(_attention(query, key, value, np.ones((len(part), len(part)))))
    return [np.concatenate(found)]


def _cross(_: Case, given: Given) -> Sequence[Array]:
    seen = np.ones((len(given["query"]), len(given["key"])))
    return [_attention(given["query"], given["key"], given["value"], seen)]


def _write(_: Case, given: Given) -> Sequence[Array]:
    found = []
    for name in ("key", "value"):
        cache = np.full((4, BLOCK, *given[name].shape[1:]), _POISON)
        for slot, row in zip(given["slots"], given[name], strict=True):
            cache[slot // BLOCK, slot % BLOCK] = row
        found.append(cache)
    return found


def _copy(_: Case, given: Given) -> Sequence[Array]:
    found = []
    for name in ("key", "value"):
        cache = given[name].copy()
        for source, target in zip(given["source"], given["target"], strict=True):
            cache[target] = given[name][source]
        found.append(cache)
    return found


def _rope(_: Case, given: Given) -> Sequence[Array]:
    """Frequency i of a head's half follows time, height or width, by the checkpoint's sections."""
    text = json.loads((EMBEDDED_MODEL / "config.json").read_text())["thinker_config"]["text_config"]
    half = text["hidden_size"] // text["num_attention_heads"] // 2
    row_of = np.repeat(np.arange(3), text["rope_scaling"]["mrope_section"])
    angles = given["positions"][row_of].T * text["rope_theta"] ** (-np.arange(half) / half)
    return [np.tile(f(angles), 2) for f in (np.cos, np.sin)]


_DEFINED: dict[str, Callable[[Case, Given], Sequence[Array]]] = {
    "rms_norm": lambda _, g: [_rms_norm(g["x"], g["weight"])],
    "add_rms_norm": lambda _, g: [_rms_norm(g["x"] + g["residual"], g["weight"]), g["x"] + g["residual"]],
    "layer_norm": lambda _, g: [_layer_norm(g["x"], g["weight"], g["bias"])],
    "add_layer_norm": lambda _, g: [
        _layer_norm(g["x"] + g["residual"], g["weight"], g["bias"]), g["x"] + g["residual"],
    ],
    "linear": _linear,
    "swiglu": _swiglu,
    "quick_gelu": lambda _, g: [g["x"] * _sigmoid(1.702 * g["x"])],
    "gelu": lambda _, g: [g["x"] * (1 + np.vectorize(math.erf)(g["x"] / math.sqrt(2))) / 2],
    "gelu_tanh": lambda _, g: [
        g["x"] * (1 + np.tanh(math.sqrt(2 / math.pi) * (g["x"] + 0.044715 * g["x"] ** 3))) / 2
    ],
    "relu_squared": lambda _, g: [np.where(g["x"] > 0, g["x"], 0) ** 2],
    "rotary": _rotary,
    "plan_attention": _paged,
    "segment_attention": _segments,
    "cross_attention": _cross,
    "write_kv": _write,
    "copy_blocks": _copy,
    "rope": _rope,
}  # fmt: skip


# ---- the demo model


def prompt_logprobs() -> tuple[Array, Array]:
    """ids int64 [n] of the question with its picture, float64 log-probabilities [n - 1] of all but the first."""
    tokenizer = AutoTokenizer.from_pretrained(str(EMBEDDED_MODEL))
    pictures = Qwen2VLImageProcessorPil.from_pretrained(str(EMBEDDED_MODEL))
    seen = pictures(images=[random_picture(KNOWN_SIDE, 1)], return_tensors="pt")
    template = json.loads((EMBEDDED_MODEL / "chat_template.json").read_text())["chat_template"]
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=template, add_generation_prompt=True, tokenize=False
    )
    n_tokens = int(seen["image_grid_thw"].prod()) // 4
    ids = torch.tensor(tokenizer(text.replace("<|IMAGE|>", "<|IMAGE|>" * n_tokens))["input_ids"])
    model = load_hf(EMBEDDED_MODEL, torch.float64)
    with torch.inference_mode():
        said = model(
            input_ids=ids[None], attention_mask=torch.ones_like(ids)[None], use_cache=False,
            pixel_values=seen["pixel_values"].double(), image_grid_thw=seen["image_grid_thw"],
        )  # fmt: skip
    logprobs = said.logits[0, :-1].double().log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    return ids.numpy(), logprobs.numpy()


if __name__ == "__main__":
    main()
