"""Grammars of answers in the engine: compiled beside the steps, with a matcher for each answer and masks for a step."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher

from model.engine.plan import FailureCode, RequestError
from model.engine.sampling.logits_processors import BITS
from tokenization.chat.grammar import CompiledGrammar
from tokenization.structured.vocabulary import LIMITS, STEP_SECONDS, Effort, GrammarVocabulary
from tokenization.text.tokenizer import Tokenizer

MOST_THREADS = 4  # that fill the masks of one step
CODE: FailureCode = "structured_output"
MAX_REMEMBERED = 1024  # forms whose steps were too expensive
_TOO_EXPENSIVE = f"a step of it takes more than {STEP_SECONDS * 1000:.0f} ms"
_MEASURED_STEPS = 32  # in which masks are filled one by one, after some that were late together


class Forms:
    """Made by the first grammar, with all that it takes. Threads may compile while steps go on."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, threads: int) -> None:
        """vocab_size: rows of the logits; threads: that compute."""
        self.vocabulary = GrammarVocabulary(tokenizer, vocab_size)
        self._threads = max(1, min(threads, MOST_THREADS))
        self._executor = LLExecutor(self._threads)
        self._raw = np.empty((0, 0), np.int32)  # masks with the bit of the end
        self._n_measured = 0  # steps to come in which each mask is measured by itself
        self._expensive: OrderedDict[bytes, None] = OrderedDict()  # digests

    def start(self, grammar: CompiledGrammar, ends: tuple[int, ...], salt: bytes = b"") -> "AnswerForm":
        """Compiles it. ends: ids that end the answer; salt: of those who may learn from each other's forms.

        Raises RequestError for a grammar that cannot be compiled, or whose steps were too expensive before.

        Nothing of it is kept: copies of a matcher share the states of its lexer, and so what one request's answers use
        up of them would end another's.
        """
        digest = hashlib.sha256(salt + grammar.source.encode()).digest()
        if digest in self._expensive:
            raise _not_held(_TOO_EXPENSIVE)
        matcher = LLMatcher(self.vocabulary.compiled, grammar.source, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise _not_held(_said(matcher))
        ends = tuple(token for token in ends if 0 <= token < self.vocabulary.vocab_size)
        return AnswerForm(self, matcher, self.vocabulary.mask(grammar.marks), ends, digest)

    def fill(self, forms: Sequence["AnswerForm"], out: np.ndarray) -> None:
        """The masks of these forms, int32 [n, words]; bit i of a row is id i. An empty one cannot go on."""
        if len(self._raw) < len(forms):
            self._raw = np.empty((2 * len(forms), self.vocabulary.vocab_size // 32 + 1), np.int32)
        raw = self._raw[: len(forms)]
        if len(forms) == 1 or self._threads == 1 or self._n_measured:
            self._n_measured = max(0, self._n_measured - 1)
            for i, form in enumerate(forms):
                form.write_mask(raw.ctypes.data + i * raw.strides[0], raw.strides[0])
        else:
            begun = time.perf_counter()
            pairs = [(form.matcher, i) for i, form in enumerate(forms) if not form.effort.too_much]
            self._executor.unsafe_compute_mask_ptr(pairs, raw.ctypes.data, raw.strides[0], len(raw))
            if time.perf_counter() - begun > STEP_SECONDS:  # whose it was is seen when they are looked at one by one
                self._n_measured = _MEASURED_STEPS
        words, end = self.vocabulary.words, self.vocabulary.end
        for i, form in enumerate(forms):
            row = out[i]
            np.bitwise_and(raw[i, :words], form.drawable, out=row)
            if form.effort.too_much or form.matcher.is_error():
                row[:] = 0
            elif raw.item(i, end >> 5) >> (end & 31) & 1:
                for token in form.ends:
                    row[token >> 5] |= BITS[token & 31]

    def remember(self, digest: bytes) -> None:
        """A form that was ended for its time is not begun again."""
        self._expensive[digest] = None
        if len(self._expensive) > MAX_REMEMBERED:
            self._expensive.popitem(last=False)


class AnswerForm:
    """Where one answer stands in its grammar. It goes on through preemptions, as the answer's tokens do."""

    def __init__(
        self, forms: Forms, matcher: LLMatcher, drawable: np.ndarray, ends: tuple[int, ...], digest: bytes
    ) -> None:
        """drawable: int32 [words], a bit for each id that is text, or a mark; ends: ids that end the answer."""
        self.forms, self.matcher, self.drawable, self.ends, self._digest = forms, matcher, drawable, ends, digest
        self.effort = Effort()

    @property
    def accepts_nothing(self) -> bool:
        """Whether an answer may end where this one stands; before its first token: whether an empty one fits."""
        return bool(self.matcher.is_accepting())

    def fresh(self) -> "AnswerForm":
        """The same for another answer to this prompt, that has no token yet."""
        return AnswerForm(self.forms, self.matcher.deep_copy(), self.drawable, self.ends, self._digest)

    def add(self, token: int) -> None:
        """What the matcher does not take, or takes too long over, leaves the next mask empty."""
        if token not in self.ends and not self.effort.too_much:
            begun = time.thread_time()
            self.matcher.consume_token(token)
            self.effort.add(time.thread_time() - begun)

    def write_mask(self, address: int, nbytes: int) -> None:
        """The matcher's mask, with the bit of the end; nothing where its steps were too expensive."""
        if not self.effort.too_much:
            begun = time.thread_time()
            self.matcher.unsafe_compute_mask_ptr(address, nbytes)
            self.effort.add(time.thread_time() - begun)

    def refusal(self, excluded: Collection[int], allowed: Collection[int]) -> RequestError | None:
        """Why the answer got no token, if its form and its request's rules are why.

        excluded: ids that those rules or the model take away; allowed: all that they leave, where that is not all.
        """
        if self.effort.too_much:
            self.forms.remember(self._digest)
            return _not_held(_TOO_EXPENSIVE)
        mask = np.empty((1, self.forms.vocabulary.words), np.int32)
        self.forms.fill([self], mask)
        if self.matcher.is_error():
            return RequestError(f"the form of the answer could not be held on: {_said(self.matcher)}", CODE)
        left = {i for i, bit in enumerate(np.unpackbits(mask.view(np.uint8), bitorder="little").tolist()) if bit}
        left -= set(excluded)
        if left and (not allowed or left & set(allowed)):
            return None
        return RequestError("the form of the answer and the request's other rules leave no token", CODE)


def _not_held(why: str) -> RequestError:
    return RequestError(f"the form of the answer cannot be held: {why}", CODE)


def _said(matcher: LLMatcher) -> str:
    return matcher.get_error().strip().partition("\n")[0][:200] or "it exceeds its limits"
