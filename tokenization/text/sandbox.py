"""The jinja2 sandbox that chat templates run in, with the functions that transformers gives them.

It bounds what a template may reach, and neither time nor memory. template_proof.py bounds these at start, and a
worker's own limits (worker_memory.py, --step-seconds) at each chat.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from configs.checkpoint import CheckpointError
from tokenization.chat.errors import ChatError, shortened

_PROBE = "\ue0a1"  # a character for private use, which no template says by itself
_TOOL = {  # with all that a template may read of a tool
    "type": "function",
    "function": {
        "name": _PROBE, "description": "x",
        "parameters": {
            "type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"],
        },
    },
}  # fmt: skip

# What a template may raise besides Jinja's own errors when a conversation is not of the form it expects.
_RENDER_ERRORS = (
    jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError,
)  # fmt: skip
# What its text may raise when it is compiled: a deep nest is too much for Jinja, or for Python behind it.
_COMPILE_ERRORS = (*_RENDER_ERRORS, SyntaxError)


class Program:
    """A template, compiled. What it does is its writer's: whoever makes or runs one bounds time and memory."""

    def __init__(self, source: str, variables: Mapping[str, str], location: str) -> None:
        """As of ChatTemplate. Raises CheckpointError, and MemoryError."""
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
            words = {node.value for node in tree.find_all(nodes.Const)}  # that it compares with
            words |= {node.attr for node in tree.find_all(nodes.Getattr)}  # fields that it reads
        except _COMPILE_ERRORS as error:
            said = shortened(str(error), 200)
            raise CheckpointError(f"{location}: the chat template does not compile: {said}") from None
        self._variables = variables
        self.takes_calls, self.takes_answers = "tool_calls" in words, "tool" in words
        self.reads_strings = self._shows(_said("user", _PROBE)) or not self._shows(_said("user", _PROBE, as_list=True))
        user = _said("user", as_list=not self.reads_strings)
        self.shows_tools = self._shows(user, tools=[_TOOL])
        system = [(_said("system", as_list=one), _said("system", _PROBE, as_list=one)) for one in (True, False)]
        answers = [_said("assistant", as_list=one) for one in (True, False)]
        # Of several system messages: those at the head, and one behind other messages.
        self.shows_several = any(self._shows(first, second, user) for first, second in system)
        self.shows_later = any(
            self._shows(user, answer, later, user) for answer, (_, later) in zip(answers, system, strict=True)
        )

    def run(
        self, messages: list[dict[str, Any]], opens: bool, given: Mapping[str, Any], tools: list[Any] | None = None
    ) -> str:
        """Raises ChatError, with what the template says where it says something, and MemoryError."""
        variables = {
            **given, **self._variables, "messages": messages, "tools": tools, "documents": None,
            "add_generation_prompt": opens,
        }  # fmt: skip
        try:
            return self._template.render(variables)
        except _RENDER_ERRORS as error:
            raise ChatError(str(error) if isinstance(error, jinja2.TemplateRuntimeError | _Refused) else "") from None

    def _shows(self, *messages: dict[str, Any], tools: list[Any] | None = None) -> bool:
        """Whether `_PROBE` is seen in the prompt: some templates pass over a plain string, and many over tools."""
        try:
            return _PROBE in self.run(list(messages), True, {}, tools)
        except ChatError:
            return False


def _said(role: str, text: str = "x", *, as_list: bool = False) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}] if as_list else text}


class _Refused(jinja2.TemplateError):
    """What a template says by raise_exception()."""


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """{% generation %}...{% endgeneration %} tells training code where answers stand; here it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    pair = None if separators is None else (separators[0], separators[1])
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)
