"""Compiles a grammar with llguidance and tries it, in a process of its own that may take 5 s and so much memory.

All forms are nested into one that forces no tokens: forced ones would be spelled by the library's own reading of the
vocabulary. Between the tokens of JSON stand the blanks of `json.dumps`, and no others.
"""

import contextlib
import json
import math
import os
import re
import resource
import select
import signal
import time
import warnings
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from tokenization.cancel import Check
from tokenization.chat.errors import ChatError, shortened
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.tool_offer import CallRules
from tokenization.structured.compilable import innermost, make_compilable
from tokenization.structured.exact_grammar import BLANKS, OPTIONS, has_large, schema_rules
from tokenization.structured.numbers import hold_bounds
from tokenization.structured.pattern import ascii_classes, unlike
from tokenization.structured.schema import NotHeld, pointer, reached, unsupported
from tokenization.structured.tool_grammar import call_grammar, made_compilable
from tokenization.structured.vocabulary import LIMITS, STEP_SECONDS, Effort, GrammarVocabulary
from tokenization.worker_memory import bound_growth

CODE = "structured_output"
_NOTHING_FITS = "Unsatisfiable schema"  # as the library begins what it says of one
_AMBIGUOUS = "it can be read in too many ways"
MAX_SOURCE = 1 << 20  # characters
MAX_CHOICES = 10_000
COMPILE_SECONDS = 5  # of processor time
WALL_SECONDS = 20.0  # on a machine that is busy with other things
COMPILE_BYTES = 512 << 20  # beyond what the worker has, at most
# Answers that are drawn to see what their steps cost, and tokens of each: most of grammars, which may be ambiguous in
# ways that nothing else bounds.
ANSWERS, ANSWER_TOKENS = 4, 128
FEW_ANSWERS, FEW_ANSWER_TOKENS = 2, 24
LOOK_SECONDS = 0.1  # how often the one that waits looks whether its request has ended


# `%json` and what may hold these letters otherwise: texts, regular expressions and comments.
_JSON_OF_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<json>%json\s*)')


class _Told(msgspec.Struct, frozen=True):
    """What the compiling process says: the form, or why there is none."""

    form: CompiledGrammar | None = None
    refusal: str = ""
    code: str = CODE


def compile_grammar(
    grammar: Grammar, vocabulary: GrammarVocabulary, check: Check, *, blanks: int = 0, most_bytes: int = COMPILE_BYTES
) -> CompiledGrammar:
    """Raises ChatError for a grammar that no answer can be held to, or that costs too much; Cancelled from `check`.

    blanks: so many at the start of an answer are no part of its text, and may stand in front of the form. most_bytes:
    that compiling may take beyond what this process has; never more than COMPILE_BYTES.
    """
    if len(grammar.source) > MAX_SOURCE:
        raise _refused(grammar, f"it has {len(grammar.source)} characters, more than {MAX_SOURCE}")
    told = _in_child(grammar, vocabulary, blanks, check, min(most_bytes, COMPILE_BYTES))
    if told.form is None:
        raise _refused(grammar, told.refusal, told.code)
    return told.form


def _refused(grammar: Grammar, why: str, code: str = CODE) -> ChatError:
    return ChatError(f"the answer cannot be held to this: {why}", grammar.param, code)


def _in_child(grammar: Grammar, vocabulary: GrammarVocabulary, blanks: int, check: Check, nbytes: int) -> _Told:
    """The library's compiler is a program on a client's data: whatever it does ends a child of this process alone."""
    read, write = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: the child needs none of theirs
            pid = os.fork()
    except OSError:  # no process or no memory is left now
        os.close(read)
        os.close(write)
        raise
    if pid == 0:
        _child(grammar, vocabulary, blanks, write, nbytes)
    os.close(write)
    try:
        said = _read(read, check)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    try:
        return msgspec.msgpack.decode(said, type=_Told)
    except msgspec.DecodeError:
        pass  # it ended before it had said all
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return _Told(refusal=f"to compile it takes more than {COMPILE_SECONDS} s")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:  # by the clock, or for lack of memory
        return _Told(refusal=f"to compile it takes more than {WALL_SECONDS:.0f} s by the clock", code="took_too_long")
    return _Told(refusal=f"to compile it takes more memory than {nbytes >> 20} MiB, or more depth than there is")


def _read(read: int, check: Check) -> bytes:
    """All that the child says until it ends or its time does."""
    said, until = bytearray(), time.monotonic() + WALL_SECONDS
    while time.monotonic() < until:
        check()
        if select.select([read], [], [], LOOK_SECONDS)[0]:
            part = os.read(read, 1 << 16)
            if not part:
                break
            said += part
    return bytes(said)


def _child(grammar: Grammar, vocabulary: GrammarVocabulary, blanks: int, write: int, nbytes: int) -> None:
    """Never returns. Whatever the parent has open is closed: its death must be seen by others all the same."""
    code = 1
    try:
        os.dup2(write, 0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an abort says more than a log should hold
        for name in os.listdir("/proc/self/fd"):  # a range of 10^9 an old kernel closes one by one
            if int(name) > 2:
                with contextlib.suppress(OSError):  # that of the listing itself
                    os.close(int(name))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (COMPILE_SECONDS, COMPILE_SECONDS + 1))
        bound_growth(nbytes)
        try:
            told = _Told(form=compiled(grammar, vocabulary, blanks))
        except ChatError as error:
            told = _Told(refusal=error.message)
        except RecursionError:
            told = _Told(refusal="it is nested too deeply")
        said = msgspec.msgpack.encode(told)
        while said:
            said = said[os.write(0, said) :]
        code = 0
    finally:
        os._exit(code)


def compiled(grammar: Grammar, vocabulary: GrammarVocabulary, blanks: int = 0) -> CompiledGrammar:
    """llguidance's form, compiled and tried: its first mask, and what the steps of some answers cost.

    Raises ChatError, which names no field.
    """
    schema: dict[str, Any] | None = None
    if grammar.kind in ("json_object", "json_schema"):
        schema = {"type": "object"} if grammar.kind == "json_object" else _schema(grammar)
        source = _nested(_schema_form(schema), blanks)
    else:
        source = _nested({"lark_grammar": _lark(grammar)}, blanks)
    matcher = _matcher(source, vocabulary)
    if (why := _fault(matcher)) is not None:
        if grammar.kind == "tools":
            raise ChatError(_tool_at_fault(grammar, vocabulary))
        given = None if grammar.kind != "json_schema" else json.loads(grammar.source)
        raise ChatError(why if schema is None else _at_its_place(schema, given, why, vocabulary))
    few = grammar.kind not in ("lark", "ebnf")
    _try_answers(matcher, vocabulary, *((FEW_ANSWERS, FEW_ANSWER_TOKENS) if few else (ANSWERS, ANSWER_TOKENS)))
    return CompiledGrammar(source=source, marks=grammar.marks, accepts_nothing=bool(matcher.is_accepting()))


def _schema_form(schema: dict[str, Any]) -> dict[str, Any]:
    if not has_large(schema):
        return {"json_schema": {**schema, OPTIONS: BLANKS}}
    start, lines = schema_rules(schema, "part")
    return {"lark_grammar": "\n".join((f"start: {start}", *lines))}


def _nested(form: dict[str, Any], blanks: int) -> str:
    """What is nested keeps its own names and options."""
    first = "@form" if not blanks else f'(" "){{0,{blanks}}} @form'
    top = f'%llguidance {{"no_forcing": true}}\nstart: {first}'
    return json.dumps({"grammars": [{"lark_grammar": top}, {"name": "form", **form}]})


def _matcher(source: str, vocabulary: GrammarVocabulary) -> LLMatcher:
    return LLMatcher(vocabulary.compiled, source, log_level=0, limits=LIMITS)


def _fault(matcher: LLMatcher) -> str | None:
    """Why the library takes no such form, or has no first token for it."""
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        return _said(matcher.get_error())
    return None if any(mask) else "no answer fits it"


def _try_answers(first: LLMatcher, vocabulary: GrammarVocabulary, n_answers: int, n_tokens: int) -> None:
    """Draw answers. Raises ChatError where their steps cost too much.

    Every other one says the same again where it may: what is ambiguous is dearest in a row of one word.
    """
    for number in range(n_answers):
        matcher, effort, drawn = first.deep_copy(), Effort(), np.random.default_rng(number)
        token: int | None = None
        for _ in range(n_tokens):
            begun = time.process_time()
            mask = matcher.compute_bitmask()
            effort.add(time.process_time() - begun)
            if matcher.is_error():
                break
            if number % 2 == 0 or token is None or not _allows(mask, token):
                token = _drawn(mask, vocabulary.end, drawn)
            if token is None:
                break
            begun = time.process_time()
            matcher.consume_token(token)
            effort.add(time.process_time() - begun)
            if effort.too_much:
                raise ChatError(f"a step of an answer takes more than {STEP_SECONDS * 1000:.0f} ms: {_AMBIGUOUS}")


def _allows(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _drawn(mask: bytes, end: int, drawn: np.random.Generator) -> int | None:
    """One of the tokens that a mask allows, each as likely; None where the answer can only end."""
    for token in drawn.integers(end, size=16).tolist():
        if _allows(mask, token):
            return int(token)
    some = np.frombuffer(mask, np.uint8)
    places = np.flatnonzero(some)
    tokens = (8 * places[:, None] + np.arange(8)).ravel()
    tokens = tokens[(np.unpackbits(some[places], bitorder="little") == 1) & (tokens < end)]
    return int(drawn.choice(tokens)) if len(tokens) else None


def _tool_at_fault(grammar: Grammar, vocabulary: GrammarVocabulary) -> str:
    """Why there is no grammar of these tools, by the schema that has none: its client has not seen the grammar."""
    rules = msgspec.json.decode(grammar.source, type=CallRules)
    schemas = [(tool.schema, tool.param, tool.strict) for tool in rules.offer.tools]
    if rules.words is not None and rules.words.kind == "json_schema":
        schemas.append((rules.words.source, rules.words.param, rules.words.strict))
    for source, param, strict in schemas:
        schema = made_compilable(source, param, strict=strict)
        if isinstance(schema, bool):
            continue
        if (why := _fault(_matcher(_nested(_schema_form(schema), 0), vocabulary))) is not None:
            return f"{param}: {_at_its_place(schema, json.loads(source), why, vocabulary)}"
    return f"the schemas of {len(schemas)} tools are more together than the compiler takes"


def _at_its_place(schema: dict[str, Any], given: Any, why: str, vocabulary: GrammarVocabulary) -> str:
    """Why the library takes no such schema, with the place of it, which it does not say: by trying the parts.

    given: the schema as the client wrote it, before `make_compilable`: the place is one of it.
    """
    said = why

    def fails(part: Any) -> bool:
        nonlocal said
        try:
            form = _schema_form(part)
        except NotHeld:  # a reference that leads nowhere, or to itself, where the part is the whole
            return False
        found = _fault(_matcher(_nested(form, 0), vocabulary))
        if found is None or (found != why and not (found.startswith(_NOTHING_FITS) and why.startswith(_NOTHING_FITS))):
            return False
        said = found
        return True

    place, known = list[str](), given
    for step in innermost(schema, fails):
        known = known[int(step)] if isinstance(known, list) else known.get(step) if isinstance(known, dict) else None
        if known is None:
            break
        place.append(step)
    return said + (f" (at {shortened(pointer(tuple(place)), 200)})" if place else "")


def _lark(grammar: Grammar) -> str:
    source = grammar.source
    if grammar.kind == "tools":
        return call_grammar(source)
    if grammar.kind == "choice":
        return _choices(source)
    if grammar.kind == "regex":
        return _regex(source)
    if grammar.kind == "ebnf":
        try:
            source = any_to_lark(source)
        except Exception as error:  # noqa: BLE001 - its reader raises what it likes
            raise ChatError(_said(f"the grammar cannot be read: {error}")) from None
    return _with_exact_schemas(source)


def _with_exact_schemas(source: str) -> str:
    """A grammar in Lark with the numbers of its JSON schemas as the compiler holds them; else it is left as it is."""
    written, needed, at = list[str](), list[str](), 0
    for found in _JSON_OF_LARK.finditer(source):
        if found["json"] is None or found.start() < at:
            continue
        try:
            schema, end = _JSON.raw_decode(source, found.end())
        except ValueError:
            break  # the compiler says what is wrong
        options = schema.pop(OPTIONS, None) if isinstance(schema, dict) else None
        if not isinstance(schema, dict) or unsupported(schema) is not None:
            continue
        for one, _ in reached(schema):
            hold_bounds(one)
        said = "%json " + json.dumps(schema if options is None else {**schema, OPTIONS: options})
        if has_large(schema):
            if (refused := make_compilable(schema)) is not None:
                raise ChatError(f"%json: {refused.told}")
            said, rules = schema_rules(schema, f"json_{len(written)}_part")
            needed += rules
        written += [source[at : found.start()], said]
        at = end
    return "\n".join(("".join((*written, source[at:])), *needed))


def _schema(grammar: Grammar) -> dict[str, Any]:
    """Raises ChatError by the keyword and the JSON pointer of what cannot be held."""
    try:
        schema = _JSON.decode(grammar.source)
    except ValueError as error:
        raise ChatError(f"the schema is no JSON: {error}") from None
    found = make_compilable(schema, strict=grammar.strict)
    if found is not None:
        raise ChatError(found.told)
    return schema if isinstance(schema, dict) else {}


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not one of its numbers")


def _finite(number: str) -> float:
    found = float(number)
    if math.isinf(found):  # Python would write it as a word that no JSON is
        raise ValueError(f"no number is as large as {shortened(number)}")
    return found


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def _choices(source: str) -> str:
    choices = json.loads(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
        raise ChatError("the choices are no list of texts")
    if len(choices) > MAX_CHOICES:
        raise ChatError(f"it has {len(choices)} choices, more than {MAX_CHOICES}")
    # One terminal, which the lexer reads as one automaton: as rules, more than 2,000 are too many for a step.
    texts = " | ".join(json.dumps(one) for one in choices if one)
    start = [*(["CHOICE"] if texts else []), *(['""'] if "" in choices else [])]
    return f"start: {' | '.join(start)}" + (f"\nCHOICE: {texts}" if texts else "")


def _regex(source: str) -> str:
    if (why := unlike(source)) is not None:
        raise ChatError(why)
    found: str = json.loads(LLMatcher.grammar_from_regex(ascii_classes(source)))["grammars"][0]["lark_grammar"]
    return found


def _said(error: str) -> str:
    """One line of what the library says: that of the fault, else the first."""
    lines = error.strip().split("\n")
    line = next((line for line in lines if line.startswith("error: ")), lines[0])
    return shortened("no answer fits it" if line.startswith("NoExtension") else line.removeprefix("error: "), 300)
