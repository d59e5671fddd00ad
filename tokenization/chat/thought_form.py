"""How a model writes its thoughts: the marks around them, which its family declares."""

import msgspec

from tokenization.chat.parts import Chat, Text, Turn


class ThoughtForm(msgspec.Struct, frozen=True, kw_only=True):
    """Thoughts stand between two marks. Ends of lines beside `closing` belong neither to them nor to the answer.

    A checkpoint thinks aloud where its vocabulary holds both marks, each as one token, and where its prompt ends behind
    `opening`: the answer then begins inside a thought.
    """

    opening: str
    closing: str

    def told_apart(self, chat: Chat) -> Chat:
        """With the thoughts of earlier answers whose words hold them, marks and all, beside these words.

        As chat templates of such models take them apart, which would tear the marks around a client's words.
        """
        return msgspec.structs.replace(chat, turns=tuple(map(self._told_apart, chat.turns)))

    def _told_apart(self, turn: Turn) -> Turn:
        texts = [part.text for part in turn.parts if isinstance(part, Text)]
        said = "".join(texts)
        if turn.role != "assistant" or turn.reasoning is not None or len(texts) < len(turn.parts):
            return turn
        if self.closing not in said:
            return turn
        thoughts, words = said.partition(self.closing)[0], said.rpartition(self.closing)[2]
        return msgspec.structs.replace(
            turn,
            reasoning=thoughts.rstrip("\n").rpartition(self.opening)[2].lstrip("\n"),
            parts=(Text(text=words.lstrip("\n")),),
            plain=True,
        )


THINK = ThoughtForm(opening="<think>", closing="</think>")  # of several lines of models
