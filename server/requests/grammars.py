"""Grammars of answers in the server: a worker compiles each once, and the server keeps the latest."""

import hashlib
from collections import OrderedDict

from server.children.replies import NobodyUp
from server.children.workers import WorkerDied, WorkerPool
from server.requests.admission import Admission
from server.requests.refusal import Refusal, internal, invalid_request, unavailable
from server.requests.request import ChatRequest
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Compile, Compiled, PrepareFailed
from tokenization.text.tokenizer import Tokenizer

ATTEMPTS = 2  # a worker compiles in a process of its own: that it died was hardly the grammar's fault
MOST_KNOWN = 256
MOST_BYTES = 32 << 20  # of those that are known

KnownGrammar = CompiledGrammar | PrepareFailed


class Grammars:
    """Knows by content what a grammar was compiled to, or why it was refused. The latest used are kept."""

    def __init__(self, workers: WorkerPool, tokenizer: Tokenizer, admission: Admission) -> None:
        self._workers, self._leading_blanks, self._admission = workers, tokenizer.leading_blanks, admission
        self._known: OrderedDict[bytes, KnownGrammar] = OrderedDict()
        self._bytes = 0

    async def compiled(self, request: ChatRequest, grammar: Grammar) -> CompiledGrammar:
        """Raises Refusal."""
        chat = request.chat
        goes_on = isinstance(chat, RawPrompt) or chat.continue_final_message
        blanks = 0 if goes_on else self._leading_blanks  # as the detokenizer leaves them out
        key = _key(grammar, blanks)
        if (found := self._known.get(key)) is None:
            with self._admission.enter(request.context):  # who waits for a worker is inside, and has its place
                found = await self._ask(request, grammar, blanks)
            if isinstance(found, PrepareFailed) and found.kind != "bad_request":
                raise internal("the form of the answer could not be compiled")
            if isinstance(found, CompiledGrammar) or found.code != "took_too_long":  # a busy machine may be why
                self._keep(key, found)
        else:
            self._known.move_to_end(key)
        if isinstance(found, PrepareFailed):
            raise invalid_request(found.message, grammar.param, found.code)
        return found

    async def _ask(self, request: ChatRequest, grammar: Grammar, blanks: int) -> KnownGrammar:
        message = Compile(request_id=request.id, grammar=grammar, blanks=blanks)
        for _ in range(ATTEMPTS):
            try:
                job = await self._workers.begin(message, request.context.client)
                try:
                    (answer,) = await job.next()
                finally:
                    self._workers.cancel(job)
            except NobodyUp:
                raise unavailable("no worker came up in time", "workers_down", retry_after=10) from None
            except WorkerDied:
                continue
            assert isinstance(answer, Compiled | PrepareFailed)
            return answer.grammar if isinstance(answer, Compiled) else answer
        raise dead(grammar)

    def _keep(self, key: bytes, found: KnownGrammar) -> None:
        if key in self._known:  # another request asked for it meanwhile
            return
        self._known[key] = found
        self._bytes += _size(found)
        while len(self._known) > MOST_KNOWN or self._bytes > MOST_BYTES:
            self._bytes -= _size(self._known.popitem(last=False)[1])


def dead(grammar: Grammar) -> Refusal:
    return invalid_request("two workers died while they compiled it", grammar.param, "structured_output")


def _size(found: KnownGrammar) -> int:
    return len(found.source if isinstance(found, CompiledGrammar) else found.message)


def _key(grammar: Grammar, blanks: int) -> bytes:
    facts = f"{grammar.kind} {grammar.strict} {blanks} {grammar.marks}\n".encode()
    return hashlib.sha256(facts + grammar.source.encode("utf-8", "surrogatepass")).digest()
