"""What an answer that may call tools is held to, as a grammar in Lark: words, then calls by their tools' schemas.

The form is the family's (tool_form.py). `call_parser.py` reads what this lets a model write.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tokenization.chat.errors import ChatError, shortened
from tokenization.chat.tool_form import ToolForm, head_of
from tokenization.chat.tool_offer import CallRules
from tokenization.structured.compilable import make_compilable
from tokenization.structured.exact_grammar import schema_rules


def call_grammar(source: str) -> str:
    """source: CallRules as JSON. Raises ChatError for a tool whose schema no answer can be held to."""
    rules = msgspec.json.decode(source, type=CallRules)
    offer, form, special = rules.offer, rules.offer.form, rules.special
    assert form is not None
    calls = [f"call_{i}" for i in range(len(offer.tools))]
    more = "" if offer.single else f" ({_literal(form.between, special)} call)*"
    lines = [
        f"start: {_start(rules, form)}",
        f"calls: {_literal(form.opening, special)} call{more} {_literal(form.closing, special)}",
        f"call: {' | '.join(calls)}",
    ]
    for rule, tool in zip(calls, offer.tools, strict=True):
        arguments, needed = schema_rules(made_compilable(tool.schema, tool.param, strict=tool.strict), f"{rule}_part")
        lines += [f'{rule}: {_literal(head_of(tool.name), {})} {rule}_arguments "}}"', f"{rule}_arguments: {arguments}"]
        lines += needed
    if offer.choice == "auto":
        if (words := rules.words) is not None:
            schema = words.source if words.kind == "json_schema" else '{"type": "object"}'
            said, needed = schema_rules(made_compilable(schema, words.param, strict=words.strict), "words_part")
            lines += [f"words: {said}", *needed]
        elif form.mark not in special:
            lines.append(f"marked[lazy]: WORDS {_literal(form.mark, {})}")
        spelled = json.dumps(form.mark + form.opening)  # by letters alone it would be read as a call, held to nothing
        lines.append(f"WORDS: /(?s:.*)/{f' & ~(/(?s:.*)/ {spelled} /(?s:.*)/)' if form.mark in special else ''}")
    return "\n".join(lines)


def _start(rules: CallRules, form: ToolForm) -> str:
    mark = _literal(form.mark, rules.special)
    if rules.offer.choice != "auto":
        return f"{mark} calls"
    if rules.words is not None:
        return f"words | {mark} calls"
    return f"WORDS | WORDS {mark} calls" if form.mark in rules.special else "WORDS | marked calls"


def _literal(text: str, special: Mapping[str, int]) -> str:
    """A text as terminals, special tokens in it by their ids."""
    found = sorted((token for token in special if token in text), key=len, reverse=True)  # the longest first
    if not found:
        return json.dumps(text)
    pieces = re.split(f"({'|'.join(map(re.escape, found))})", text)
    return " ".join(f"<[{special[one]}]>" if one in special else json.dumps(one) for one in pieces if one)


def made_compilable(source: str, param: str, *, strict: bool) -> Any:
    """A schema, as `make_compilable` changes it. Raises ChatError, by the keyword and the place of what is not held."""
    schema = json.loads(source)
    if (found := make_compilable(schema, strict=strict)) is not None:
        where = f"{shortened(found.keyword)} at {shortened(found.pointer, 200)}: " if found.pointer else ""
        raise ChatError(f"{param}: {where}{found.reason}")
    return schema
