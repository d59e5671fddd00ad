"""A second rank does what rank 0 does, from nothing but what comes by its link."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from model.engine import engine as engines
from model.engine.encoding import dealt
from model.engine.messages import PromptScored
from model.engine.plan import Plan
from model.engine.sequence import EncoderInput
from model.net.multimodal import MultimodalLM
from shm import Channel, ChannelClosed
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, picture
from tests.model.engine.ranks.ranked import Ranked, ranked
from tests.model.engine.test_runner import ONE, RULES, TEXT, TWO
from tests.model.staging.late import Late, _Pending
from tests.tables import each_of

pytestmark = pytest.mark.network

LONG = msgspec.structs.replace(GREEDY, max_tokens=40)


def submit(harness: EngineHarness, engine: Any, name: str) -> None:
    """Pictures by their handles, answers that share blocks, a scored prompt, rules."""
    scored = msgspec.structs.replace(harness.prepare(f"scored{name}", TEXT, RULES), scores_prompt=True)
    one, two = harness.prepare(f"a{name}", ONE, LONG), harness.prepare(f"b{name}", TWO, RULES)
    for generate in (one, two, scored):
        harness.submit(engine, generate)


def assert_alike(both: Ranked) -> None:
    """The cache, and which embeddings there are: all that a forward pass reads beside its batch."""
    both.first.let_go(Plan(chunks=(), freed=(("nobody", 0),)))  # comes after all that was sent before
    both.close()
    assert both.first.embeddings.keys() == both.second.embeddings.keys()
    mine, theirs = both.caches
    for (k, v), (other_k, other_v) in zip(mine, theirs, strict=True):
        assert torch.equal(k, other_k) and torch.equal(v, other_v)


WAYS = {"whole": (2048, 4096, ("data", "replicated")), "cut": (7, 4096, ("data",)),
        "preempted": (64, 208, ("data", "replicated"))}  # fmt: skip


@each_of("way", WAYS)
def test_a_second_rank_computes_every_step(model: MultimodalLM, harness: EngineHarness, way: str) -> None:
    tokens, kv_tokens, modes = WAYS[way]
    limits: dict[str, Any] = {"tokens": tokens, "kv_tokens": kv_tokens, "max_model_len": min(kv_tokens, 1024)}
    alone = engine_at(model, harness.root, **limits)
    submit(harness, alone, "alone")
    harness.run(alone)
    for encoders in modes:
        with ranked(model, harness.root, **limits, encoder_parallel=encoders) as both:
            n_steps, n_encodes, n_shared = count_steps(both)
            submit(harness, both.engine, encoders)
            harness.run(both.engine)
            assert both.link.n_broadcasts == n_steps() >= 40, "one broadcast a step"
            assert both.link.n_exchanges == n_encodes() >= 1, "one exchange of outcomes in steps that encode"
            assert both.meeting.n_gathers == (n_shared() if encoders == "data" else 0)
            assert (n_shared() > 0) == (tokens > 7)
            harness.assert_clean(both.engine)
            assert (both.engine.stats.preemptions > 0) == (kv_tokens < 4096)
            assert_alike(both)
        for name in ("a", "b", "scored"):
            found = [[(e.index, e.token) for e in harness.events[f"{name}{of}"]] for of in ("alone", encoders)]
            assert found[0] == found[1] != []


def count_steps(both: Ranked) -> tuple[Any, Any, Any]:
    """How many steps rank 0 has launched from now on; of these, that encoded; and that encoded several media."""
    runner, seen = both.first, list[Plan]()
    launch = runner.launch

    def counted(plan: Plan, batch: Any) -> Any:
        seen.append(plan)
        return launch(plan, batch)

    runner.launch = counted  # type: ignore[method-assign]

    def encoded(least: int) -> int:
        return sum(len(plan.encodes) >= least for plan in seen)

    return lambda: len(seen), lambda: encoded(1), lambda: encoded(2)


def test_no_pixels_go_from_one_rank_to_another(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that is sent, by either one, nothing is as long as a picture's array or has a piece of one."""
    sent, arrays, send, encode = list[bytes](), list[bytes](), Channel._send, MultimodalLM.encode

    def sending(channel: Channel[Any], header: bytes, body: bytes) -> None:
        sent.append(bytes(body))
        send(channel, header, body)

    def encoding(self: MultimodalLM, kind: str, given: Any, grids: Any) -> Any:
        arrays.extend(array.numpy().tobytes() for array in given)
        return encode(self, kind, given, grids)

    monkeypatch.setattr(Channel, "_send", sending)
    monkeypatch.setattr(MultimodalLM, "encode", encoding)
    with ranked(model, harness.root, tokens=2048) as both:
        harness.submit(both.engine, harness.prepare("two", TWO, LONG))
        harness.run(both.engine)
        assert both.link.n_exchanges == both.meeting.n_gathers == 1
        assert len(sent) == both.link.n_broadcasts + 2, "each step once, and the exchange there and back"
    said = b"".join(sent)
    for array in arrays:
        pieces = {array[at : at + 48] for at in range(0, len(array) - 48, 48)}
        assert len(pieces) > 50 and not any(piece in said for piece in pieces)
    assert len(arrays) == 2 and max(map(len, sent)) < min(map(len, arrays))


def test_a_step_waits_once_and_on_another_rank_for_nothing(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device that runs behind the host, in steps that encode, too; a step without tokens waits for nothing."""
    streams = list[Late]()

    def opened(device: torch.device) -> Late:
        streams.append(Late())
        return streams[-1]

    monkeypatch.setattr(engines, "open_streams", opened)
    monkeypatch.setattr(_Pending, "done", lambda self: True)  # of copies: the tokens alone are waited for
    with ranked(model, harness.root, tokens=64) as both:
        waits, collect = list[tuple[int, bool]](), both.first.collect

        def collected(step: Any) -> Any:
            before = streams[0].waits
            outcome = collect(step)
            waits.append((streams[0].waits - before, step.sampled is not None or any(step.scores)))
            return outcome

        both.first.collect = collected  # type: ignore[method-assign]
        submit(harness, both.engine, "1")
        harness.run(both.engine)
        assert both.link.n_exchanges > 0 and both.meeting.n_gathers > 0
        assert_alike(both)
    assert all(n == wanted for n, wanted in waits) and len(waits) > 40
    assert [one.waits for one in streams] == [sum(n for n, _ in waits), 0]


def test_a_segment_that_one_rank_cannot_read_fails_its_request_on_all(
    model: MultimodalLM, harness: EngineHarness, tmp_path: Path
) -> None:
    """Texts beside it go on, and no rank has embeddings that another one lacks."""
    with ranked(model, harness.root, others_root=tmp_path, tokens=2048) as both:
        for generate in (harness.prepare("picture", ONE, LONG), harness.prepare("text", TEXT, LONG)):
            harness.submit(both.engine, generate)
        harness.run(both.engine)
        finished = harness.finished["picture"]
        assert (finished.reason, finished.code) == ("failed", "media_unavailable")
        assert len(harness.tokens("text")) == 40 and not harness.read.get("picture")
        harness.assert_clean(both.engine)
        assert_alike(both)


@each_of("encoders", ["data", "replicated"])
@each_of("rank", [0, 1])
def test_a_tower_that_refuses_on_one_rank_fails_its_request_on_all(
    model: MultimodalLM, harness: EngineHarness, rank: int, encoders: Any
) -> None:
    """Its neighbour in the same step is repeated alone, or made elsewhere, and answered.

    The large one is the share of rank 0 where there are shares: then rank 1 never has it.
    """
    with ranked(model, harness.root, tokens=2048, encoder_parallel=encoders) as both:
        runner = both.second if rank else both.first
        failing = Refusing(model, n_patches=len(model_input(harness, "probe", ONE)))
        runner._encoder._model = failing  # type: ignore[assignment]
        harness.submit(both.engine, harness.prepare("large", ONE, LONG))
        harness.submit(both.engine, harness.prepare("small", [picture(60, 70, 2), "what"], LONG))
        harness.run(both.engine)
        asked = encoders == "replicated" or rank == 0
        finished = harness.finished["large"]
        assert (finished.reason, finished.code) == (("failed", "internal") if asked else ("done", ""))
        assert harness.finished["small"].reason == "done" and len(harness.tokens("small")) == 40
        assert (failing.n_refused > 0) == asked
        harness.assert_clean(both.engine)
        assert_alike(both)


class Refusing:
    """A model whose tower has no memory for pictures of one size."""

    def __init__(self, model: MultimodalLM, n_patches: int) -> None:
        self._model, self._n_patches, self.n_refused = model, n_patches, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode(self, kind: str, arrays: Any, grids: Any) -> Any:
        if any(len(array) == self._n_patches for array in arrays):
            self.n_refused += 1
            raise torch.OutOfMemoryError("planted")
        return self._model.encode(kind, arrays, grids)


def model_input(harness: EngineHarness, name: str, parts: Parts) -> range:
    """As long as the array of its one picture."""
    (item,) = harness.prepare(name, parts).prepared.media
    harness.drop(name)
    t, h, w = item.grid
    return range(t * h * w)


def test_it_ends_with_rank_0(model: MultimodalLM, harness: EngineHarness) -> None:
    with ranked(model, harness.root) as both:
        both.engine.capture_graphs()
        harness.submit(both.engine, harness.prepare("a", TEXT))
        harness.run(both.engine)
        both.close()
        assert isinstance(both.error, ChannelClosed) and both.captured == 1
        assert both.follower.progress is None
    assert not any(isinstance(one, PromptScored) for one in harness.events)


def test_media_are_dealt_out_evenly_and_alike() -> None:
    sizes = [5, 90, 40, 45, 1]
    items = [
        EncoderInput(key=("a", i), kind="image", grid=(1, 2, 2), spans=((0, n),), segment=None, nbytes=0)
        for i, n in enumerate(sizes)
    ]
    shares = dealt(items, 2)
    assert [[item.n_tokens for item in share] for share in shares] == [[90, 1], [45, 40, 5]]
    assert [len(share) for share in dealt(items, 8)] == [1] * 5 + [0] * 3
