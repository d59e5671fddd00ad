"""The variables that a request gives its chat template: which names and values are taken, and which texts."""

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tokenization.chat.errors import ChatError, shortened, type_name

VARIABLES = "chat_template_kwargs"

MAX_DEPTH = 8
MAX_BYTES = 16384  # of the variables as JSON
BETWEEN = "\ud800"  # half of a surrogate pair, which no special token holds
# What a template is given by us, what transformers takes under the same roof, and what belongs to Jinja itself.
RESERVED = frozenset({
    "messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize",
    "chat_template", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "raise_exception", "strftime_now", "range", "dict", "lipsum",
    "cycler", "joiner", "namespace", "self", "super", "caller", "varargs", "kwargs", "loop",
})  # fmt: skip


def read_variables(value: Any) -> dict[str, Any]:
    """What a body gives its template. Raises ChatError, naming the variable."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ChatError(f"{VARIABLES}: expected an object, got {type_name(value)}", VARIABLES)
    for name in value:
        param = f"{VARIABLES}.{shortened(name)}"
        if name in RESERVED or name.startswith("_"):
            raise ChatError(f"{param}: the name is reserved; the server itself gives it to the template", param)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            raise ChatError(f"{param}: no template can read a variable of this name", param)
        _check_value(value[name], param, 1)
    size = sum(map(len, _texts(value)))  # before it is written in one call
    size = size if size > MAX_BYTES else len(msgspec.json.encode(value))
    if size > MAX_BYTES:
        raise ChatError(f"{VARIABLES}: {size} bytes as JSON; at most {MAX_BYTES} are taken", VARIABLES)
    return value


def refuse_special(variables: Mapping[str, Any], special: Collection[str]) -> None:
    """Raise ChatError where a text could become a special token in the prompt, by itself or beside another text.

    A template may write its variables anywhere, and nothing tells there that a client wrote them.
    """
    texts = tuple(_texts(variables))
    whole = BETWEEN.join(texts)
    heads, tails = sorted(special), sorted(token[::-1] for token in special)
    longest = max(map(len, special), default=0)
    if any(token in whole for token in special) or any(
        _ends_in_beginning(text, heads, longest) or _ends_in_beginning(text[::-1], tails, longest) for text in texts
    ):
        raise ChatError(
            f"{VARIABLES}: a text must not hold a special token of the model, end with the beginning of one or "
            "begin with the end of one",
            VARIABLES,
        )


def _ends_in_beginning(text: str, tokens: Sequence[str], longest: int) -> bool:
    """Whether what a text ends with is the beginning of one of these, and not all of it. tokens: sorted."""
    for n in range(1, min(len(text) + 1, longest)):
        end = text[-n:]
        at = bisect_right(tokens, end)
        if at < len(tokens) and tokens[at].startswith(end):
            return True
    return False


def _check_value(value: Any, param: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ChatError(f"{param}: lists and objects lie in each other more than {MAX_DEPTH} deep", param)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ChatError(f"{param}: a whole number must fit into 64 bits", param)
    if isinstance(value, float) and not math.isfinite(value):
        raise ChatError(f"{param}: a number must be finite", param)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_value(one, param, depth + 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
