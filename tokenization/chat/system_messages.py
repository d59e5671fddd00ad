"""System messages where a template has a place for one alone: at the head they are one, a later one is a user's."""

from collections.abc import Sequence
from itertools import takewhile

import msgspec

from tokenization.chat.parts import Text, Turn

BETWEEN = "\n\n"


def joined_at_the_head(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Those that a chat begins with as one, in their order, with a blank line between."""
    head = tuple(takewhile(lambda turn: turn.role == "system", turns))
    if len(head) < 2:
        return tuple(turns)
    parts = [*head[0].parts]
    for turn in head[1:]:
        parts += (Text(text=BETWEEN), *turn.parts)
    if plain := all(isinstance(part, Text) for part in parts):
        parts = [Text(text="".join(part.text for part in parts if isinstance(part, Text)))]
    return (msgspec.structs.replace(head[0], parts=tuple(parts), plain=plain), *turns[len(head) :])


def later_as_users(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Those behind another message as a user's, whole and in their places."""
    found: list[Turn] = []
    for turn in turns:
        later = turn.role == "system" and bool(found) and found[-1].role != "system"
        found.append(msgspec.structs.replace(turn, role="user") if later else turn)
    return tuple(found)
