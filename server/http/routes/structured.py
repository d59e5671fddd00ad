"""Reads the form that an answer is held to: `response_format` as OpenAI has it, `structured_outputs` as vLLM has it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from configs.nearest import did_you_mean
from server.requests.refusal import Refusal, invalid_request
from tokenization.chat.errors import shortened, type_name
from tokenization.chat.grammar import Grammar

FORMAT, OUTPUTS = "response_format", "structured_outputs"
FORMS = frozenset((FORMAT, OUTPUTS))
MOST_CHARACTERS = 1 << 20  # of a schema, a regex, all choices or a grammar
MOST_VALUES = 1 << 16  # in a schema, and of choices
ANSWER_KINDS = ("text", "json_object", "json_schema")


def read_grammar(body: Mapping[str, Any]) -> Grammar | None:
    """What the two fields of a body say; None where an answer may be any text. Raises Refusal, naming the field."""
    by_format, by_outputs = _response_format(body.get(FORMAT)), _structured_outputs(body.get(OUTPUTS))
    if by_format is not None and by_outputs is not None:
        raise invalid_request(f"{OUTPUTS}: {FORMAT} has named a form already; give one of the two", OUTPUTS)
    return by_format or by_outputs


def _response_format(value: Any) -> Grammar | None:
    if value is None:
        return None
    fields = _object(value, FORMAT, ("type", "json_schema"))
    kind, schema = fields.get("type"), fields.get("json_schema")
    if kind not in ANSWER_KINDS:
        raise _must(f"{FORMAT}.type", f"be one of {', '.join(ANSWER_KINDS)}")
    if kind != "json_schema" and schema is not None:
        raise invalid_request(f"{FORMAT}.json_schema: needs type json_schema, not {kind}", f"{FORMAT}.json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind="json_object", source="", param=FORMAT)
    named = _object(schema, f"{FORMAT}.json_schema", ("name", "schema", "strict", "description"))
    for name in ("name", "description"):
        if not isinstance(named.get(name, ""), str) or (name == "name" and not named.get(name)):
            raise _must(f"{FORMAT}.json_schema.{name}", "be a string that is not empty")
    if not isinstance(named.get("strict", False), bool):
        raise _must(f"{FORMAT}.json_schema.strict", "be true or false")
    param = f"{FORMAT}.json_schema.schema"
    return Grammar(
        kind="json_schema", source=_schema(named.get("schema"), param), param=param, strict=named.get("strict", False)
    )


def _structured_outputs(value: Any) -> Grammar | None:
    if value is None:
        return None
    readers: Mapping[str, Callable[[Any, str], Grammar]] = {
        "json": lambda one, param: Grammar(
            kind="json_schema", source=_text(one, param) if isinstance(one, str) else _schema(one, param), param=param
        ),
        "regex": lambda one, param: Grammar(kind="regex", source=_text(one, param, or_empty=True), param=param),
        "choice": lambda one, param: Grammar(kind="choice", source=_choices(one, param), param=param),
        "grammar": _grammar,
        "json_object": _json_object,
    }
    neutral = {"disable_any_whitespace": (True, False), "disable_additional_properties": (False,)}
    fields = _object(value, OUTPUTS, (*readers, *neutral, "whitespace_pattern", "structural_tag"))
    for name, one in fields.items():
        if name in readers or any(one is passes for passes in neutral.get(name, ())):
            continue
        reason = "between the tokens of JSON stand the blanks of one form; leave it out"
        if name == "disable_additional_properties":
            reason = "give additionalProperties: false in the schema"
        elif name == "structural_tag":
            reason = f"is not supported; one of {', '.join(readers)} is"
        raise invalid_request(f"{OUTPUTS}.{name}: {reason}", f"{OUTPUTS}.{name}", "unsupported_parameter")
    asked = [name for name in readers if name in fields]
    if len(asked) != 1:
        raise invalid_request(f"{OUTPUTS}: give exactly one of {', '.join(readers)}", OUTPUTS)
    return readers[asked[0]](fields[asked[0]], f"{OUTPUTS}.{asked[0]}")


def _json_object(value: Any, param: str) -> Grammar:
    if value is not True:
        raise _must(param, f"be true; without {OUTPUTS} an answer has no form")
    return Grammar(kind="json_object", source="", param=param)


def _grammar(value: Any, param: str) -> Grammar:
    """In EBNF where one of its lines has "::=" outside a comment, else in Lark, as vLLM tells them apart."""
    source = _text(value, param)
    lines = (line.partition("#")[0].partition("//")[0] for line in source.split("\n"))
    return Grammar(kind="ebnf" if any("::=" in line for line in lines) else "lark", source=source, param=param)


def _choices(value: Any, param: str) -> str:
    if not isinstance(value, list) or not value:
        raise _must(param, "be a list of texts that is not empty")
    for i, choice in enumerate(value):
        if not isinstance(choice, str):
            raise _must(f"{param}[{i}]", f"be a text, not {type_name(choice)}")
    return _source(value, param)


def _text(value: Any, param: str, *, or_empty: bool = False) -> str:
    if not isinstance(value, str) or not (or_empty or value.strip()):
        raise _must(param, "be a string" if or_empty else "be a string that is not empty")
    if "\x00" in value:
        raise _must(param, "hold no NUL character")
    if len(value) > MOST_CHARACTERS:
        raise _too_large(param)
    return value


def _schema(value: Any, param: str) -> str:
    if not isinstance(value, dict):
        raise _must(param, "be a JSON schema, an object")
    return _source(value, param)


def _source(value: Any, param: str) -> str:
    """As JSON, after a count: the encoder lets no other thread run."""
    n_values, n_characters, left = 0, 0, [value]
    while left:
        one = left.pop()
        n_values += 1
        if isinstance(one, dict):
            n_characters += sum(map(len, one))
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str):
            n_characters += len(one)
        if n_values + len(left) > MOST_VALUES or n_characters > MOST_CHARACTERS:
            raise _too_large(param)
    source = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(source) > MOST_CHARACTERS:
        raise _too_large(param)
    return source


def _object(value: Any, param: str, known: tuple[str, ...]) -> dict[str, Any]:
    """What is not null of an object that has no other keys than these."""
    if not isinstance(value, dict):
        raise _must(param, f"be an object with {', '.join(known[:5])}")
    for key in value:
        if key not in known:
            name = shortened(key)
            raise invalid_request(
                f"{param}.{name}: there is no such field{did_you_mean(name, known)}", f"{param}.{name}", "unknown_field"
            )
    return {key: one for key, one in value.items() if one is not None}


def _must(param: str, what: str) -> Refusal:
    return invalid_request(f"{param}: must {what}", param)


def _too_large(param: str) -> Refusal:
    return invalid_request(
        f"{param}: has more than {MOST_CHARACTERS} characters or {MOST_VALUES} values", param, "form_too_large"
    )
