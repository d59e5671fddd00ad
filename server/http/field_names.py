"""The fields of a body whose chat is read in another dialect's names: errors call them as their client does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.requests.refusal import Refusal
from tokenization.chat.errors import ChatError

_FIELD = re.compile(r"(?<!['\w.])[a-z]+_[a-z_]+(?!['\w])")  # a name that no English word looks like


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """`known`: a client's own path of a field, by the path that the reader of chats gives it."""

    known: dict[str, str] = field(default_factory=dict)

    def of(self, path: str) -> str:
        """The client's path: of what lies inside a known field, that field's and the rest."""
        end = len(path)
        while end > 0:
            if (name := self.known.get(path[:end])) is not None:
                return name + path[end:]
            end = max(path.rfind(".", 0, end), path.rfind("[", 0, end))
        return path

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of a request leave with its client's names: in `param`, and wherever their message has a field's.

        Inside a message that is a name which is no word, and not in quotes: those are the client's own words.
        """
        try:
            yield
        except (ChatError, Refusal) as error:
            if error.param is not None:
                path, error.param = error.param, self.of(error.param)
                begins = error.message.startswith(f"{path}: ")
                start, rest = (error.param, error.message[len(path) :]) if begins else ("", error.message)
                error.message = start + _FIELD.sub(lambda found: self.known.get(found[0], found[0]), rest)
            raise
