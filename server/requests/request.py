"""One accepted chat: what its client asked for, under an id of ours."""

from dataclasses import dataclass

from server.requests.grounding import Grounding
from server.requests.sampling import Wishes
from tokenization.chat.parts import Chat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One accepted chat. `id` is ours, never the client's."""

    id: str
    chat: Chat
    chat_param: str  # "messages" or "inputs": what an error about the whole chat names
    wishes: Wishes
    grounding: Grounding = "none"

    def parameter(self, name: str) -> str:
        """Where a parameter of sampling stands in the body."""
        return f"parameters.{name}" if self.chat_param == "inputs" else name
