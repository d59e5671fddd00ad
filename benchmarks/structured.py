"""What a form costs: the host's part of each row beside the library's own call, and tokens a second with and without.

    python -m benchmarks.structured [--rows qwen.tiktoken] [--speed demo|mid] [--batch 1 16] [--rounds 7]

--rows: over Qwen-VL's vocabulary of 151,936. --speed: the demo model, or one of 240 million parameters; the same
requests with a schema and without, in turn, by processor time of the engine and by the clock.
"""

import argparse
import itertools
import json
import shutil
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
from tests.tiny.qwen_vl import write_qwen_vl
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
    """Microseconds of a row, which waits for its process each time: with the library's call, and without."""
    made = GrammarVocabulary(QwenVLTokenizer(read_ranks(vocabulary)), VOCAB)
    random = np.random.default_rng(0)
    out = np.empty((1, made.words), np.int32)
    with tempfile.TemporaryDirectory() as folder:
        path = write_qwen_vl(Path(folder) / "tiny", ["a"])
        shutil.copy(vocabulary, path / "qwen.tiktoken")
        began = time.perf_counter()
        forms, starts, waits, calls = Forms(path, VOCAB, 60.0, 1 << 30), list[float](), list[float](), list[float]()
        for schema, _ in itertools.product(SCHEMAS, range(rounds)):
            form = forms.hold(form_of(schema, made), (VOCAB - 1,))
            starting = time.perf_counter()
            form.begin()
            forms.fill([form], out)
            starts.append((time.perf_counter() - starting) * 1e6)
            for _ in range(60):
                token = int(random.choice(np.flatnonzero(np.unpackbits(out.view(np.uint8), bitorder="little")[:VOCAB])))
                if token == VOCAB - 1:
                    break
                asking = time.perf_counter()
                form.add(token)
                forms.fill([form], out)
                waits.append((time.perf_counter() - asking) * 1e6)
                calls.append(form.expected * 1e6)
            form.end()
        print(f"the first mask, with the vocabulary: {starts[0] / 1e6:.2f} s of {time.perf_counter() - began:.2f} s")
    for what, found in (("further first masks", starts[1:]), ("a row", waits), ("its process's processor", calls)):
        print(
            f"{what}: median {statistics.median(found):.1f} us, p99 {np.percentile(found, 99):.0f} us, n {len(found)}"
        )


def form_of(schema: dict[str, Any], vocabulary: GrammarVocabulary) -> CompiledGrammar:
    grammar = Grammar(kind="json_schema", source=json.dumps(schema), param="")
    return compiled(grammar, vocabulary)


def speed(path: Path, batches: list[int], rounds: int, tokens: int) -> None:
    """Tokens a second of decodes, and the ratio of the medians of processor time."""
    found = Checkpoint(path)
    tokenizer: Tokenizer = family_of(found).processor(found, 1 << 20).tokenizer
    model = load_ours(path)
    grammar = form_of(LONG, GrammarVocabulary(tokenizer, model.vocab_size))
    with tempfile.TemporaryDirectory() as root:
        engine = engine_at(
            model, Path(root), seqs=max(batches), tokens=256, kv_tokens=max(batches) * 512, checkpoint=path,
            form_step_ms=50,
        )  # fmt: skip
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
