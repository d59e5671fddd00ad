"""Two hundred forms that are made to cost or to break: each is refused or answered, while a second client is served."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import EngineConfig
from model.engine.messages import (
    EnginePulse,
    EngineReady,
    Finished,
    FromEngine,
    Generate,
    SamplingParams,
    StartEngine,
)
from model.registry import family_of
from server.children.processes import Ownership, _exec
from server.http.routes.structured import read_grammar
from server.requests.refusal import Refusal
from server.usage import usage_of
from shm import Channel, Loading, Owner, channel_pair
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer
from tests.hostile.conftest import Held
from tests.hostile.forms import HostileForm, forms
from tests.hostile.measure import Attack
from tests.hostile.posting import BODY_BYTES, JSON, SERVER_BYTES, until_over
from tokenization.cancel import go_on
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import CompiledGrammar
from tokenization.placeholders import text_only
from tokenization.structured.compile import compile_grammar
from tokenization.structured.vocabulary import GrammarVocabulary
from tokenization.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.long, pytest.mark.process]
LATE = 0.5  # seconds that the p99 of the second client may grow by
PULSE = 1.0  # seconds between two beats of the engine, which are 0.5 apart; after 20 it would count as hung
SLOWEST = 40.0  # of one form: 5 s of compiling beside others, on a shared machine


def post(http: httpx.Client, form: HostileForm) -> str | None:
    """What is not as it must be with one form."""
    begun = time.monotonic()
    answer = http.post("/v1/chat/completions", content=form.body, headers=JSON)
    seconds = time.monotonic() - begun
    if seconds > SLOWEST:
        return f"{form.name}: {seconds:.1f} s"
    if answer.status_code == 200:
        finish = answer.json()["choices"][0]["finish_reason"]
        return None if finish in ("stop", "length") else f"{form.name}: ended by {finish}"
    error = answer.json()["error"]
    named = error["code"] in ("invalid_json", "too_many_values") or (error["param"] or "").startswith(
        "structured_outputs"
    )
    fine = answer.status_code == 400 and named and len(answer.content) < 2000
    return None if fine else f"{form.name}: {answer.status_code} {answer.text[:200]}"


def test_others_are_answered_meanwhile(start: Start, held: Held) -> None:
    """One connection asks for one form after the other, as long as is measured and until all were asked for."""
    problems: list[str] = []
    asked: set[str] = set()

    @contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def attack() -> None:
            with httpx.Client(base_url=server.url, timeout=120) as http:
                for form in itertools.cycle(forms()):
                    if over.is_set():
                        break
                    problem = post(http, form)
                    problems.extend([problem] if problem else [])
                    asked.add(form.name)

        with until_over([attack], over):
            yield
            while len(asked) < n_forms and not over.wait(0.5):
                pass

    n_forms = len(list(forms()))
    assert n_forms >= 200
    with start("--workers", "2") as server:
        held(server, Attack(name="forms", go=go, memory_bytes=SERVER_BYTES + BODY_BYTES, more=LATE))
        assert [server.metric(f'child_restarts_total{{role="{role}"}}') for role in ("engine", "worker")] == [0, 0]
        server.assert_nothing_held()
    assert not problems, "\n".join(problems)


def engines_forms(tokenizer: Tokenizer, every: int) -> Iterator[CompiledGrammar]:
    """Each `every`-th form that a worker would hand to an engine."""
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
    for form in itertools.islice(forms(), 0, None, every):
        try:
            grammar = read_grammar(json.loads(form.body))
            assert grammar is not None
            yield compile_grammar(grammar, vocabulary, go_on)
        except (ValueError, RecursionError, Refusal, ChatError):  # the server or its worker refuses it
            continue


def test_the_pulse_of_the_engine_goes_on(tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """An engine alone, with all forms inside at once; heard where a server hears it. None of them may end it."""
    every = 8 if request.config.getoption("--hostile") == "short" else 1
    tokenizer = family_of(found := Checkpoint(tiny_model)).processor(found, 1 << 20).tokenizer
    grammars = list(engines_forms(tokenizer, every))
    ours, theirs = channel_pair()
    with closing(Owner.claim(tmp_path)) as owner, closing(ours):
        owned = Ownership(lock_fd=owner.fileno(), owner_name=owner.name, shm_root=tmp_path)
        process = _exec("engine", owned, theirs)
        theirs.close()
        channel: Channel[FromEngine | Loading] = Channel(ours, FromEngine | Loading)
        engine = EngineConfig(device="cpu", dtype="float32", block_size=16, kv_cache_bytes=4 << 20, max_seqs=16)
        channel.send(StartEngine(checkpoint=str(tiny_model), engine=engine, shm_root=str(tmp_path), max_model_len=512))
        beats, finished = list[tuple[float, float]](), dict[str, Finished]()
        while len(finished) < len(grammars):
            message = channel.recv(60)
            assert message is not None, "the engine says nothing"
            if isinstance(message, EngineReady):
                for i, grammar in enumerate(grammars):
                    prepared = text_only(f"r{i}", tuple(tokenizer.encode("x")))
                    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=i)
                    channel.send(Generate(prepared=prepared, sampling=sampling, grammar=grammar, client=i % 3))
            elif isinstance(message, EnginePulse):
                beats.append((time.monotonic(), usage_of(process.pid).cpu_seconds))
            elif isinstance(message, Finished):
                finished[message.request_id] = message
        channel.close()
        process.communicate(timeout=20)
    # Seconds by the clock, or of the engine's own processor time: a machine that is busy holds up any beat.
    gaps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(beats)]
    longest = max(min(gap) for gap in gaps)
    print(
        f"{len(grammars)} forms, {len(beats)} beats, the longest gap {longest:.2f} s, by the clock {max(gaps)[0]:.2f}"
    )
    assert len(grammars) >= 90 // every and longest < PULSE
    assert {one.reason for one in finished.values()} <= {"done", "failed"}
