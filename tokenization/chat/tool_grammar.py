"""What an answer that may call tools is held to, as a grammar in Lark: words, then calls by their tools' schemas.

The form is the family's (tool_form.py). `call_parser.py` reads what this lets a model write.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.chat.tool_form import ToolForm, head_of
from tokenization.chat.tool_offer import TOOLS, ToolOffer

# The blanks of JSON, one form of them: llguidance's key of a schema for this.
_BLANKS = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


def call_grammar(offer: ToolOffer, form: ToolForm, special: Mapping[str, int], words: Grammar | None = None) -> Grammar:
    """special: the vocabulary's special tokens. words: what an answer that does not call is held to.

    Raises ChatError for words that no grammar of calls can stand beside.
    """
    calls = [f"call_{i}" for i in range(len(offer.tools))]
    more = "" if offer.single else f" ({_literal(form.between, special)} call)*"
    rules = [
        f"start: {_start(offer, form, special, words)}",
        f"calls: {_literal(form.opening, special)} call{more} {_literal(form.closing, special)}",
        f"call: {' | '.join(calls)}",
    ]
    for rule, tool in zip(calls, offer.tools, strict=True):
        rules += [
            f'{rule}: {_literal(head_of(tool.name), {})} {rule}_arguments "}}"',
            f"{rule}_arguments: {_json(json.loads(tool.schema))}",
        ]
    if offer.choice == "auto":
        if words is not None:
            rules.append(f"words: {_json(_schema_of(words))}")
        elif form.mark not in special:
            rules.append(f"marked[lazy]: WORDS {_literal(form.mark, {})}")
        rules.append("WORDS: /(?s:.*)/")
    return Grammar(kind="lark", source="\n".join(rules), param=TOOLS)


def _start(offer: ToolOffer, form: ToolForm, special: Mapping[str, int], words: Grammar | None) -> str:
    mark = _literal(form.mark, special)
    if offer.choice != "auto":
        return f"{mark} calls"
    if words is not None:
        return f"words | {mark} calls"
    return f"WORDS | WORDS {mark} calls" if form.mark in special else "WORDS | marked calls"


def _literal(text: str, special: Mapping[str, int]) -> str:
    """A text as terminals, special tokens in it by their ids."""
    found = sorted((token for token in special if token in text), key=len, reverse=True)  # the longest first
    if not found:
        return json.dumps(text)
    pieces = re.split(f"({'|'.join(map(re.escape, found))})", text)
    return " ".join(f"<[{special[one]}]>" if one in special else json.dumps(one) for one in pieces if one)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, **_BLANKS})}"


def _schema_of(words: Grammar) -> dict[str, Any]:
    if words.kind == "json_object":
        return {"type": "object"}
    if words.kind == "json_schema" and isinstance(schema := json.loads(words.source), dict):
        return schema
    raise ChatError("beside tools that may be called an answer is held to a JSON schema or to nothing", words.param)
