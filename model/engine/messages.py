"""The messages to the engine and its answers."""

from typing import Literal

import msgspec

from configs.serve import EngineConfig
from tokenization.chat.grammar import CompiledGrammar
from tokenization.chat.parts import Kind
from tokenization.messages import Prepared


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Already validated; the server matches stop strings."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # [0, 1]; 0: off
    repetition_penalty: float = 1.0  # above 0; over prompt and answer; 1: off
    presence_penalty: float = 0.0  # over the answer; 0: off
    frequency_penalty: float = 0.0  # over the answer, once for each occurrence; 0: off
    logit_bias: tuple[tuple[int, float], ...] = ()  # (id, what is added to its logit); no id twice
    allowed_token_ids: tuple[int, ...] = ()  # no other id can be sampled; none: off; no id twice
    bad_words: tuple[tuple[int, ...], ...] = ()  # ids that no answer holds in a row; none is empty
    min_tokens: int = 0  # stop_token_ids cannot be sampled before so many tokens were
    seed: int  # int64; the server makes one where the client gave none. Answer i of n samples with seed + i
    n: int = 1  # answers to this one prompt
    stop_token_ids: tuple[int, ...] = ()  # eos included unless ignore_eos
    thought_end: int | None = None  # the id that ends the thought in which answers begin; min_tokens and a form wait
    logprobs: bool = False
    top_logprobs: int = 0


# ---- server -> engine


class LargestItem(msgspec.Struct, frozen=True, kw_only=True):
    """The item of one kind that needs most memory, for the memory profile at start."""

    kind: Kind
    grid: tuple[int, int, int]  # (t, h, w) in patches; of an audio (1, 1, frames)
    n_tokens: int
    fixed: bool  # the model has one size for all of this kind: no setting makes it smaller


class StartEngine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    checkpoint: str  # directory
    engine: EngineConfig
    shm_root: str  # the directory that holds the leases
    max_model_len: int
    largest: tuple[LargestItem, ...] = ()  # one for each modality
    # Of an engine of several ranks, by descriptors that the process inherited:
    rank: int = 0
    links: tuple[int, ...] = ()  # sockets: of rank 0 to each other one, in order, of each of these to rank 0
    meeting: int = -1  # an empty file in memory, where the group of processes is made


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One prepared request. The words are taken out of the ids at admission."""

    prepared: Prepared
    sampling: SamplingParams
    grammar: CompiledGrammar | None = None  # that its answers are held to
    scores_prompt: bool = False  # the log-probabilities of the prompt's own tokens are wanted, too
    client: int = 0  # whose share it takes: a number from which nobody learns who that is
    salt: bytes = b""  # what the keys of its blocks begin with: requests with another one share nothing with it

    @property
    def request_id(self) -> str:
        return self.prepared.request_id


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answered by a Finished, also when unknown; with `index` only when no other answer goes on."""

    request_id: str
    index: int | None = None


# ---- engine -> server


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Weights are loaded, the cache is allocated, a warm-up step ran."""

    device: str
    dtype: str
    vocab_size: int
    kv_blocks: int
    block_size: int
    memory: tuple[tuple[str, int, str], ...]  # (line, bytes, the setting that decides it)
    max_model_len: int | None = None  # tokens of one sequence: less than asked for where the cache holds less
    media_ids: tuple[int, ...] = ()  # placeholders and delimiters of media: no answer and no text may hold them
    max_media_tokens: int  # media tokens of one request: the embeddings of no more are ever kept
    threads: str = ""  # how many compute, and why, in words
    ranks: int = 1  # processes that the model is split over; `memory` is that of the first


class RankReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank that is not the first has loaded its part, and follows from now on."""


class Token(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Log-probabilities are the model's own, before logit rules and temperature.

    Not tracked by the garbage collector: no cycle can hold one, and a collection over all those of a long answer would
    stop the server.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


Finish = Literal["stop", "length"]


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's share of a step. A stop id is sent as a token too, with its finish."""

    request_id: str
    token: Token
    finish: Finish | None = None
    index: int = 0  # which of the request's n answers


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    kv_blocks_used: int  # that unfinished requests hold
    kv_blocks_total: int
    preemptions: int  # since start
    gave_way: int = 0  # those of them that made room for a client which had less than its share
    embedding_bytes: int  # reserved
    mm_cache_queries: int = 0  # media of requests since start
    mm_cache_hits: int = 0  # those of them that were not encoded for their request
    prefix_queries: int = 0  # since start: tokens of prompts that were looked for in the cache
    prefix_hits: int = 0  # of them, those that were there


class StepDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    tokens: tuple[TokenEvent, ...]
    stats: EngineStats
    seconds: dict[str, float]  # stage -> seconds: encode, prefill, decode, sample; host and graph_update are parts
    n_tokens: int = 0  # that went through the model: of prompts, and one of each answer
    started: float = 0.0  # when, by time.monotonic(), which all processes of a machine share
    # Requests of which something was computed for the first time, and what of their prompts was in the cache. One with
    # several answers may be told again: the first time counts.
    begun: dict[str, int] = {}
    encoded: tuple[str, ...] = ()  # requests media of which went through an encoder in this step


class PromptScored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The next tokens of a prompt as the model predicts them, from the second on. All come before its first answer."""

    request_id: str
    tokens: tuple[Token, ...]


class MediaRead(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine has its own copy of these segments, or needs none, and will not open them again."""

    request_id: str
    names: tuple[str, ...]


class MediaKept(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the engine keeps by content: a request may come for it without a segment. It may go before that comes."""

    gone: tuple[bytes, ...]  # first these went
    kept: tuple[tuple[bytes, int], ...]  # then these came: MediaItem.key, and the bytes of its embeddings


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine holds nothing of this request any more. "done" follows the last TokenEvent."""

    request_id: str
    reason: Literal["done", "abort", "failed"]
    message: str = ""  # for "failed": what happened, without names of segments
    # "media_evicted": it came for embeddings that are gone. Nothing was computed; with a segment it will be.
    code: Literal["", "media_unavailable", "media_evicted", "nothing_allowed", "structured_output", "internal"] = ""


class EnginePulse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sent every half second by a separate thread."""

    step_seconds: float  # 0 when idle
    step_tokens: int
    step_patches: int
    step_pairs: int = 0  # of patches that see each other


ToEngine = StartEngine | Generate | Abort
FromEngine = EngineReady | StepDone | PromptScored | MediaRead | MediaKept | Finished | EnginePulse | RankReady
