"""How many published JSON schemas an answer can be held to, and whether what a random model draws is valid.

    make build/schemas && .venv/bin/python -m benchmarks.structured_corpus build/schemas [--server http://HOST:PORT]

The schemas are those of jsonschema's own test suite, of check-jsonschema and of Kubernetes. Each is refused with a
keyword, or compiled; then answers are drawn from the mask at temperature 1, by weights that are random and lean towards
what ends a text, a list or an object; or by the model of a running server, asked by /v1/chat/completions.
An answer that ends is checked by jsonschema. What the suite calls invalid is given to the compiled grammar, too, which
must not take it.
"""

import argparse
import importlib
import json
import random
import re
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from llguidance import LLMatcher

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.structured.compilable import make_compilable
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import LIMITS, GrammarVocabulary
from tokenization.text.bpe import BPETokenizer

ANSWERS, ENOUGH = 5, 3
LONGEST = 400  # tokens of an answer
CLOSERS = {b'"': 4.0, b"}": 5.0, b"]": 5.0}  # what logit_bias gives tokens that begin so
END_BIAS = 8.0
KUBERNETES = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#", "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    source: str
    name: str
    schema: Any
    valid: tuple[Any, ...] = ()
    invalid: tuple[Any, ...] = ()


@dataclass(slots=True)
class Found:
    """What was found of the schemas of one source."""

    schemas: int = 0
    compiled: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    counted: int = 0  # of which enough answers ended
    stops: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # while it was drawn
    taken: int = 0  # valid instances of the suite that the grammar takes
    offered: int = 0
    unjudged: int = 0  # schemas that jsonschema itself cannot check with
    seconds: list[float] = field(default_factory=list)  # of compiling


def suite(root: Path) -> Iterator[Case]:
    """Each schema of the suite in jsonschema's sdist with its instances, under the draft that its folder names."""
    for draft, uri in DRAFTS.items():
        for path in sorted((root / draft).glob("**/*.json")):
            for group in json.loads(path.read_text(encoding="utf-8")):
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": uri, **schema}
                by_verdict: dict[bool, list[Any]] = {True: [], False: []}
                for test in group["tests"]:
                    by_verdict[test["valid"]].append(test["data"])
                name = f"{path.relative_to(root)}: {group['description']}"
                yield Case(
                    source="jsonschema suite", name=name, schema=schema,
                    valid=tuple(by_verdict[True]), invalid=tuple(by_verdict[False]),
                )  # fmt: skip


def vendored(root: Path) -> Iterator[Case]:
    """Those that check-jsonschema ships: of CI systems and the like."""
    for path in sorted((root / "check_jsonschema/builtin_schemas/vendor").glob("*.json")):
        yield Case(source="check-jsonschema", name=path.name, schema=json.loads(path.read_text(encoding="utf-8")))


def kubernetes(root: Path) -> Iterator[Case]:
    """Those of Kubernetes 1.37, each with the definitions that it reaches put into it."""
    folder = root / KUBERNETES
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))["$defs"]
    for path in sorted(folder.glob("*.json")):
        if path.name in ("_definitions.json", "all.json"):
            continue
        reached: dict[str, Any] = {}
        schema = _with_own(json.loads(path.read_text(encoding="utf-8")), definitions, reached)
        yield Case(source="kubernetes", name=path.name, schema={**schema, "definitions": reached})


def _with_own(schema: Any, definitions: dict[str, Any], reached: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_with_own(one, definitions, reached) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            name = value.rsplit("/", 1)[1]
            if name not in reached:
                reached[name] = {}
                reached[name] = _with_own(definitions[name], definitions, reached)
            found[key] = f"#/definitions/{name}"
        else:
            found[key] = _with_own(value, definitions, reached)
    return found


class RandomModel:
    """Draws tokens that the mask allows, with logits that are normal, drawn anew for each step, and biased."""

    def __init__(self, tokenizer: BPETokenizer, vocabulary: GrammarVocabulary, seed: int) -> None:
        self._tokenizer, self._end = tokenizer, vocabulary.end
        self._random = np.random.default_rng(seed)
        biases = [CLOSERS.get(tokenizer.token_bytes(token)[:1], 0.0) for token in range(tokenizer.vocab_size)]
        self._bias = np.array([*biases, *[0.0] * (self._end - len(biases)), END_BIAS])

    def answers(self, _schema: str, matcher: LLMatcher) -> list[str]:
        """Those that end by themselves. Raises RuntimeError where the matcher fails."""
        drawn = [self._answer(matcher.deep_copy()) for _ in range(ANSWERS)]
        return [text for text in drawn if text is not None]

    def _answer(self, matcher: LLMatcher) -> str | None:
        tokens: list[int] = []
        while len(tokens) < LONGEST:
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            if matcher.is_error():
                raise RuntimeError(matcher.get_error())
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: len(self._bias)])
            if not len(allowed):
                raise RuntimeError("no token is left")
            logits = self._random.normal(size=len(allowed)) + self._bias[allowed]
            token = int(allowed[np.argmax(logits + self._random.gumbel(size=len(allowed)))])
            if token == self._end:
                return b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8")
            matcher.consume_token(token)
            tokens.append(token)
        return None


class ServedModel:
    """Has a running server draw the answers, with the same lean towards what closes."""

    def __init__(self, url: str, tokenizer: BPETokenizer, seed: int) -> None:
        self._url, self._seed = url, seed
        end, _ = json.loads((EMBEDDED_MODEL / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
        biases = {token: CLOSERS.get(tokenizer.token_bytes(token)[:1], 0.0) for token in range(tokenizer.vocab_size)}
        self._bias = {str(token): bias for token, bias in biases.items() if bias} | {str(end): END_BIAS}

    def answers(self, schema: str, _matcher: LLMatcher) -> list[str]:
        """Those that end by themselves. Raises RuntimeError where the server refuses or fails."""
        body = {
            "messages": [{"role": "user", "content": "Answer in JSON."}], "n": ANSWERS, "temperature": 1.0,
            "seed": self._seed, "max_tokens": LONGEST, "logit_bias": self._bias,
            "response_format": {"type": "json_schema", "json_schema": {"name": "asked", "schema": json.loads(schema)}},
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self._url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                choices = json.load(response)["choices"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode("utf-8")[:300]) from error
        return [choice["message"]["content"] for choice in choices if choice["finish_reason"] == "stop"]


def accepts(grammar: LLMatcher, tokenizer: BPETokenizer, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False)
    tokens = tokenizer.encode(text)
    if b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8") != text:  # it composes characters
        return False
    matcher = grammar.deep_copy()
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


class Corpus:
    """Looks at schemas, one after the other."""

    def __init__(self, seed: int, server: str | None) -> None:
        self._tokenizer = BPETokenizer.from_checkpoint(Checkpoint(EMBEDDED_MODEL))
        self._vocabulary = GrammarVocabulary(self._tokenizer, self._tokenizer.vocab_size)
        self._model = (
            RandomModel(self._tokenizer, self._vocabulary, seed)
            if server is None
            else ServedModel(server, self._tokenizer, seed)
        )
        self._validators: Any = importlib.import_module("jsonschema.validators")  # it comes with the schemas
        self.by_source: dict[str, Found] = {}

    def look_at(self, case: Case) -> None:
        """Compile one schema, draw answers and check them."""
        found = self.by_source.setdefault(case.source, Found())
        found.schemas += 1
        text = json.dumps(case.schema)
        if (why := make_compilable(json.loads(text))) is not None:
            found.refused[why.keyword or why.reason] += 1
            return
        begin = perf_counter()
        try:
            form = compiled(Grammar(kind="json_schema", source=text, param=""), self._vocabulary).source
        except ChatError as error:
            found.refused[f"compiler: {error.message[:60]}"] += 1
            return
        matcher = LLMatcher(self._vocabulary.compiled, form, log_level=0, limits=LIMITS)
        found.seconds.append(perf_counter() - begin)
        found.compiled += 1
        kind = self._validators.validator_for(case.schema, self._validators.Draft202012Validator)
        validator = kind(case.schema, format_checker=kind.FORMAT_CHECKER)
        for instance in case.invalid:
            if accepts(matcher, self._tokenizer, instance) and not validator.is_valid(instance):  # it leaves some out
                found.wrong.append(f"{case.name}: takes {json.dumps(instance)[:80]}")
        found.offered += len(case.valid)
        found.taken += sum(accepts(matcher, self._tokenizer, instance) for instance in case.valid)
        self._draw(case, matcher, validator, found)

    def _draw(self, case: Case, matcher: LLMatcher, validator: Any, found: Found) -> None:
        try:
            texts = self._model.answers(json.dumps(case.schema), matcher)
        except RuntimeError as error:
            found.failed.append(f"{case.name}: {error}")
            return
        try:
            problems = [(text, next(iter(validator.iter_errors(json.loads(text))), None)) for text in texts]
        except re.error:  # a pattern of ECMA's that Python does not know
            found.unjudged += 1
            return
        wrong = [f"{text[:100]}: {problem.message[:100]}" for text, problem in problems if problem is not None]
        found.wrong += [f"{case.name}: {line}" for line in wrong]
        found.stops += len(texts)
        found.counted += len(texts) >= ENOUGH


def look(schemas: Path, seed: int = 1, share: float = 1.0, server: str | None = None) -> dict[str, Found]:
    """What was found of each source, of this share of its schemas, which stand in a directory as `make` fills it."""
    corpus, chosen = Corpus(seed, server), random.Random(seed)
    (suite_root,) = schemas.glob("jsonschema-*/json/tests")
    for cases in (suite(suite_root), vendored(schemas), kubernetes(schemas)):
        for case in cases:
            if chosen.random() < share:
                corpus.look_at(case)
    return corpus.by_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemas", type=Path, help="the directory of the three packages")
    parser.add_argument("--share", type=float, default=1.0, help="of the schemas, drawn by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", help="whose model draws the answers, as http://HOST:PORT: the embedded one")
    asked = parser.parse_args()
    sys.path.append(str(asked.schemas))
    for source, found in look(asked.schemas, asked.seed, asked.share, asked.server).items():
        print(
            f"{source}: {found.schemas} schemas, {found.compiled} compiled ({found.compiled / found.schemas:.0%}), "
            f"{found.counted} count, {found.stops} whole answers, {len(found.wrong)} wrong, {found.unjudged} not judged"
        )
        print(
            f"  valid instances taken {found.taken} of {found.offered}; compiling p50 "
            f"{np.median(found.seconds or [0]) * 1e3:.1f} ms, longest {max(found.seconds, default=0) * 1e3:.0f} ms"
        )
        print("  refused:", ", ".join(f"{keyword} {n}" for keyword, n in found.refused.most_common()))
        for line in (*found.wrong, *found.failed):
            print("  WRONG", line)


if __name__ == "__main__":
    main()
