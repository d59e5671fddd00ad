"""What a form costs: the host's part of each row beside the library's own call, and tokens a second with and without.

    python -m benchmarks.structured [--rows qwen.tiktoken] [--speed demo|mid] [--batch 1 16] [--rounds 7]

--rows: over Qwen-VL's vocabulary of 151,936. --speed: the demo model, or one of 240 million parameters; the same
requests with a schema and without, in turn, by processor time of this process and by the clock.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.model_speed import checkpoint
from configs.checkpoint import Checkpoint
from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams, StepDone
from model.engine.sampling.forms import Forms
from model.families.qwen_vl.vocabulary import QwenVLTokenizer, read_ranks
from model.registry import family_of
from tests.model.engine.engine_harness import engine_at
from tests.parity.harness import load_ours
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.placeholders import text_only
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import GrammarVocabulary
from tokenization.text.tokenizer import Tokenizer

VOCAB = 151_936
WORD = {"type": "string", "maxLength": 40}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": WORD, "age": {"type": "integer"}}, "required": ["name", "age"]},
    {"type": "array", "items": {"type": "string"}, "minItems": 8},
    {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "number"}}, "minItems": 4},
    {
        "type": "object", "required": ["kind", "zip", "of"], "additionalProperties": False,
        "properties": {
            "kind": {"enum": ["cat", "dog", "other"]}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            "of": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}, "minItems": 5}]},
        },
    },
)  # fmt: skip
LONG = {"type": "array", "items": {"type": "string"}, "minItems": 400}  # no answer of the length asked for ends it


def rows(vocabulary: Path, rounds: int) -> None:
    """Microseconds of a row: the library's call, and all that the engine does for it."""
    tokenizer = QwenVLTokenizer(read_ranks(vocabulary))
    began = time.perf_counter()
    forms = Forms(tokenizer, VOCAB, 1)
    print(f"vocabulary loaded in {time.perf_counter() - began:.2f} s")
    calls, beside = list[float](), list[float]()
    random = np.random.default_rng(0)
    out = np.empty((1, forms.vocabulary.words), np.int32)
    for schema in SCHEMAS:
        grammar = form_of(schema, forms.vocabulary)
        for _ in range(rounds):
            form = forms.start(grammar, (VOCAB - 1,))
            raw = np.empty((1, VOCAB // 32 + 1), np.int32)
            for _ in range(60):
                began = time.perf_counter()
                form.matcher.unsafe_compute_mask_ptr(raw.ctypes.data, raw.nbytes)
                called = time.perf_counter()
                forms.fill([form], out)  # the library keeps what it has just computed
                filled = time.perf_counter()
                form.matcher.unsafe_compute_mask_ptr(raw.ctypes.data, raw.nbytes)
                again = time.perf_counter()
                left = np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")[:VOCAB])
                token = int(random.choice(left))
                consuming = time.perf_counter()
                form.add(token)
                added = time.perf_counter() - consuming
                calls.append((called - began) * 1e6)
                beside.append((filled - called - (again - filled) + added) * 1e6)
                if token == VOCAB - 1:
                    break
    print(f"the library's call: median {statistics.median(calls):.1f} us, p99 {np.percentile(calls, 99):.0f} us")
    print(
        f"beside it: median {statistics.median(beside):.1f} us, p99 {np.percentile(beside, 99):.0f} us, of {len(calls)}"
    )


def form_of(schema: dict[str, Any], vocabulary: GrammarVocabulary) -> CompiledGrammar:
    grammar = Grammar(kind="json_schema", source=json.dumps(schema), param="")
    return CompiledGrammar(source=compiled(grammar, vocabulary))


def speed(path: Path, batches: list[int], rounds: int, tokens: int) -> None:
    """Tokens a second of decodes, and the ratio of the medians of processor time."""
    found = Checkpoint(path)
    tokenizer: Tokenizer = family_of(found).processor(found, 1 << 20).tokenizer
    model = load_ours(path)
    grammar = form_of(LONG, GrammarVocabulary(tokenizer, model.vocab_size))
    with tempfile.TemporaryDirectory() as root:
        engine = engine_at(
            model, Path(root), seqs=max(batches), tokens=256, kv_tokens=max(batches) * 512, tokenizer=tokenizer
        )
        engine.forms()  # loads the vocabulary
        for batch in batches:
            taken: dict[bool, list[tuple[float, float, int]]] = {False: [], True: []}
            for i in range(2 * rounds + 2):
                held = bool(i % 2)
                one = decode(engine, batch, grammar if held else None, tokens, i)
                if i > 1:  # the first of each warms up
                    taken[held].append(one)
            free, form = (
                [statistics.median(one[j] / one[2] for one in taken[held]) for j in (0, 1)] for held in (False, True)
            )
            print(
                f"{path.name}, batch {batch}: {1 / free[1]:.1f} tokens/s without, {1 / form[1]:.1f} with; "
                f"ratio {free[1] / form[1]:.3f} by the clock, {free[0] / form[0]:.3f} by processor time"
            )


def decode(
    engine: Engine, batch: int, grammar: CompiledGrammar | None, tokens: int, run: int
) -> tuple[float, float, int]:
    """(seconds of processor time, seconds, tokens) of the decodes of so many answers."""
    for i in range(batch):
        sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=i)
        prepared = text_only(f"{run}-{i}", [5 + i, *range(10, 26)])
        assert engine.submit(Generate(prepared=prepared, sampling=sampling, grammar=grammar)) is None
    engine.step()  # prompts, and first tokens
    n, used, began = 0, time.process_time(), time.perf_counter()
    while not engine.idle:
        n += sum(len(message.tokens) for message in engine.step() if isinstance(message, StepDone))
    return time.process_time() - used, time.perf_counter() - began, n


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--speed", choices=("demo", "mid"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    if asked.rows:
        rows(asked.rows, asked.rounds)
    if asked.speed:
        where = checkpoint() if asked.speed == "mid" else Path("model/embedded/pixelferry-demo")
        speed(where, asked.batch, asked.rounds, asked.tokens)
