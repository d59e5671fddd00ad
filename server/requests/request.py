"""One request for an answer, as both dialects end in it."""

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Literal

from server.request_context import RequestContext
from server.requests.sampling import SamplingRequest
from tokenization.chat.grammar import Grammar
from tokenization.chat.parts import Prompt
from tokenization.chat.tool_offer import ToolOffer

Grounding = Literal["none", "boxes", "drawn"]  # what a request wants to know


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat, or a text to continue, with what its client wants of the answer, read and checked field by field."""

    id: str  # ours, never the client's: it stands in the answer, in errors, in logs and in the path file's name
    chat: Prompt
    chat_param: str  # "messages", "inputs" or "prompt": what an error about the whole of it names
    model: str | None = None  # as the client named it
    sampling: SamplingRequest = SamplingRequest()
    stream: bool = False
    include_usage: bool = False  # of a stream
    usage_so_far: bool = False  # each chunk of such a stream has the usage up to there
    token_ids: bool = False  # the ids of prompt and answer are shown
    tokens_as_ids: bool = False  # log-probabilities name a token by its id
    grounding: Grounding = "none"
    cache_salt: str = ""  # with another one nothing is shared that caches keep
    echoes: bool = False  # the prompt stands in front of each answer
    lead: str = ""  # a text that stands in front of each answer to a chat
    grammar: Grammar | None = None  # that the answer is held to
    tools: ToolOffer | None = None  # that the answer may call
    shows_thoughts: bool = True  # those of an answer stand beside it
    wants_thoughts: bool = False  # a model that does not think aloud is asked in vain
    renamed: tuple[tuple[str, str], ...] = ()  # parameters of sampling, and what its body calls them
    copies: int = 1  # how often what is written of an answer holds its text
    repeated: int = 0  # characters of the body that stand in it, too
    prompt_only: bool = False  # no token is generated but the one that log-probabilities of the prompt come with
    context: RequestContext = field(
        default_factory=RequestContext, compare=False
    )  # of the HTTP request that it came with

    @property
    def scores_prompt(self) -> bool:
        """The log-probabilities of the prompt's own tokens are wanted, too."""
        return self.echoes and self.sampling.logprobs

    def parameter(self, name: str) -> str:
        """Where a parameter of sampling stands in the body."""
        return f"parameters.{name}" if self.chat_param == "inputs" else dict(self.renamed).get(name, name)


class CacheSalts:
    """Says for whom what a request leaves in caches is found again. A secret keeps its keys from being guessed."""

    def __init__(self, scope: Literal["key", "server"], *, keeps: bool = True) -> None:
        """scope: key: each API key has its own; server: all have one. keeps: the engine keeps media or prompts."""
        self._scope, self.keeps = scope, keeps
        self._secret = secrets.token_bytes(32)

    def of(self, request: ChatRequest) -> bytes:
        """32 bytes, which the keys of its media and of its prompt begin with."""
        key = request.context.key if self._scope == "key" else ""
        return hmac.digest(self._secret, f"{key}\n{request.cache_salt}".encode("utf-8", "surrogatepass"), "sha256")
