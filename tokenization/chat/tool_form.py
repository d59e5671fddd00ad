"""How a model writes calls of tools: the marks around them, which its family declares, and one call inside them."""

from collections.abc import Mapping

import msgspec


class ToolForm(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that calls is words or none, `mark`, `opening`, calls with `between` between them, `closing`.

    One call is {"name": "...", "arguments": {...}}, with a blank behind each comma and colon, as json.dumps writes it.
    What is a special token of the vocabulary in these is that token, and else text.
    """

    name: str  # as vLLM's --tool-call-parser calls it
    mark: str
    opening: str
    between: str
    closing: str

    def special(self, special: Mapping[str, int]) -> dict[str, int]:
        """Those of a vocabulary's special tokens that stand in it: they are part of an answer's text."""
        written = (self.mark, self.opening, self.between, self.closing)
        return {token: token_id for token, token_id in special.items() if any(token in text for text in written)}


HERMES = ToolForm(
    name="hermes",
    mark="<tool_call>",
    opening="\n",
    between="\n</tool_call>\n<tool_call>\n",
    closing="\n</tool_call>",
)  # of many lines of models


def head_of(name: str) -> str:
    """What stands before the arguments of a call of this function."""
    return f'{{"name": "{name}", "arguments": '
