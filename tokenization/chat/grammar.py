"""The form that an answer is held to, as a request names it: a JSON schema, a regex, some choices, a grammar."""

from typing import Literal

import msgspec

# json_object: any object; its source is empty. lark: as llguidance reads it. ebnf: GBNF, as vLLM takes it.
GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark", "ebnf"]


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """Not checked yet: a worker does that (tokenization/structured/compile.py)."""

    kind: GrammarKind
    source: str  # JSON text of a schema or of a list of choices; a regex; a grammar
    strict: bool = False  # of a schema: objects have the properties that are listed, all of them, and no others
    param: str  # the field that it came from, for errors: "response_format.json_schema.schema"
