"""What each mask and each token of very many forms costs: random ones, and ones that are made to cost.

    python -m benchmarks.forms --vocabulary qwen.tiktoken [--random 2000] [--adversarial 200] [--seed 1]

Each form is compiled as the product compiles it, and so may be refused; then an answer is drawn by it at random, as the
engine asks for masks: until the form's steps are too expensive. An answer to a costly form begins with the text that
leads to what costs, and stays there. Each form has a process of its own, which the kernel ends over a step as it ends
that of a client's forms in the engine; what that step took counts. Seconds are the processor's.
"""

import argparse
import contextlib
import itertools
import os
import resource
import signal
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llguidance import LLMatcher

from benchmarks.forms.sources import Form, RandomForms, costly_forms
from model.engine.sampling.form_process import KILL_SECONDS
from model.families.qwen_vl.vocabulary import QwenVLTokenizer, read_ranks
from tokenization.chat.errors import ChatError, shortened
from tokenization.chat.grammar import Grammar
from tokenization.structured.compile import compile_grammar
from tokenization.structured.vocabulary import LIMITS, Effort, GrammarVocabulary
from tokenization.worker_memory import resident_bytes, return_pages

CLOSERS = b'"}]), \n'  # a third of the tokens of an answer begin with one of these, where they may
BOUNDS = 0.02, 0.06
WORST, LARGEST = 10, 5
_STEP = struct.Struct("cd")  # what it is, and seconds or bytes
MASK, TAKEN, GROWTH, EXPENSIVE, LIMITED, LOST, BEGUN = b"m", b"t", b"g", b"e", b"l", b"x", b"b"


@dataclass(slots=True, kw_only=True)
class Steps:
    """What one answer took."""

    form: Form
    compiling: float  # seconds
    of: dict[bytes, list[float]] = field(default_factory=lambda: defaultdict(list))
    ended: bool = False  # by the kernel

    @property
    def longest(self) -> float:
        return max((*self.of[MASK], *self.of[TAKEN]), default=0.0)

    @property
    def growth(self) -> float:
        return max(self.of[GROWTH], default=0.0)

    @property
    def described(self) -> str:
        form = self.form
        size = f"{len(form.text)} characters in front, {len(form.source)} in all"
        source = shortened(form.source.replace(form.text, "TEXT") if len(form.text) > 1 else form.source, 300)
        return f"{form.kind}, {form.name}, {size}: {source!r}"


class FormSteps:
    """Compiles forms and draws answers by them."""

    def __init__(self, vocabulary: Path, tokens: int) -> None:
        """tokens: of an answer, behind the text it begins with."""
        self._tokenizer = QwenVLTokenizer(read_ranks(vocabulary))
        self._vocabulary = GrammarVocabulary(self._tokenizer, self._tokenizer.vocab_size)
        self._n = tokens
        self._bytes = [self._tokenizer.token_bytes(i) for i in range(self._vocabulary.end)]
        self._closers = np.array([word[:1] in CLOSERS for word in self._bytes])
        self.refused: Counter[str] = Counter()
        self.steps: list[Steps] = []

    def look_at(self, form: Form) -> None:
        """What one form's steps take, if it is not refused."""
        began = _seconds(resource.RUSAGE_CHILDREN)
        try:
            compiled = compile_grammar(
                Grammar(kind=form.kind, source=form.source, param=""), self._vocabulary, lambda: None
            )
        except ChatError:
            self.refused[_group(form)] += 1
            return
        steps = Steps(form=form, compiling=_seconds(resource.RUSAGE_CHILDREN) - began)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._child(form, compiled.source, write)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            for what, value in _STEP.iter_unpack(said.read()):
                steps.of[what].append(value)
        _, status, used = os.wait4(pid, 0)
        steps.ended = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
        if steps.ended:
            over = MASK if len(steps.of[MASK]) <= len(steps.of[TAKEN]) else TAKEN
            steps.of[over].append(used.ru_utime + used.ru_stime - steps.of[BEGUN][-1])
        elif status:
            raise SystemExit(f"{steps.described}: the process that drew its answer failed")
        self.steps.append(steps)

    def _child(self, form: Form, source: str, write: int) -> None:
        """Never returns."""
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for what, value in self._drive(form, source):
                os.write(write, _STEP.pack(what, value))
                signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS if what == BEGUN else 0)
            code = 0
        finally:
            os._exit(code)

    def _drive(self, form: Form, source: str) -> Iterator[tuple[bytes, float]]:
        drawn, effort = np.random.default_rng(len(source)), Effort()
        kept = np.array([bool(word) and not word.strip(form.keep.encode()) for word in self._bytes])
        before = self._tokenizer.encode(form.before)
        return_pages()  # else the matcher would take them, and nothing would grow
        had = resident_bytes()
        matcher = LLMatcher(self._vocabulary.compiled, source, log_level=0, limits=LIMITS)
        token: int | None = None
        for i in range(len(before) + self._n):
            if i:  # the first one makes states, and has the time of the compiling
                yield BEGUN, time.thread_time()
            begun = time.thread_time()
            mask = matcher.compute_bitmask()
            yield MASK, (seconds := time.thread_time() - begun)
            effort.add(seconds)
            if matcher.is_error():
                break
            allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: self._vocabulary.end] == 1
            token = before[i] if i < len(before) else self._drawn(allowed, kept, token, drawn)
            if token is None or not allowed[token]:
                yield from [(LOST, 0.0)] if i < len(before) else []
                break
            yield BEGUN, time.thread_time()
            begun = time.thread_time()
            matcher.consume_token(token)
            yield TAKEN, (seconds := time.thread_time() - begun)
            effort.add(seconds)
            if effort.too_much:
                break
        if matcher.is_error() or effort.too_much:
            yield LIMITED if matcher.is_error() else EXPENSIVE, 0.0
        yield GROWTH, resident_bytes() - had

    def _drawn(self, allowed: np.ndarray, kept: np.ndarray, last: int | None, drawn: np.random.Generator) -> int | None:
        """One of the tokens that stay where it costs, half of the time the last again; else one of all."""
        if last is not None and allowed[last] and kept[last] and drawn.random() < 0.5:
            return last
        some = allowed & kept if kept.any() else allowed & self._closers
        tokens = np.flatnonzero(some) if kept.any() or drawn.random() < 1 / 3 else np.array([])
        tokens = tokens if len(tokens) else np.flatnonzero(allowed)
        return int(drawn.choice(tokens)) if len(tokens) else None


def _seconds(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def _group(form: Form) -> str:
    return f"{'random' if form.name == 'random' else 'costly'} {form.kind}"


def report(found: FormSteps) -> None:
    """The tables, as docs/log.md has them."""
    steps = found.steps
    compiled = Counter(_group(one.form) for one in steps)
    print("| forms | compiled | refused |\n|---|---|---|")
    for group in sorted({*compiled, *found.refused}):
        print(f"| {group} | {compiled[group]:,} | {found.refused[group]:,} |")
    print("\n| ms | n | p50 | p99 | p99.9 | largest | within 20 ms | within 60 ms |\n|---|---|---|---|---|---|---|---|")
    for name, what in itertools.product(("random", "costly"), (MASK, TAKEN)):
        taken = np.array([s for one in steps if _group(one.form).startswith(name) for s in one.of[what]] or [0.0])
        shares = " | ".join(f"{np.mean(taken <= bound):.4%}" for bound in BOUNDS)
        p50, p99, p999 = np.percentile(taken, (50, 99, 99.9)) * 1e3
        kind = f"{name}: {'masks' if what == MASK else 'tokens taken'} | {len(taken):,}"
        print(f"| {kind} | {p50:.3f} | {p99:.2f} | {p999:.2f} | {max(taken) * 1e3:.1f} | {shares} |")
    fates = {"the compiler's limits": LIMITED, "their expense": EXPENSIVE, "a text that they do not begin with": LOST}
    ends = (f"{sum(bool(one.of[what]) for one in steps)} by {why}" for why, what in fates.items())
    print(f"\nended: {sum(one.ended for one in steps)} by the kernel, {', '.join(ends)}")
    slowest = max(steps, key=lambda one: one.compiling)
    print(f"slowest to compile: {slowest.compiling:.2f} s: {slowest.described}\n\nthe worst:")
    for one in sorted(steps, key=lambda one: -one.longest)[:WORST]:
        print(f"  {one.longest * 1e3:.1f} ms, {len(one.of[MASK])} masks: {one.described}")
    print("the largest:")
    for one in sorted(steps, key=lambda one: -one.growth)[:LARGEST]:
        print(f"  {one.growth / (1 << 20):.1f} MiB: {one.described}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--random", type=int, default=2_000, help="forms that compile")
    parser.add_argument("--adversarial", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    found = FormSteps(asked.vocabulary, asked.tokens)
    for form in RandomForms(asked.seed):
        if len(found.steps) == asked.random:
            break
        found.look_at(form)
    for form in costly_forms(asked.seed)[: asked.adversarial]:
        found.look_at(form)
    with contextlib.suppress(BrokenPipeError):
        report(found)


if __name__ == "__main__":
    main()
