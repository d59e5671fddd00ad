"""Readers of bodies, watched: each key that one asks a body for, and each model that one validates it by."""

from collections.abc import Callable, Mapping
from typing import Any

import pydantic_core
import pytest

from server.http.routes import chat_completions, completions, messages, native, responses_body, tokenize


class Noted(dict[str, Any]):
    """A body that writes down what it is asked for."""

    def __init__(self, body: dict[str, Any], asked: set[str]) -> None:
        super().__init__(body)
        self._asked = asked

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)


def asked_by(read: Callable[[bytes, str], Any], bodies: list[Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the fields that `read` looks at in any of these bodies."""
    asked: set[str] = set()

    def noted(raw: bytes, *, or_inputs: bool = False) -> dict[str, Any]:
        body = pydantic_core.from_json(raw)
        return Noted({"inputs": body} if or_inputs and isinstance(body, list) else body, asked)

    def renamed(found: Any) -> Noted:
        return Noted(by_other_names(found), asked)

    by_other_names = completions._chat_names
    monkeypatch.setattr(completions, "_chat_names", renamed)
    for module in (chat_completions, completions, messages, native, responses_body, tokenize):
        monkeypatch.setattr(module, "body_object", noted)
        monkeypatch.setattr(module, "validated", noting(module.validated, asked))
    for body in bodies:
        read(pydantic_core.to_json(body), "r1")
    return asked


def noting(validated: Callable[..., Any], asked: set[str]) -> Callable[..., Any]:
    """`validated`, which writes down the fields of the models of a body's own, by the names that it has for them.

    Where a reader hands on some fields of a body alone, these are what it asks for.
    """

    def noting(model: Any, body: Any, prefix: str = "", renamed: Mapping[str, str] = {}) -> Any:
        if not prefix:
            names = model.model_fields if isinstance(body, Noted) else model.model_fields.keys() & body.keys()
            asked.update(renamed.get(name, name) for name in names)
        return validated(model, body, prefix, renamed)

    return noting
