"""A conversation as exchanges, for models that know no other form: a user's turn and the answer behind it.

Knows no ids and no model.
"""

from tokenization.chat.errors import ChatError
from tokenization.messages import Chat, Text, Turn

Exchange = tuple[Turn, Turn | None]


def exchanges(chat: Chat) -> tuple[Turn | None, list[Exchange]]:
    """The system turn, if any, and every exchange, oldest first; the last one has no answer yet.

    A user's turn that another one follows has no answer either. Raises ChatError for every other order.
    """
    system = chat.turns[0] if chat.turns and chat.turns[0].role == "system" else None
    found: list[Exchange] = []
    for turn in chat.turns[system is not None :]:
        if turn.role == "system":
            raise ChatError("this model takes one system message, before all others")
        if turn.role == "user":
            found.append((turn, None))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0], turn)
        else:
            raise ChatError("this model takes an assistant's message only behind a user's")
    if not found or found[-1][1] is not None:
        raise ChatError("the last message must be a user's")
    return system, found


def text_of(turn: Turn) -> str:
    """The words of a turn, one behind the other."""
    return "".join(part.text for part in turn.parts if isinstance(part, Text))
