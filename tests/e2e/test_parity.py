"""Answers over HTTP against transformers: the tokens and log-probabilities of a mixed batch sent at once."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from configs.checkpoint import Checkpoint
from tests.e2e.running import RunningServer
from tests.model.engine.engine_harness import data_url, engine_harness_at
from tests.parity import test_audio_engine as hearing
from tests.parity.engine_check import MARGIN, N, Parts, Reference, Setup, never_sampled, prepared_one_by_one
from tests.parity.harness import load_hf, load_ours
from tests.parity.test_qwen2_engine import MEMBERS, reference_of
from tokenization.chat.parts import Media
from tokenization.text.bpe import BPETokenizer

pytestmark = pytest.mark.process

NAMES = ("text", "one", "three", "twenty")  # text first, then more and more pictures
HEARD = ("text", "audios", "talkie", "image_talkie_audio", "audio_video_image")
ROUTES = ("/chat", "/v1/chat/completions")
GREEDY: dict[str, Any] = {
    "temperature": 0, "max_tokens": N, "ignore_eos": True, "logprobs": True, "repetition_penalty": 1,
}  # fmt: skip


def references_of(path: Path, root: Path, names: Sequence[str] = NAMES) -> dict[str, Reference]:
    """What transformers answers to each member alone; from the files of `path`."""
    hf, ours = load_hf(path), load_ours(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    hf.generation_config.repetition_penalty = None
    banned = never_sampled(ours)
    with engine_harness_at(path, root) as host:
        prepared = prepared_one_by_one(host, {name: MEMBERS[name] for name in names})
        return {name: reference_of(hf, path, found, MEMBERS[name], host.root, banned) for name, found in prepared}


def heard_references(
    path: Path, root: Path, names: Sequence[str] = HEARD
) -> tuple[dict[str, Parts], dict[str, Reference]]:
    """The same of members with sounds, and the members."""
    members = {name: hearing.MEMBERS["qwen2_5_omni"][name] for name in names}
    hf = load_hf(path)
    hf.generation_config.eos_token_id = None
    hf.generation_config.repetition_penalty = None
    setup = Setup(path, load_ours(path), {name: hearing.plain(parts) for name, parts in members.items()}, {})
    with engine_harness_at(path, root) as host:
        for name, generate in prepared_one_by_one(host, setup.members):
            setup.references[name] = hearing.reference_of(hf, setup, name, generate, members[name], host)
    return dict(setup.members), setup.references


def options_of(part: Media) -> dict[str, Any]:
    """What stands beside a medium, as a client writes it."""
    options = part.options
    found = {"fps": options.fps, "min_pixels": options.min_pixels, "use_audio_in_video": options.use_audio or None}
    return {name: value for name, value in found.items() if value is not None}


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
        elif isinstance(part, Media):
            options = options_of(part)
            inputs.append({part.kind: part.source, **options})
            content.append({"type": f"{part.kind}_url", f"{part.kind}_url": {"url": part.source, **options}})
    if route == "/chat":
        return {"inputs": inputs, "parameters": GREEDY}
    return {"messages": [{"role": "user", "content": content}], **GREEDY}


def answers_of(server: RunningServer, members: Mapping[str, Parts]) -> dict[tuple[str, str], Any]:
    """Every member over every route, all at once; the body of the answer by name and route."""
    keys = [(name, route) for name in members for route in ROUTES]

    def ask(key: tuple[str, str]) -> Any:
        answer = httpx.post(server.url + key[1], json=body_of(key[1], members[key[0]]), timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with ThreadPoolExecutor(len(keys)) as pool:
        return dict(zip(keys, pool.map(ask, keys), strict=True))


def compare(entries: list[Any], reference: Reference, tokenizer: BPETokenizer, what: str) -> int:
    """Compare step by step for as long as the reference is sure of itself; the number of steps compared.

    By bytes: an answer holds no ids, and ids without a vocabulary entry have no bytes, so that for them only the
    log-probability tells.
    """
    assert len(entries) == N
    logprobs = reference.logits.log_softmax(-1)
    for i, (entry, token) in enumerate(zip(entries, reference.tokens, strict=True)):
        if reference.margins[i] <= MARGIN:
            return i  # either of the two best would be right; from here on the histories may differ
        assert bytes(entry["bytes"]) == tokenizer.token_bytes(token), f"{what}: token {i}"
        assert entry["logprob"] == pytest.approx(logprobs[i, token].item(), abs=1e-3), f"{what}: token {i}"
    return N


def check(answers: dict[tuple[str, str], Any], references: dict[str, Reference], path: Path) -> None:
    """All of them over both routes."""
    tokenizer = BPETokenizer.from_checkpoint(Checkpoint(path))
    tokens = {tuple(reference.tokens) for reference in references.values()}
    assert len(tokens) == len(references), "each tells its own"
    compared = []
    for (name, route), body in answers.items():
        answer = body if route == "/chat" else body["choices"][0]
        assert body["usage"]["prompt_tokens"] == references[name].n_prompt, f"{name} over {route}"
        assert answer["finish_reason"] == "length"
        compared.append(compare(answer["logprobs"]["content"], references[name], tokenizer, f"{name} over {route}"))
    assert sum(compared) >= 0.75 * N * len(compared), f"the reference is too unsure: {compared}"


def test_a_mixed_batch_over_both_routes_is_what_transformers_says(
    tiny_model: Path, tmp_path: Path, server: RunningServer
) -> None:
    references = references_of(tiny_model, tmp_path / "reference")
    assert "engine on cpu, float32" in server.out, "as the reference is"
    answers = answers_of(server, {name: MEMBERS[name] for name in NAMES})
    server.assert_nothing_held()
    check(answers, references, tiny_model)


def test_sounds_and_films_with_sound_over_both_routes(omni: RunningServer, tmp_path: Path) -> None:
    path = Path(omni.http.get("/v1/models").json()["data"][0]["root"])
    members, references = heard_references(path, tmp_path / "reference")
    answers = answers_of(omni, members)
    omni.assert_nothing_held()
    check(answers, references, path)
