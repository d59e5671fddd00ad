"""The form that an answer is held to, as a request names it: a JSON schema, a regex, some choices, a grammar."""

from typing import Literal

import msgspec

# json_object: any object; its source is empty. lark: as llguidance reads it. ebnf: GBNF, as vLLM takes it. tools: words
# and calls of tools; its source is CallRules (tokenization/chat/tool_offer.py) as JSON.
GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "ebnf", "tools"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """Not checked yet: a worker does that (tokenization/structured/compile.py)."""

    kind: GrammarKind
    source: str  # JSON text of a schema or of a list of choices; a regex; a grammar
    strict: bool = False  # of a schema: objects have the properties that are listed, all of them, and no others
    param: str  # the field that it came from, for errors: "response_format.json_schema.schema"
    # Special tokens that the answer may hold where the grammar names them, in Lark as `<[ID]>`: a family's marks of
    # tool calls, never a client's wish.
    marks: tuple[int, ...] = ()


class CompiledGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar that a worker has compiled: the engine compiles it once more, within the same limits."""

    source: str  # llguidance's serialised form
    marks: tuple[int, ...] = ()  # as of Grammar
    accepts_nothing: bool = False  # an answer without a token fits
