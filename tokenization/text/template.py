"""Renders a checkpoint's chat template and tells users' texts from the template's."""

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from configs.checkpoint import PROCESSOR_CONFIG, Checkpoint, CheckpointError
from tokenization.chat.errors import ChatError, shortened
from tokenization.chat.parts import Boxes, Chat, Kind, Media, Text, ToolCall, Turn
from tokenization.chat.rendering import CONTINUE
from tokenization.chat.system_messages import joined_at_the_head, later_as_users
from tokenization.chat.tools import refuse_tools
from tokenization.text.tokenizer import named_tokens

if TYPE_CHECKING:
    from tokenization.text.sandbox import Program

BUILT_IN = "the processor's class"  # where a template comes from that no file holds
OUR_OWN = "our own (no file holds one)"
OPERATORS = "--chat-template"  # and the file that it names

NO_TOOLS = (
    "the model's chat template cannot show tools; leave them out, or start the server with one that can "
    "(--chat-template FILE)"
)
# What JSON Schema and the frame of a tool are made of. Templates look for these words; no client wrote them.
KEYWORDS = frozenset(
    "type function name description parameters strict properties required items enum const anyOf oneOf allOf not $ref "
    "$defs definitions additionalProperties patternProperties prefixItems minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf minLength maxLength pattern format minItems maxItems uniqueItems title default "
    "examples nullable".split()
)
TYPES = frozenset("function object string integer number boolean array null".split())

# (text, written by a user): in order, without loss
Pieces = list[tuple[str, bool]]
Marked = Callable[[str], str]  # a client's words, between marks
# the turns, the roles whose content stays a string where it is one (else it is a list as well), and whether arguments
# of a call that are no object are shown inside one
Form = tuple[Sequence[Turn], Collection[str], bool]

# A medium as templates look for it: pictures and videos by their type, sounds by any of three keys.
_MEDIA: Mapping[Kind, Mapping[str, str]] = {
    "image": {"type": "image"},
    "video": {"type": "video"},
    "audio": {"type": "audio", "audio": "", "audio_url": ""},
}


class ChatTemplate:
    """A program that nobody has read: it is compiled and run only by who renders, in a process that may be ended."""

    def __init__(self, source: str, variables: Mapping[str, str], location: str) -> None:
        """`variables` are the named tokens, `location` is the file that errors name."""
        self._source = source
        self._variables = dict(variables)
        self.location = location

    @cached_property
    def _program(self) -> "Program":
        from tokenization.text.sandbox import Program  # jinja2, in no process that only reads a checkpoint's files

        return Program(self._source, self._variables, self.location)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, built_in: str | None = None, otherwise: str | None = None
    ) -> "ChatTemplate":
        """The operator's own, else the first that processor_config.json, chat_template.json, chat_template.jinja hold.

        Their order is that of docs/adr/0012. Where none does: `built_in`, the template of a processor class that brings
        one and so never asks its tokenizer; of other families tokenizer_config.json's. Without that too `otherwise`, of
        a family whose first directories came without one. Raises CheckpointError without any.
        """

        def sources() -> Iterator[tuple[str | None, str]]:
            """One by one: a file is not read where one before it holds a template."""
            if checkpoint.chat_template is not None:
                yield _operators(checkpoint), f"{OPERATORS} {checkpoint.chat_template}"
            yield _in_file(checkpoint, PROCESSOR_CONFIG), PROCESSOR_CONFIG
            yield _in_file(checkpoint, "chat_template.json"), "chat_template.json"
            yield checkpoint.text("chat_template.jinja"), "chat_template.jinja"
            yield built_in, BUILT_IN
            yield _in_file(checkpoint, "tokenizer_config.json"), "tokenizer_config.json"
            yield otherwise, OUR_OWN

        for source, location in sources():
            if source is not None:
                return cls(source, named_tokens(checkpoint.file("tokenizer_config.json")), location)
        raise CheckpointError(
            "no chat template: none of processor_config.json, chat_template.json, chat_template.jinja and "
            "tokenizer_config.json holds one; put the published model's chat_template.json into the directory"
        )

    def render(self, chat: Chat) -> Pieces:
        """The prompt up to the answer; a text's outer blanks count as the template's. Raises ChatError if refused.

        Raises CheckpointError for one that does not compile, and MemoryError.
        """
        refuse_tools(chat, calls=self._program.takes_calls, answers=self._program.takes_answers)
        if chat.tools and not self._program.shows_tools:
            raise ChatError(NO_TOOLS, "tools", "unsupported_parameter")
        if not self._program.shows_several:
            chat = msgspec.structs.replace(chat, turns=joined_at_the_head(chat.turns))
        if not self._program.shows_later:
            chat = msgspec.structs.replace(chat, turns=later_as_users(chat.turns))
        refused: list[ChatError] = []
        for form in _forms(chat, reads_strings=self._program.reads_strings):
            try:
                return self._rendered(chat, form)
            except ChatError as error:
                refused.append(error)
        raise refused[0]

    def _rendered(self, chat: Chat, form: Form) -> Pieces:
        turns, strings, wraps = form
        mark = secrets.token_hex(16)  # new for each: nobody can write it beforehand
        opening, closing, end = f"q{mark}b", f"q{mark}e", f"q{mark}f"
        marked = partial(_marked, opening, closing)
        messages = [_message(turn, marked, as_list=turn.role not in strings, wraps=wraps) for turn in turns]
        tools = json.loads(chat.tools) if chat.tools else []
        if chat.continue_final_message:
            _mark_end(messages[-1], f"{end} ")
        try:
            rendered = self._program.run(
                messages, chat.add_generation_prompt, chat.template_kwargs, _shown(tools, marked) or None
            )
        except ChatError as error:
            said = shortened(re.sub(f"{opening}|{closing}|{end}", "", error.message), 200)
            raise ChatError(
                "the model's chat template refuses this conversation" + (f": {said}" if said else "")
            ) from None
        if chat.continue_final_message:
            rendered = _cut_at(rendered, end)
        pieces = _split(rendered, opening, closing)
        _check_words(turns, tools, pieces)
        return pieces


def _operators(checkpoint: Checkpoint) -> str:
    """Raises CheckpointError where the file is no text any more."""
    try:
        found = checkpoint.text(str(checkpoint.chat_template))
    except CheckpointError as error:
        raise CheckpointError(f"{OPERATORS} {error}") from None
    if found is None:
        raise CheckpointError(f"{OPERATORS} {checkpoint.chat_template}: there is no such file")
    return found


def _in_file(checkpoint: Checkpoint, file: str) -> str | None:
    """The template under `chat_template` of a JSON file: a string, or the one named "default" of several."""
    value = checkpoint.file(file).read(object, "chat_template", None)
    if isinstance(value, list):
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) and value else None


def _forms(chat: Chat, *, reads_strings: bool) -> Iterator[Form]:
    """The ways in which templates want a chat.

    reads_strings: a user's message may be one. Some templates read the first text of a message alone, or take a system
    message as a string where a user's must be a list. Some show arguments of a call only where they are an object.
    """
    others = ("system", "assistant", "tool")
    strings = ("user", *others) if reads_strings else ()
    for wraps in (False, True):
        yield chat.turns, strings, wraps
        joined = tuple(msgspec.structs.replace(turn, parts=_joined(turn.parts)) for turn in chat.turns)
        if joined != chat.turns:
            yield joined, strings, wraps
        if any(turn.plain and turn.role != "user" for turn in joined):
            yield joined, others, wraps
        if all(call.is_object for turn in chat.turns for call in turn.tool_calls):
            return


def _joined(parts: tuple[Text | Media | Boxes, ...]) -> tuple[Text | Media | Boxes, ...]:
    """Neighbouring texts as one."""
    found: list[Text | Media | Boxes] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Text) and isinstance(last, Text):
            found[-1] = Text(text=last.text + part.text)
        else:
            found.append(part)
    return tuple(found)


def _marked(opening: str, closing: str, text: str) -> str:
    if not (core := text.strip()):
        return text
    head, _, tail = text.partition(core)
    return f"{head}{opening}{core}{closing}{tail}"


def _shown(value: Any, marked: Marked) -> Any:
    """Tools as templates take them: all but `KEYWORDS` and `TYPES` are the client's words."""
    if isinstance(value, str):
        return value if value in TYPES else marked(value)
    if isinstance(value, dict):
        return {key if key in KEYWORDS else marked(key): _shown(inner, marked) for key, inner in value.items()}
    return [_shown(inner, marked) for inner in value] if isinstance(value, list) else value


def _message(turn: Turn, marked: Marked, *, as_list: bool, wraps: bool) -> dict[str, Any]:
    """One turn as the hub's templates take it: {"role", "content"} with a string or a list of typed parts.

    as_list: never a string; wraps: as in Form.
    """
    if turn.plain and not as_list:
        content: Any = "".join(marked(part.text) for part in turn.parts if isinstance(part, Text))
    else:
        content = [
            {**_MEDIA[part.kind]} if isinstance(part, Media) else {"type": "text", "text": marked(part.text)}
            for part in turn.parts
        ]
    message = {"role": turn.role, "content": content}
    if turn.name is not None:
        message["name"] = marked(turn.name)
    if turn.tool_call_id is not None:
        message["tool_call_id"] = marked(turn.tool_call_id)
    if turn.reasoning is not None:
        message["reasoning_content"] = marked(turn.reasoning)
    if turn.tool_calls:
        message["tool_calls"] = [_call(call, marked, wraps=wraps) for call in turn.tool_calls]
    return message


def _call(call: ToolCall, marked: Marked, *, wraps: bool) -> dict[str, Any]:
    """One tool call as templates take it: its arguments an object, whose keys and texts are the client's words.

    What is no object is itself such a text, or else (wraps) the one of an object.
    """

    def all_marked(value: Any) -> Any:
        if isinstance(value, str):
            return marked(value)
        if isinstance(value, dict):
            return {marked(key): all_marked(inner) for key, inner in value.items()}
        return [all_marked(inner) for inner in value] if isinstance(value, list) else value

    if call.is_object:
        arguments = all_marked(json.loads(call.arguments))
    else:
        arguments = {"arguments": marked(call.arguments)} if wraps else marked(call.arguments)
    function = {"name": marked(call.name), "arguments": arguments}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": marked(call.id)})


def _check_words(turns: Sequence[Turn], tools: Sequence[dict[str, Any]], pieces: Pieces) -> None:
    """Raise ChatError where a template leaves out a text, or a tool call or a tool though it knows them.

    Of arguments those that are no object are looked for: some templates have no place for these.
    """
    n_written = Counter(text for text, by_user in pieces if by_user)
    asked: dict[str, list[tuple[str, str]]] = {}  # words -> (field, what it is) of each time that they were said
    for i, tool in enumerate(tools):
        if (name := tool["function"]["name"]) not in TYPES:
            asked.setdefault(name, []).append((f"tools[{i}]", "tool"))
    for turn in turns:
        for call in turn.tool_calls:
            asked.setdefault(call.name.strip(), []).append((call.param, "tool call"))
            if not call.is_object:
                asked.setdefault(call.arguments.strip(), []).append((call.param, "tool call's arguments"))
        for part in turn.parts:
            if not isinstance(part, Media):
                asked.setdefault(part.text.strip(), []).append((turn.param, "text"))
    for words, places in asked.items():
        spellings = {words, json.dumps(words)[1:-1], json.dumps(words, ensure_ascii=False)[1:-1]}
        if words and sum(n_written[spelling] for spelling in spellings) < len(places):
            param, what = places[0]
            raise ChatError(f"the model's chat template leaves this {what} out", param)


def _mark_end(message: dict[str, Any], end: str) -> None:
    """Put `end` behind the last text of a message. Raises ChatError for one without a text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + end
        return
    for part in reversed(content):
        if part["type"] == "text":
            part["text"] += end
            return
    raise ChatError("the last message has no text to continue", CONTINUE)


def _cut_at(rendered: str, end: str) -> str:
    """What stands before the last `end`, as transformers cuts it: a template that trims texts trims this one too."""
    head, found, tail = rendered.rpartition(end)
    if not found:
        raise ChatError("the model's chat template leaves the end of the last message out", CONTINUE)
    return head if tail.startswith(" ") else head.rstrip()


def _split(rendered: str, opening: str, closing: str) -> Pieces:
    """Cut at the marks and drop them. A mark that is torn or alone would pass a user's words off as the template's."""
    pieces: Pieces = []
    inside = torn = False
    fragment = re.compile("|".join(re.findall("[0-9a-f]{8}", opening)))
    for part in re.split(f"({opening}|{closing})", rendered):
        if part in (opening, closing):
            torn |= (part == opening) == inside
            inside = not inside
        elif part:
            torn |= fragment.search(part) is not None
            pieces.append((part, inside))
    if inside or torn:
        raise ChatError("the model's chat template tears this conversation's texts apart")
    return pieces
