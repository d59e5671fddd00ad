"""A tiny checkpoint made to say given texts: its answer is a chain, in which each token has one that follows it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from tests.tiny.qwen2_vl import write_json

SHORTEST = 4  # a network of 64 dimensions tells so many tokens apart
LOUD = 2000.0  # the logit of what follows; a bias of 100 chooses where nothing does


def made_to_say(path: Path, texts: Sequence[str], end: str, special: Sequence[str] = ()) -> list[int]:
    """Change a checkpoint with a head of its own: it goes on with a text whose first token was drawn, up to `end`.

    Returns the id of each text's first token, for `logit_bias`. Nothing else of a prompt is heeded. special: marks in
    the texts that are special tokens of the vocabulary; behind one all texts go on alike.
    """
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens(list(special))
    taken = set(special)
    marks: set[str] = set()  # that a text before has
    pieces = []
    for text in texts:
        begun = next((text[: text.index(mark) + len(mark)] for mark in marks if mark in text), text)
        pieces.append(_pieces(begun, special, taken))
        marks |= {mark for mark in special if mark in text}
    new = [piece for one in pieces for piece in one if piece not in special]
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in new])
    tokenizer.save(str(path / "tokenizer.json"))
    n = tokenizer.get_vocab_size()
    vocabulary = tokenizer.get_vocab()
    chains = [[vocabulary[piece] for piece in one] for one in pieces]
    ends = vocabulary[end]
    follows: dict[int, int] = {}
    for chain in chains:
        for token, after in zip(chain, [*chain[1:], ends], strict=True):
            follows.setdefault(token, after)
    config = json.loads((path / "config.json").read_text())
    (config["text_config"] if "vocab_size" in config.get("text_config", {}) else config)["vocab_size"] = n
    write_json(path / "config.json", config)
    save_file(_chained(load_file(path / "model.safetensors"), n, follows), path / "model.safetensors", {"format": "pt"})
    return [chain[0] for chain in chains]


def _pieces(text: str, special: Sequence[str], taken: set[str]) -> list[str]:
    """The text in pieces of SHORTEST characters and more, none of which was taken before."""
    found: list[str] = []
    for part in re.split(f"({'|'.join(map(re.escape, special))})" if special else "$^", text):
        if part in special:
            found.append(part)
            continue
        pieces = []
        while part:
            n = SHORTEST
            while part[:n] in taken and n < len(part):
                n += 1
            pieces.append(part[:n])
            part = part[n:]
            while pieces[-1] in taken:  # the last one, when nothing is left to lengthen it
                last = pieces.pop()
                taken.discard(pieces[-1])
                pieces[-1] += last
            taken.add(pieces[-1])
        found += pieces
    return found


def _chained(tensors: dict[str, np.ndarray], n: int, follows: dict[int, int]) -> dict[str, np.ndarray]:
    """Layers that add nothing, so that logits depend on the last token alone; tokens outside the chain are silent."""
    (embed,), (head,), (norm,) = (
        [name for name in tensors if name.endswith(f"{end}.weight") and ".layers." not in name and "vision" not in name]
        for end in ("embed_tokens", "lm_head", "model.norm")
    )
    hidden = tensors[embed].shape[1]
    rng = np.random.default_rng(0)
    embeddings = np.zeros((n, hidden), np.float32)
    embeddings[:, hidden - 1] = 1.0
    for token in follows:
        embeddings[token] = [*rng.standard_normal(hidden - 1), 0.0]
    seen = embeddings / np.sqrt(np.mean(embeddings**2, axis=1, keepdims=True))  # behind the last norm
    wanted = np.zeros((n, n), np.float32)
    for token, after in follows.items():
        wanted[token, after] = LOUD
    chain = list(follows)
    logits = np.ascontiguousarray(np.linalg.lstsq(seen[chain], wanted[chain], rcond=None)[0].T, np.float32)
    found = seen[chain] @ logits.T
    assert all(
        int(np.argmax(row + 100 * rng.random(n))) == follows[token] for token, row in zip(chain, found, strict=True)
    )
    changed = dict(tensors)
    for name, value in tensors.items():
        if "vision" not in name and "visual" not in name and name.endswith(("o_proj.weight", "down_proj.weight")):
            changed[name] = np.zeros_like(value)
    return {**changed, embed: embeddings, head: logits, norm: np.ones(hidden, np.float32)}
