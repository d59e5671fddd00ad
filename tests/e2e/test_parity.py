"""Answers over HTTP against transformers: the tokens and log-probabilities of a mixed batch sent at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from configs.checkpoint import Checkpoint
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer
from tests.engine.host import data_url, host_at
from tests.parity.harness import load_hf, load_ours
from tests.parity.test_qwen2_engine import MARGIN, MEMBERS, N, Parts, Reference, reference_of
from tokenization.text import TextCodec

NAMES = ("text", "one", "three", "twenty")  # text first, then more and more pictures
ROUTES = ("/chat", "/v1/chat/completions")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": N, "ignore_eos": True, "logprobs": True}


def references_of(path: Path, root: Path) -> tuple[dict[str, Reference], dict[str, int]]:
    """What transformers answers to each member alone, and the length of its prompt; from the files of `path`."""
    hf, ours = load_hf(path), load_ours(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    banned = sorted({*ours.pad_ids.values(), *ours.placeholder_ids})
    references, lengths = {}, {}
    with host_at(path, root) as host:
        for name in NAMES:
            generate = host.prepare(name, MEMBERS[name])
            lengths[name] = len(generate.input_ids)
            references[name] = reference_of(hf, path, generate, MEMBERS[name], host.root, banned)
            host.pool.retire(name)
            host.pool.settle(name)
    return references, lengths


def body_of(route: str, parts: Parts) -> dict[str, Any]:
    """The same chat as each route spells it."""
    inputs: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            inputs.append({"text": part})
            content.append({"type": "text", "text": part})
        elif isinstance(part, Image.Image):
            inputs.append({"image": data_url(part)})
            content.append({"type": "image_url", "image_url": {"url": data_url(part)}})
    if route == "/chat":
        return {"inputs": inputs, "parameters": GREEDY}
    return {"messages": [{"role": "user", "content": content}], **GREEDY}


def answers_of(server: RunningServer) -> dict[tuple[str, str], Any]:
    """Every member over every route, all at once; the body of the answer by name and route."""
    keys = [(name, route) for name in NAMES for route in ROUTES]

    def ask(key: tuple[str, str]) -> Any:
        answer = httpx.post(server.url + key[1], json=body_of(key[1], MEMBERS[key[0]]), timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with ThreadPoolExecutor(len(keys)) as pool:
        return dict(zip(keys, pool.map(ask, keys), strict=True))


def compare(entries: list[Any], reference: Reference, codec: TextCodec, what: str) -> int:
    """Compare step by step for as long as the reference is sure of itself; the number of steps compared.

    By bytes: an answer holds no ids, and ids without a vocabulary entry have no bytes, so that for them only the
    log-probability tells.
    """
    assert len(entries) == N
    logprobs = reference.logits.log_softmax(-1)
    for i, (entry, token) in enumerate(zip(entries, reference.tokens, strict=True)):
        if reference.margins[i] <= MARGIN:
            return i  # either of the two best would be right; from here on the histories may differ
        assert bytes(entry["bytes"]) == codec.token_bytes(token), f"{what}: token {i}"
        assert entry["logprob"] == pytest.approx(logprobs[i, token].item(), abs=1e-3), f"{what}: token {i}"
    return N


def test_a_mixed_batch_over_both_routes_is_what_transformers_says(
    tiny_model: Path, tmp_path: Path, start: Start
) -> None:
    references, lengths = references_of(tiny_model, tmp_path / "reference")
    codec = TextCodec.from_checkpoint(Checkpoint(tiny_model))
    assert len({tuple(reference.tokens) for reference in references.values()}) == len(NAMES), "each tells its own"
    with start("--dtype", "float32") as server:
        answers = answers_of(server)
        server.assert_nothing_held()
    compared = []
    for (name, route), body in answers.items():
        answer = body if route == "/chat" else body["choices"][0]
        assert body["usage"]["prompt_tokens"] == lengths[name], f"{name} over {route}"
        assert answer["finish_reason"] == "length"
        compared.append(compare(answer["logprobs"]["content"], references[name], codec, f"{name} over {route}"))
    assert sum(compared) >= 0.75 * N * len(compared), f"the reference is too unsure: {compared}"
