"""Requests whose answers are held to a form: compiled as a worker does, and run by an engine."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from model.engine.sampling.answer_form import AnswerForm
from model.engine.sampling.forms import Forms
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, Parts, engine_at, picture
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import GrammarVocabulary
from tokenization.text.detokenize import whole_text

DRAWN = SamplingParams(max_tokens=48, temperature=1.0, seed=5)
TEXT: Parts = ["one two three, four five six"]
PICTURE: Parts = ["look: ", picture(120, 90, 1), "what is in this image?"]
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])"
# Its steps are expensive behind some 70 letters.
AMBIGUOUS = CompiledGrammar(
    source=json.dumps({"grammars": [{"lark_grammar": """%llguidance {"no_forcing": true}
start: e
e: "a" | e "a" | e e "a" | "a" e | e "a" e | e e e"""}]})
)  # fmt: skip


def children(pid: int) -> list[int]:
    """Processes whose parent it is, and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


class Held:
    """Compiles as a worker does, and runs requests."""

    def __init__(self, harness: EngineHarness, model: MultimodalLM) -> None:
        self.harness, self.model = harness, model
        self.tokenizer = harness.processor.tokenizer
        self.end = self.tokenizer.special["<|im_end|>"]
        self._vocabulary = GrammarVocabulary(self.tokenizer, self.tokenizer.vocab_size)

    def between_entries(self) -> None:
        self.harness.between_entries()

    def form(self, kind: Any, source: str) -> CompiledGrammar:
        return compiled(Grammar(kind=kind, source=source, param="x"), self._vocabulary)

    def engine(self, **settings: Any) -> Engine:
        return engine_at(self.model, self.harness.root, checkpoint=self.harness.checkpoint, **settings)

    def asked(self, name: str, grammar: CompiledGrammar | None, parts: Parts = TEXT, **changes: Any) -> Generate:
        sampling = msgspec.structs.replace(DRAWN, stop_token_ids=(self.end,), **changes)
        return msgspec.structs.replace(self.harness.prepare(name, parts, sampling), grammar=grammar)

    def answers(self, engine: Engine, *requests: Generate) -> list[list[int]]:
        """The tokens of each request's first answer."""
        for request in requests:
            self.harness.submit(engine, request)
        self.harness.run(engine)
        self.harness.assert_clean(engine)
        return [self.harness.tokens(request.request_id) for request in requests]

    def text(self, tokens: list[int]) -> str:
        return whole_text(self.tokenizer, [token for token in tokens if token != self.end])

    def failure(self, request: Generate, engine: Engine | None = None) -> tuple[str, str]:
        """(code, message) of a request that must fail."""
        self.answers(engine or self.engine(), request)
        finished = self.harness.finished[request.request_id]
        assert finished.reason == "failed"
        return finished.code, finished.message


END = 5
MIB = 1 << 20


def of_lark(rules: str) -> CompiledGrammar:
    top = '%llguidance {"no_forcing": true}\n'
    return CompiledGrammar(source=json.dumps({"grammars": [{"lark_grammar": top + rules}]}))


WORD = of_lark("start: /[ab]{2,900}/")


def begun(forms: Forms, grammar: CompiledGrammar = WORD, client: int = 0) -> AnswerForm:
    form = forms.hold(grammar, (END,), client)
    form.begin()
    return form


def masks(forms: Forms, *wanted: AnswerForm) -> list[list[int]]:
    """The ids that each may go on with."""
    out = np.empty((len(wanted), -(-forms.vocab_size // 32)), np.int32)
    assert forms.fill(wanted, out) == []
    return [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in out]


def server_of(forms: Forms) -> int:
    assert forms._server is not None
    return forms._server._process.pid


def until(holds: Callable[[], bool], forms: Forms | None = None) -> None:
    """forms: which are asked meanwhile."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        if forms is None:
            time.sleep(0.01)
        else:
            forms.wait()
