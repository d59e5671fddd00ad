"""What a grammar is compiled to, over the vocabulary of every family; and what ends when the compiler does not."""

import errno
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS
from tokenization.cancel import Cancelled, go_on
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.tool_form import HERMES, head_of
from tokenization.chat.tool_offer import CallRules
from tokenization.structured import compile as compiling
from tokenization.structured.compile import MAX_CHOICES, compile_grammar
from tokenization.structured.vocabulary import LIMITS, GrammarVocabulary
from tokenization.text.detokenize import whole_text
from tokenization.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object", "required": ["name", "n", "of"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 6}, "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "of": {"type": "array", "items": {"enum": ["é", " two"]}, "minItems": 1, "maxItems": 3},
    },
}  # fmt: skip


class Compiler:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size + 5)  # a model may have more rows

    def run(self, kind: Any, source: str, check: Callable[[], None] = go_on, **fields: Any) -> str:
        blanks = fields.pop("blanks", 0)
        grammar = Grammar(kind=kind, source=source, param="response_format", **fields)
        return compile_grammar(grammar, self.vocabulary, check, blanks=blanks).source

    def refusal(self, kind: Any, source: str, **fields: Any) -> str:
        with pytest.raises(ChatError) as caught:
            self.run(kind, source, **fields)
        code = "took_too_long" if "by the clock" in caught.value.message else "structured_output"
        assert (caught.value.param, caught.value.code) == ("response_format", code)
        return caught.value.message

    def drawn(self, source: str, seed: int) -> list[int]:
        """Ids of an answer, each drawn by chance from what the form leaves, until it may end."""
        matcher = LLMatcher(self.vocabulary.compiled, source, log_level=0, limits=LIMITS)
        choose, ids = random.Random(seed), list[int]()
        while len(ids) < 400:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            assert not matcher.is_error(), matcher.get_error()
            left = np.flatnonzero(bits).tolist()
            assert left
            if self.vocabulary.end in left:
                return ids
            ids.append(choose.choice(left))
            matcher.consume_token(ids[-1])
        raise AssertionError("the answer does not end")


@pytest.fixture(scope="module", params=NAMES)
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    checkpoint = Checkpoint(WRITERS[request.param](tmp_path_factory.mktemp(request.param)))
    return Compiler(family_of(checkpoint).processor(checkpoint, 1 << 20).tokenizer)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    checkpoint = Checkpoint(WRITERS["qwen2_vl"](tmp_path_factory.mktemp("one")))
    return Compiler(family_of(checkpoint).processor(checkpoint, 1 << 20).tokenizer)


@pytest.mark.process
def test_every_familys_ids_spell_what_fits(compiler: Compiler) -> None:
    """As its own detokenizer reads them, with one blank in front where that takes one for none."""
    tokenizer = compiler.tokenizer
    form = compiler.run("json_schema", json.dumps(SCHEMA), blanks=tokenizer.leading_blanks)
    regex = compiler.run("regex", r"[a-c]{2,5} [0-9]é")
    for seed in range(3):
        ids = compiler.drawn(form, seed)
        text = whole_text(tokenizer, ids)
        value = json.loads(text)
        assert text == json.dumps(value, ensure_ascii=False) or "\\" in text
        assert set(value) == {"name", "n", "of"} and len(value["name"]) <= 6 and 0 <= value["n"] <= 99
        assert not any(tokenizer.is_special(token) for token in ids)
        spelled = b"".join(map(tokenizer.token_bytes, compiler.drawn(regex, seed))).decode()
        assert re.fullmatch(r"[a-c]{2,5} [0-9]é", spelled)


def test_text_is_what_no_special_token_and_no_hole_is(compiler: Compiler) -> None:
    tokenizer, vocabulary = compiler.tokenizer, compiler.vocabulary
    bits = np.unpackbits(vocabulary.mask().view(np.uint8), bitorder="little")[: vocabulary.vocab_size]
    for token in range(vocabulary.vocab_size):
        assert bits[token] == (bool(tokenizer.token_bytes(token)) and not tokenizer.is_special(token))
    mark = next(iter(tokenizer.special.values()))
    assert np.unpackbits(vocabulary.mask([mark]).view(np.uint8), bitorder="little").sum() == bits.sum() + 1


@pytest.mark.process
def test_each_kind_is_compiled(one: Compiler) -> None:
    expected = {
        ("regex", r"x\d{2}"): r"x\d{2}",
        ("choice", json.dumps(["a b", 'q"\n', "é"])): 'a b|q"\n|é',
        ("lark", 'start: "a" /[bc]/'): "a[bc]", ("ebnf", 'root ::= "a" x\nx ::= [0-9]'): "a[0-9]",
    }  # fmt: skip
    for (kind, source), pattern in expected.items():
        text = whole_text(one.tokenizer, one.drawn(one.run(kind, source), 1))
        assert re.fullmatch(pattern, text, re.DOTALL), kind
    for text, fits in (('{"a": [1, "b"], "c": {}}', True), ("[1]", False), ('{"a":1}', False), ('{"a": 1, }', False)):
        matcher = LLMatcher(one.vocabulary.compiled, one.run("json_object", ""), log_level=0, limits=LIMITS)
        taken = matcher.consume_tokens(one.tokenizer.encode(text))
        assert (taken and matcher.is_accepting()) == fits, text


def takes(one: Compiler, source: str, text: str) -> bool:
    matcher = LLMatcher(one.vocabulary.compiled, source, log_level=0, limits=LIMITS)
    return bool(matcher.consume_tokens(one.tokenizer.encode(text)) and matcher.is_accepting())


@pytest.mark.process
def test_digits_and_letters_of_a_regex_are_those_of_a_pattern(one: Compiler) -> None:
    for regex, fits, others in (
        (r"\d{2}", "12", ("１２", "٣٣")),
        (r"[\d-]+\w", "1-a", ("１-a", "1-é")),
        (r"\\d", r"\d", ("1",)),
    ):
        form = one.run("regex", regex)
        pattern = one.run("json_schema", json.dumps({"type": "string", "pattern": f"^{regex}$"}))
        assert takes(one, form, fits) and takes(one, pattern, json.dumps(fits))
        assert not any(takes(one, form, other) for other in others)
        assert not any(takes(one, pattern, json.dumps(other, ensure_ascii=False)) for other in others)


@pytest.mark.process
def test_numbers_of_a_grammars_schemas_are_held_to_the_digit(one: Compiler) -> None:
    large = one.run("lark", 'start: "%json " /a%json/? %json {"const": 9007199254740993} // %json {')
    assert takes(one, large, "%json 9007199254740993") and not takes(one, large, "%json 9007199254740992")
    joined = one.run("lark", 'start: %json {"allOf": [{"minimum": 9007199254740993}, {"type": "integer"}]} "."')
    assert takes(one, joined, "9007199254740993.") and not takes(one, joined, "9007199254740992.")
    above = one.run("lark", 'start: %json {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}')
    assert takes(one, above, "0.5") and not takes(one, above, "0")
    own = one.run("lark", 'start: %json {"enum": [[1, 2]], "x-guidance": {"whitespace_flexible": false}}')
    assert takes(one, own, "[1,2]") and not takes(one, own, "[1, 2]")


@pytest.mark.process
def test_joined_numbers_of_a_tool_are_held_to_the_digit(one: Compiler) -> None:
    ident = {"allOf": [{"$ref": "#/$defs/id"}, {"maximum": 2**60 + 2}]}
    parameters = {
        "type": "object", "properties": {"id": ident}, "required": ["id"], "additionalProperties": False,
        "$defs": {"id": {"type": "integer", "minimum": 2**60 + 1}},
    }  # fmt: skip
    tools = [{"type": "function", "function": {"name": "find", "parameters": parameters}}]
    asked = {"tools": tools, "tool_choice": "required"}
    _, offer = with_tools(chat_from_openai([{"role": "user", "content": "x"}]), asked)
    assert offer is not None
    rules = CallRules(offer=msgspec.structs.replace(offer, form=HERMES), special={})
    source = one.run("tools", msgspec.json.encode(rules).decode())
    texts = {
        n: HERMES.mark + HERMES.opening + head_of("find") + f'{{"id": {2**60 + n}}}' + "}" + HERMES.closing
        for n in range(4)
    }
    assert [n for n, text in texts.items() if takes(one, source, text)] == [1, 2]


@pytest.mark.process
def test_choices_may_hold_any_character(one: Compiler) -> None:
    for choice in ("\x7f", "\u2028", '"\\/', "a\nb", "😀"):
        assert whole_text(one.tokenizer, one.drawn(one.run("choice", json.dumps([choice])), 1)) == choice


@pytest.mark.process
@each_of("text", ["label {}", "{}", 'say "{}"\\'])
def test_as_many_choices_as_are_promised_are_held_to_their_end(one: Compiler, text: str) -> None:
    """They compiled, and more than 2,000 ended in the engine behind the first token."""
    choices = [text.format(i) for i in range(MAX_CHOICES)]
    source = one.run("choice", json.dumps(choices))
    said = {whole_text(one.tokenizer, one.drawn(source, seed)) for seed in range(4)}
    assert said <= {*choices} and len(said) > 1


def test_a_refusal_says_what_and_where(one: Compiler) -> None:
    deep = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {"type": "string"}}}}}
    assert "not at /properties/a/items/not" in one.refusal("json_schema", json.dumps(deep))
    assert "look-ahead" in one.refusal("regex", "(?=a)b")
    assert "unknown name" in one.refusal("lark", "start: other")
    assert "cannot be read" in one.refusal("ebnf", "root ::= [")
    assert "no JSON" in one.refusal("json_schema", "{")
    assert "NaN" in one.refusal("json_schema", '{"minimum": NaN}')
    for number in ("1e400", "-1e400", "9" * 400 + ".5"):  # as doubles they are infinite, which no JSON is
        assert "as large" in one.refusal("json_schema", f'{{"const": {number}}}'), number
        assert one.refusal("lark", f'start: %json {{"enum": [{number}, 9007199254740993]}}'), number
    assert "too deeply" in one.refusal("json_schema", "[" * 200_000)
    assert "more than" in one.refusal("regex", "a" * (1 << 21))
    assert "unknown special token" in one.refusal("lark", "start: <|im_start|>")
    nothing = {"type": "object", "properties": {"b": {"type": "string", "pattern": "^a$", "minLength": 5}}}
    assert one.refusal("json_schema", json.dumps({**nothing, "required": ["b"]}))
    # A part of it, tried by itself, has a reference that leads nowhere; the process ended at that.
    led = {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"pattern": "^a$", "minLength": 5, "type": "string"}}}
    assert one.refusal("json_schema", json.dumps({**nothing, **led, "required": ["b"]})).endswith("(at /properties/b)")


@pytest.mark.process
@each_of("behind", ["", '"zq" '])
def test_a_grammar_that_can_be_read_in_very_many_ways_is_refused(one: Compiler, behind: str) -> None:
    """Its masks took half a second and more, and no limit of the library's bounds them; its first one is cheap."""
    ways = " | ".join("e " * n + '"a"' for n in range(20))
    assert "it can be read in too many ways" in one.refusal("lark", f"start: {behind}e\ne: {ways}")
    sums = 'start: e\ne: e "+" e | e "*" e | "(" e ")" | N\nN: /[0-9]+/'
    assert one.run("lark", sums), "and what is ambiguous alone is not dear"


def test_strict_closes_objects(one: Compiler) -> None:
    loose = json.dumps({"type": "object", "properties": {"a": {"const": 1}}})
    texts = {
        whole_text(one.tokenizer, one.drawn(one.run("json_schema", loose, strict=True), seed)) for seed in range(5)
    }
    assert texts == {'{"a": 1}'}


def hostile(do: Callable[[], object]) -> Callable[..., str]:
    def compiled(*given: object) -> str:
        do()
        return ""

    return compiled


@pytest.mark.process
def test_whatever_the_compiler_does_ends_its_own_process_alone(one: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> None:
        while True:
            pass

    def greedy() -> None:
        held = []
        while True:
            held.append(bytearray(1 << 20))

    monkeypatch.setattr(compiling, "COMPILE_SECONDS", 1)
    monkeypatch.setattr(compiling, "COMPILE_BYTES", 64 << 20)
    ends: dict[str, tuple[Callable[[], object], str]] = {
        "aborts": (os.abort, "memory"), "hangs": (endless, "more than"),
        "sleeps": (lambda: time.sleep(60), "2 s by the clock"), "takes all memory": (greedy, "memory"),
        "overflows": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "memory"),
    }  # fmt: skip
    for name, (do, said) in ends.items():
        with monkeypatch.context() as patch:
            patch.setattr(compiling, "compiled", hostile(do))
            if name == "sleeps":  # the others' time by the clock is the machine's
                patch.setattr(compiling, "WALL_SECONDS", 2.0)
            assert said in one.refusal("regex", "a"), name
    assert one.run("regex", "a")


@pytest.mark.process
def test_who_leaves_ends_the_compiling(one: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, born, fork = [], list[int](), os.fork

    def noted() -> int:
        born.append(fork())
        return born[0]

    def leave() -> None:
        looks.append(1)
        if len(looks) > 2:
            raise Cancelled

    monkeypatch.setattr(compiling, "compiled", hostile(lambda: time.sleep(60)))
    monkeypatch.setattr(os, "fork", noted)
    began = time.monotonic()
    with pytest.raises(Cancelled):
        one.run("regex", "a", leave)
    assert time.monotonic() - began < 50
    with pytest.raises(ProcessLookupError):  # nobody is left behind
        os.kill(born[0], 0)


@pytest.mark.process
def test_a_high_limit_of_descriptors_costs_nothing(one: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 5.9 closes a range one by one: here as if the limit were endless."""
    monkeypatch.setattr(compiling, "WALL_SECONDS", 50.0)
    monkeypatch.setattr(os, "closerange", lambda low, high: time.sleep(60))
    assert one.run("regex", "a")


def test_a_fork_that_fails_leaves_nothing_open(one: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr(os, "fork", no_process)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            one.run("regex", "a")
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.process
def test_the_child_holds_nothing_of_its_parent_open(
    one: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker's socket must be seen to end when the worker does."""
    (tmp_path / "open").write_text("")
    with open(tmp_path / "open") as file:
        monkeypatch.setattr(
            compiling, "compiled", lambda *given: CompiledGrammar(source=",".join(os.listdir("/proc/self/fd")))
        )
        found = set(one.run("regex", "a").split(","))
    assert file.closed and found <= {"0", "1", "2", "3"}  # the last one is of the listing itself


@pytest.mark.process
def test_a_fault_inside_a_tool_is_named_by_tool_and_place(one: Compiler) -> None:
    """The library names a line of a grammar that the client has not written."""
    nothing = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 2}},
        "required": ["n"],
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in (
        ("fine", {"type": "object"}), ("never", nothing))]  # fmt: skip
    _, offer = with_tools(chat_from_openai([{"role": "user", "content": "x"}]), {"tools": tools})
    assert offer is not None
    rules = CallRules(offer=msgspec.structs.replace(offer, form=HERMES), special={})
    said = one.refusal("tools", msgspec.json.encode(rules).decode())
    assert re.search(r"tools\[1\].function.parameters: .* \(at /properties/n\)$", said), said
    assert "_arguments" not in said and "grammar" not in said
