"""Several prompts of one body: answered together, refused together, ended together."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from model.engine.messages import Generate
from server.request_context import RequestContext
from server.requests.prompts import AT_A_TIME, Speller, Spellings
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import EmitDouble, Scene, prepared, until
from tests.server.scenario import A, B, Play
from tests.server.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Compiled, Encode, Prepared, PrepareFailed
from tokenization.text.bpe import BPETokenizer


def prompts(*texts: str, n: int = 1) -> list[ChatRequest]:
    return [
        ChatRequest(
            id=f"r-{i}",
            chat=RawPrompt(text=text),
            chat_param=f"prompt[{i}]",
            sampling=SamplingRequest(n=n),
            stream=True,
        )
        for i, text in enumerate(texts)
    ]


def started(
    scene: Scene, requests: list[ChatRequest], seen: Callable[[Sequence[Prepared]], None] = lambda _: None
) -> "tuple[asyncio.Task[None], EmitDouble]":
    emitted = EmitDouble()
    return asyncio.create_task(scene.service.run(requests, emitted, seen)), emitted


def names_to_engine(scene: Scene) -> set[str]:
    return {said.request_id for said in scene.to_engine() if isinstance(said, Generate)}


def test_answers_of_all_prompts_go_one_way(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        seen: list[int] = []
        task, emitted = started(
            scene, prompts("Hi", "you", n=2), lambda found: seen.extend(len(one.input_ids) for one in found)
        )
        await until(lambda: len(scene.to_worker()) == 1)
        assert scene.to_worker()[0] == Encode(request_id="r-0", text="Hi")
        scene.workers.slots[0].on_message(prepared("r-0", 3))
        await until(lambda: len(scene.to_worker()) == 2)
        await asyncio.sleep(0.01)
        assert not scene.to_engine() and not seen, "the first one waits: the second may still be refused"
        scene.workers.slots[0].on_message(prepared("r-1", 4))
        await until(lambda: names_to_engine(scene) == {"r-0", "r-1"})
        assert seen == [3, 4] and scene.service.admission.n_active == 2
        scene.say("r-1", B)
        await until(lambda: emitted.deltas)
        assert emitted.deltas[0].index == 2
        assert emitted.prepared is not None and len(emitted.prepared.input_ids) == 4, "that of its own prompt"
        task.cancel()
        await asyncio.wait({task})
        assert scene.service.admission.n_active == 0

    play(scenario)


def test_ids_need_no_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        request = ChatRequest(id="r", chat=RawPrompt(ids=(5, 6)), chat_param="prompt", sampling=SamplingRequest())
        task, emitted = started(scene, [request])
        await until(lambda: names_to_engine(scene) == {"r"})
        assert scene.to_worker() == []
        told = scene.to_engine()[-1].prepared
        assert told.input_ids.tolist() == [5, 6] and told.positions.tolist() == [[0, 1]] * 3
        scene.say("r", A, finish="length")
        await task
        assert emitted.deltas[-1].finish == "length"

    play(scenario)


def test_one_refusal_ends_all(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, emitted = started(scene, prompts("Hi", "you"))
        await until(lambda: len(scene.to_worker()) == 1)
        scene.workers.slots[0].on_message(prepared("r-0", 3))
        await until(lambda: len(scene.to_worker()) == 2)
        failed = PrepareFailed(request_id="r-1", kind="bad_request", message="too long")
        scene.workers.slots[0].on_message(failed)
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.param, caught.value.message) == ("prompt[1]", "too long")
        assert not emitted.deltas and not scene.to_engine() and scene.service.admission.n_active == 0

    play(scenario)


def test_a_drain_that_runs_out_of_time_is_said(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = started(scene, prompts("Hi", "you"))
        await until(lambda: scene.service.admission.n_active == 2)
        await scene.service.admission.drain(0.01)
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.code == "stopping"

    play(scenario)


@each_of("texts", [("Hi",), ("Hi", "you")])
def test_a_drain_lets_a_body_go_on_whose_form_is_compiled(play: Play, texts: tuple[str, ...]) -> None:
    """The form is made once for all prompts, and each has its place from the start."""

    async def scenario(scene: Scene) -> None:
        grammar = Grammar(kind="regex", source="a", param="structured_outputs.regex")
        asked = [replace(one, grammar=grammar) for one in prompts(*texts)]
        task, emitted = started(scene, asked)
        await until(lambda: scene.to_worker())
        drain = asyncio.create_task(scene.service.admission.drain(60.0))
        await until(lambda: scene.service.admission.draining)
        assert scene.service.admission.n_active == len(texts)
        form = CompiledGrammar(source="compiled")
        scene.workers.slots[0].on_message(Compiled(request_id="r-0", grammar=form))
        for i, text in enumerate(texts):
            await until(lambda i=i: task.done() or len(scene.to_worker()) == i + 2)  # type: ignore[misc]
            assert not task.done() and scene.to_worker()[-1] == Encode(request_id=f"r-{i}", text=text)
            scene.workers.slots[0].on_message(prepared(f"r-{i}", 3))
        await until(lambda: len(names_to_engine(scene)) == len(texts))
        assert {said.grammar.source for said in scene.to_engine()} == {"compiled"}
        for one in asked:
            scene.say(one.id, A, finish="stop")
        await task
        await drain
        assert [delta.finish for delta in emitted.deltas] == ["stop"] * len(texts)

    play(scenario)


def test_a_prompt_that_is_never_taken_makes_nobody_give_way(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        theirs = [replace(one, context=RequestContext(client="one")) for one in prompts("a", "b", "c", "d")]
        waiting, _ = started(scene, theirs)
        await until(lambda: scene.service.admission.n_active == 4)
        context, sampling = RequestContext(client="two"), SamplingRequest(max_tokens=2)
        both = [
            ChatRequest(
                id=f"r-{i}", chat=RawPrompt(ids=ids), chat_param=f"prompt[{i}]", sampling=sampling, context=context
            )
            for i, ids in enumerate([(1,), (999_999,)])
        ]
        task, _ = started(scene, both)
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.param == "prompt[1]"
        assert not waiting.done() and scene.service.admission.n_active == 4, "nobody gave way"
        waiting.cancel()
        await asyncio.wait({waiting})

    play(scenario)


def test_bad_words_are_spelled_once_for_all_prompts(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        spelled: list[str] = []
        encode = scene.service.card.tokenizer.encode

        def seen(text: str) -> list[int]:
            spelled.append(text)
            return encode(text)

        monkeypatch.setattr(scene.service.card.tokenizer, "encode", seen)
        sampling = SamplingRequest(bad_words=["cat"], max_tokens=2)
        both = [
            ChatRequest(id=f"r-{i}", chat=RawPrompt(ids=(i,)), chat_param=f"prompt[{i}]", sampling=sampling)
            for i in range(2)
        ]
        task, _ = started(scene, both)
        await until(lambda: names_to_engine(scene) == {"r-0", "r-1"})
        first, second = (said.sampling for said in scene.to_engine())
        assert spelled == ["cat", " cat"] and first.bad_words is second.bad_words
        assert first.seed != second.seed and first.max_tokens == 2, "each prompt draws for itself"
        task.cancel()
        await asyncio.wait({task})

    play(scenario)


def test_a_body_that_asks_for_too_much_reaches_nobody(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        sampling = SamplingRequest(n=8, logprobs=True, top_logprobs=20)
        scored = [replace(one, echoes=True, sampling=sampling) for one in prompts(*["x" * 900] * 9)]
        task, _ = started(scene, scored)
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.code == "asks_too_much"
        assert not scene.to_worker() and not scene.to_engine() and scene.service.admission.n_active == 0

    play(scenario)


def test_a_body_is_counted_again_when_its_prompts_are_known(play: Play) -> None:
    """A character may be several tokens."""

    async def scenario(scene: Scene) -> None:
        sampling = SamplingRequest(n=8, logprobs=True, top_logprobs=20, max_tokens=1)
        scored = [replace(one, echoes=True, sampling=sampling) for one in prompts(*["x" * 9] * 4)]
        card = scene.service.card
        scene.service.card = replace(card, limits=replace(card.limits, tokens=1 << 20))
        seen: list[object] = []
        task, _ = started(scene, scored, seen.extend)
        for i in range(4):
            await until(lambda i=i: len(scene.to_worker()) == i + 1)  # type: ignore[misc]
            scene.workers.slots[0].on_message(prepared(f"r-{i}", 990))
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.code, caught.value.param) == ("asks_too_much", "echo")
        assert not seen and not scene.to_engine() and scene.service.admission.n_active == 0

    play(scenario)


# ---- bad words


def spellings(words: list[str], tokenizer: BPETokenizer, param: str = "bad_words") -> Spellings:
    return asyncio.run(Speller(tokenizer).spell(words, param))


def test_a_word_is_spelled_with_and_without_a_blank(tokenizer: BPETokenizer) -> None:
    for word in ("cat", " cat", "  cat", "\tcat"):
        assert spellings([word], tokenizer) == tuple(tuple(tokenizer.encode(text)) for text in ("cat", " cat"))
    assert spellings(["cat", " cat"], tokenizer) == spellings(["cat"], tokenizer)
    assert spellings([], tokenizer) == ()


def test_a_blank_behind_a_word_is_part_of_it(tokenizer: BPETokenizer) -> None:
    assert spellings(["cat "], tokenizer)[0] == tuple(tokenizer.encode("cat "))


def test_a_special_token_is_only_a_word(tokenizer: BPETokenizer) -> None:
    special = set(tokenizer.special.values())
    for ids in spellings(["<|im_end|>"], tokenizer):
        assert len(ids) > 1 and not special & set(ids)


def test_a_word_without_ids_of_its_own_is_named(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> list[int]:
        if text == "cat":
            raise ChatError("no ids")
        return [1]

    monkeypatch.setattr(tokenizer, "encode", refuse)
    with pytest.raises(Refusal) as caught:
        spellings([*"abcdefghi", "cat"], tokenizer, "parameters.bad_words")
    assert (caught.value.param, caught.value.message) == ("parameters.bad_words[9]", "no ids")


def test_two_bodies_share_the_thread(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with few words does not wait until all of another's are spelled."""
    order: list[str] = []
    encode = tokenizer.encode

    def seen(text: str) -> list[int]:
        assert threading.current_thread() is not threading.main_thread()
        order.append(text)
        return encode(text)

    async def run() -> tuple[Spellings, Spellings]:
        speller = Speller(tokenizer)
        return await asyncio.gather(
            speller.spell([f"many{i}" for i in range(10 * AT_A_TIME)], "b"), speller.spell(["few"], "b")
        )

    monkeypatch.setattr(tokenizer, "encode", seen)
    many, few = asyncio.run(run())
    assert len(many) == 20 * AT_A_TIME and len(few) == 2
    assert order.index("few") <= 4 * AT_A_TIME
