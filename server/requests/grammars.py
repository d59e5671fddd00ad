"""Grammars of answers in the server: a worker compiles each once, and the server keeps the latest."""

import asyncio
import hashlib
from collections import Counter, OrderedDict

from server.children.replies import NobodyUp
from server.children.workers import WorkerDied, WorkerPool
from server.requests.refusal import internal, invalid_request, unavailable
from server.requests.request import CacheSalts, ChatRequest
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Compile, Compiled, PrepareFailed
from tokenization.text.tokenizer import Tokenizer

ATTEMPTS = 2  # a worker compiles in a process of its own: that it died was hardly the grammar's fault
MOST_KNOWN = 256
MOST_BYTES = 32 << 20  # of those that are known

KnownGrammar = CompiledGrammar | PrepareFailed


class Grammars:
    """Knows by content what a grammar was compiled to, or why it was refused. The latest used are kept.

    Where there is no room, forms of the client that has most are evicted: new forms are cheap to invent, and each form
    of another client that they displaced would wait for a worker again.

    Requests with another salt share nothing: what is known is quicker, so that its time tells who asked before.
    """

    def __init__(self, workers: WorkerPool, tokenizer: Tokenizer, salts: CacheSalts) -> None:
        self._workers, self._leading_blanks, self._salts = workers, tokenizer.leading_blanks, salts
        self._asked: dict[bytes, asyncio.Task[KnownGrammar]] = {}  # by key: of a worker, once for all who wait
        self._waiting: Counter[bytes] = Counter()  # for each of these
        self._known: OrderedDict[bytes, KnownGrammar] = OrderedDict()
        self._owners: dict[bytes, str] = {}  # of each of these, the client that asked for it last
        self._bytes = 0

    async def compiled(self, request: ChatRequest, grammar: Grammar) -> CompiledGrammar:
        """A worker may be asked: who awaits it has a place. Raises Refusal."""
        chat = request.chat
        goes_on = isinstance(chat, RawPrompt) or chat.continue_final_message
        blanks = 0 if goes_on else self._leading_blanks  # as the detokenizer leaves them out
        key = _key(grammar, blanks, self._salts.of(request))
        if (found := self._known.get(key)) is None:
            found = await self._asked_once(key, request, grammar, blanks)
            if isinstance(found, PrepareFailed) and found.kind == "unavailable":
                raise unavailable(found.message, "no_process")
            if isinstance(found, PrepareFailed) and found.kind != "bad_request":
                raise internal("the form of the answer could not be compiled")
            if isinstance(found, CompiledGrammar) or found.code != "took_too_long":  # a busy machine may be why
                self._keep(key, found, request.context.client)
        else:
            self._known.move_to_end(key)
            self._owners[key] = request.context.client
        if isinstance(found, PrepareFailed):
            raise invalid_request(found.message, grammar.param, found.code)
        return found

    async def _asked_once(self, key: bytes, request: ChatRequest, grammar: Grammar, blanks: int) -> KnownGrammar:
        """For all who want the same now; who leaves ends it where nobody else waits. Raises Refusal, to each."""
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self._ask(request, grammar, blanks))
        task = self._asked[key]
        self._waiting[key] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._asked[key]
                task.cancel()

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
        raise internal("the form of the answer could not be compiled: two workers died of it", "worker_died")

    def _keep(self, key: bytes, found: KnownGrammar, client: str) -> None:
        if key in self._known:  # another request asked for it meanwhile
            return
        self._known[key], self._owners[key] = found, client
        self._bytes += _size(found)
        while len(self._known) > MOST_KNOWN or self._bytes > MOST_BYTES:
            self._displace()

    def _displace(self) -> None:
        """The oldest one of the client that takes most: of bytes, and of places as bytes."""
        taken = Counter[str]()
        for key, found in self._known.items():
            taken[self._owners[key]] += _size(found) + MOST_BYTES // MOST_KNOWN
        ((most, _),) = taken.most_common(1)
        oldest = next(key for key in self._known if self._owners[key] == most)
        self._bytes -= _size(self._known.pop(oldest))
        del self._owners[oldest]


def _size(found: KnownGrammar) -> int:
    return len(found.source if isinstance(found, CompiledGrammar) else found.message)


def _key(grammar: Grammar, blanks: int, salt: bytes) -> bytes:
    facts = salt + f"{grammar.kind} {grammar.strict} {blanks} {grammar.marks}\n".encode()
    return hashlib.sha256(facts + grammar.source.encode("utf-8", "surrogatepass")).digest()
