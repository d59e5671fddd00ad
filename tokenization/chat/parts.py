"""The data of a prompt: a chat of turns with text, media and boxes, or a text to continue."""

from typing import Any, Literal

import msgspec

from tokenization.chat.boxes import written
from tokenization.chat.options import MediaOptions

FORBIDDEN_URL = "media_url_forbidden"  # the code of an error: nothing is fetched from there
Kind = Literal["image", "video", "audio"]


class Text(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """Words of a user; they never become a special token."""

    text: str


class Fetched(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What stood behind an http(s) URL, in the place of the URL."""

    data: bytes


class Media(msgspec.Struct, frozen=True, kw_only=True, tag="media"):
    kind: Kind
    source: str | Fetched  # a path or a URL, as the client wrote it; empty where there are frames
    param: str  # the field it came from, for errors: "messages[1].content[3]"
    frames: tuple[str | Fetched, ...] = ()  # of a video that is a list of pictures: the source of each
    options: MediaOptions = MediaOptions()  # what stood beside it; of these a picture has its pixel bounds and detail


def too_many_media(n: int, most: int) -> str:
    """What a client is told, before its media are fetched where that is known by then."""
    return f"the chat holds {n} media items, at most {most} are allowed"


class Boxes(msgspec.Struct, frozen=True, kw_only=True, tag="boxes"):
    """Regions that a user points at, 0 to 1000 on either side of a picture."""

    boxes: tuple[tuple[int, int, int, int], ...]  # (x1, y1, x2, y2)
    ref: str | None  # the words for what is inside
    param: str

    @property
    def text(self) -> str:
        """As a model reads them."""
        return written(self.boxes, self.ref)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """What an assistant asked of a function; all its texts are the client's words."""

    id: str | None
    name: str
    arguments: str  # JSON text of an object; else what the client sent in the place of one, not blank
    is_object: bool = True
    size: int  # characters of all its texts, and one for each other value, but each digit beyond 64 bits
    param: str


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Text | Media | Boxes, ...]
    plain: bool  # the content was one string, not a list: templates may tell them apart
    name: str | None = None  # of who speaks
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str | None = None  # of a tool's answer: which call it is to
    reasoning: str | None = None  # of an assistant: the thoughts before its words
    param: str = ""  # the field that it came from


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    add_generation_prompt: bool = True  # the prompt ends with the opening of an answer
    continue_final_message: bool = False  # it ends inside the last turn, the assistant's, which the answer continues
    template_kwargs: dict[str, Any] = {}  # JSON that the chat template sees under names of its own
    media_options: MediaOptions = MediaOptions()  # what was said of all media at once; each has its share of it
    tools: str = ""  # JSON text of the list of tools that the template shows; empty: none
    left_out: tuple[str, ...] = ()  # other tools of the request, which it does not: what each is called

    @property
    def characters(self) -> int:
        """Those that a template may write, and that may become tokens."""
        n = len(self.tools)
        for turn in self.turns:
            n += len(turn.name or "") + len(turn.tool_call_id or "") + len(turn.reasoning or "")
            for part in turn.parts:
                n += 0 if isinstance(part, Media) else len(part.text)
            for call in turn.tool_calls:
                n += call.size
        return n

    @property
    def media(self) -> tuple[Media, ...]:
        """In the order in which the prompt holds them."""
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Media))


class RawPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the model continues as it stands, without a template: a text, or the ids of one."""

    text: str = ""  # ordinary text, whatever special tokens it spells
    ids: tuple[int, ...] | None = None  # instead of `text`
    opens: bool = True  # what the vocabulary puts in front of every prompt stands before the text, not before ids

    @property
    def media(self) -> tuple[Media, ...]:
        return ()


Prompt = Chat | RawPrompt
