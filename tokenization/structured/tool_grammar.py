"""What an answer that may call tools is held to, as a grammar in Lark: words, then calls by their tools' schemas.

The form is the family's (tool_form.py). `call_parser.py` reads what this lets a model write.
"""

import json
import re
from collections.abc import Mapping

import msgspec

from tokenization.chat.errors import ChatError, shortened
from tokenization.chat.tool_form import ToolForm, head_of
from tokenization.chat.tool_offer import CallRules
from tokenization.structured.compilable import BLANKS, OPTIONS, make_compilable


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
        lines += [
            f'{rule}: {_literal(head_of(tool.name), {})} {rule}_arguments "}}"',
            f"{rule}_arguments: {_json(tool.schema, tool.param, strict=tool.strict)}",
        ]
    if offer.choice == "auto":
        if (words := rules.words) is not None:
            schema = words.source if words.kind == "json_schema" else '{"type": "object"}'
            lines.append(f"words: {_json(schema, words.param, strict=words.strict)}")
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


def _json(source: str, param: str, *, strict: bool) -> str:
    schema = json.loads(source)
    if (found := make_compilable(schema, strict=strict)) is not None:
        where = f"{shortened(found.keyword)} at {shortened(found.pointer, 200)}: " if found.pointer else ""
        raise ChatError(f"{param}: {where}{found.reason}")
    return f"%json {json.dumps({**schema, OPTIONS: BLANKS} if isinstance(schema, dict) else {OPTIONS: BLANKS})}"
