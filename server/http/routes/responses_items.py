"""The items of OpenAI's Responses become messages, as the reader of chats takes them."""

from collections.abc import Callable, Mapping
from typing import Any

from configs.fetch import MAX_URL
from server.http.field_names import FieldNames
from tokenization.chat.errors import ChatError, expect, shortened, type_name
from tokenization.chat.options import KEYS
from tokenization.chat.parts import Kind

ROLES = ("user", "assistant", "system", "developer")
STATELESS = "nothing is stored here: send store: false and whole items"
REFERENCE = (
    f"an item_reference stands for a stored answer; {STATELESS} "
    "(AI SDK: `providerOptions: { openai: { store: false } }`; Agents SDK: `ModelSettings(store=False)`)"
)
OF_TYPE: Mapping[str, Kind] = {"image": "image", "video": "video", "audio": "audio"}
# Of a file without a type of its own, by the end of its name.
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"), "image"),
    **dict.fromkeys(("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg", "opus", "m4a", "aac"), "audio"),
}


class Messages:
    """What the items become one after the other; `names` learns where each field of theirs has come from."""

    def __init__(self, names: FieldNames) -> None:
        self.found: list[dict[str, Any]] = []
        self._names = names.known

    def read(self, body: Mapping[str, Any]) -> list[Any]:
        """The messages of `instructions` and `input`. Raises ChatError."""
        if body.get("instructions") is not None:
            text = expect(body["instructions"], str, "a string", "instructions")
            self._add("system", "instructions", text, "instructions")
        n_before, items = len(self.found), body.get("input")
        if isinstance(items, str):
            self._add("user", "input", items, "input")
        else:
            for i, item in enumerate(expect(items, list, "a text or a list of items", "input")):
                self._item(item, f"input[{i}]")
        if len(self.found) == n_before:
            raise ChatError("at least one item with a message is needed", "input")
        return self.found

    def _item(self, item: Any, param: str) -> None:
        item = expect(item, dict, "an item, which is an object", param)
        readers: Mapping[str, Callable[[dict[str, Any], str], None]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._thought,
        }
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference" if "id" in item else None
        if kind == "item_reference":
            raise ChatError(REFERENCE, param, "unsupported_parameter")
        if not isinstance(kind, str) or kind not in readers:
            shown = f"'{shortened(kind)}'" if isinstance(kind, str) else type_name(kind)
            raise ChatError(f"the type of an item is one of {', '.join(readers)}, got {shown}", f"{param}.type")
        readers[kind](item, param)

    def _message(self, item: dict[str, Any], param: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            shown = f"'{shortened(role)}'" if isinstance(role, str) else type_name(role)
            raise ChatError(f"the role is one of {', '.join(ROLES)}, got {shown}", f"{param}.role")
        self._add(role, param, item.get("content"), f"{param}.content")

    def _thought(self, item: dict[str, Any], param: str) -> None:
        """It belongs to the assistant's words and calls behind it. A summary, or what is encrypted, is no thought."""
        parts = expect(item.get("content") or [], list, "a list of parts", f"{param}.content")
        texts = []
        for k, part in enumerate(parts):
            at = f"{param}.content[{k}]"
            part = expect(part, dict, "an object with 'type' and 'text'", at)
            texts.append(expect(part.get("text"), str, "a string", f"{at}.text"))
        if texts:
            own = f"messages[{len(self.found)}]"
            self._names |= {own: param, f"{own}.reasoning": f"{param}.content"}
            self.found.append({"role": "assistant", "content": None, "reasoning": "".join(texts)})

    def _call(self, item: dict[str, Any], param: str) -> None:
        """A call belongs to the assistant's message in front of it, where there is one."""
        for name in ("call_id", "name", "arguments"):
            expect(item.get(name), str, "a string", f"{param}.{name}")
        if not self.found or self.found[-1]["role"] != "assistant":
            self._names[f"messages[{len(self.found)}]"] = param
            self.found.append({"role": "assistant", "content": None})
        calls = self.found[-1].setdefault("tool_calls", [])
        all_calls = f"messages[{len(self.found) - 1}].tool_calls"
        own = f"{all_calls}[{len(calls)}]"
        self._names.setdefault(all_calls, param)
        self._names |= {own: param, f"{own}.id": f"{param}.call_id", f"{own}.function": param}
        function = {"name": item["name"], "arguments": item["arguments"]}
        calls.append({"id": item["call_id"], "type": "function", "function": function})

    def _output(self, item: dict[str, Any], param: str) -> None:
        call_id = expect(item.get("call_id"), str, "a string", f"{param}.call_id")
        self._names[f"messages[{len(self.found)}].tool_call_id"] = f"{param}.call_id"
        self._add("tool", param, item.get("output"), f"{param}.output")
        self.found[-1]["tool_call_id"] = call_id

    def _add(self, role: str, param: str, content: Any, content_param: str) -> None:
        """One message of what stands at `param`, with the thought before it. A list of one text is that text."""
        message: dict[str, Any] = {"role": role}
        last = self.found[-1] if self.found else {}
        if role == "assistant" and "reasoning" in last and last["content"] is None and "tool_calls" not in last:
            message = self.found.pop()
        own = f"messages[{len(self.found)}]"
        self._names |= {own: param, f"{own}.content": content_param}
        if not isinstance(content, str):
            parts = expect(content, list, "a string or a list of parts", content_param)
            if not parts:
                raise ChatError("at least one part is needed", content_param)
            content = [self._part(part, f"{content_param}[{k}]", f"{own}.content[{k}]") for k, part in enumerate(parts)]
            if len(content) == 1 and content[0]["type"] == "text":
                self._names[f"{own}.content"] = f"{content_param}[0].text"
                content = expect(content[0]["text"], str, "a string", f"{content_param}[0].text")
        self.found.append({**message, "content": content})

    def _part(self, part: Any, param: str, own: str) -> dict[str, Any]:
        part = expect(part, dict, "an object with a 'type'", param)
        kind = part.get("type")
        if kind in ("input_text", "output_text"):
            return {"type": "text", "text": part.get("text")}
        if kind in ("refusal", "input_audio", "video_url"):  # a video has no type of OpenAI's
            return {"type": kind, kind: part.get(kind)}
        if part.get("file_id") is not None:
            raise ChatError(f"{STATELESS}; give the file's data", f"{param}.file_id", "unsupported_parameter")
        if kind == "input_image":
            return self._medium("image", part.get("image_url"), part, f"{param}.image_url", own)
        if kind == "input_file":
            return self._file(part, param, own)
        taken = "input_text, output_text, refusal, input_image, input_audio, input_file, video_url"
        shown = f"'{shortened(kind)}'" if isinstance(kind, str) else type_name(kind)
        raise ChatError(f"the type of a part is one of {taken}, got {shown}", f"{param}.type")

    def _file(self, part: dict[str, Any], param: str, own: str) -> dict[str, Any]:
        """A picture, a video or a sound, as its data: URL or its name says."""
        field = "file_data" if part.get("file_data") is not None else "file_url"
        param = f"{param}.{field}"
        source = expect(part.get(field), str, "the file's data, a data: URL", param)
        inline = source[:5].lower() == "data:"
        said = source[5 * inline : 64].partition(";")[0].partition(",")[0].strip().lower()
        name = part.get("filename")
        address = source[:MAX_URL].partition("?")[0].partition("#")[0] if field == "file_url" else ""
        endings = [one.rpartition(".")[2].lower() for one in (name, address) if isinstance(one, str)]
        ending = next((one for one in endings if one in KINDS), "")
        kind = OF_TYPE.get(said.partition("/")[0]) if inline else KINDS.get(ending)
        if kind is None:
            shown = f"'{shortened(said)}'" if inline else "one that nothing names"
            raise ChatError(f"a file is a picture, a video or a sound, this is {shown}", param, "unsupported_modality")
        if field == "file_data" and not inline:
            source = f"data:{kind}/{ending};base64,{source}"
        return self._medium(kind, source, part, param, own)

    def _medium(self, kind: Kind, source: Any, part: dict[str, Any], param: str, own: str) -> dict[str, Any]:
        """With the options that stand beside it."""
        source = expect(source, str, "a data: URL or an address", param)
        options = {key: part[key] for key in KEYS[kind] if part.get(key) is not None}
        name = f"{kind}_url"
        self._names |= {own: param, f"{own}.{name}": param.rpartition(".")[0], f"{own}.{name}.url": param}
        return {"type": name, name: {"url": source, **options}}
