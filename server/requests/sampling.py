"""How one request wants its tokens drawn: the checkpoint's defaults, the client's wishes, and what follows from both.

Knows no HTTP and no chat.
"""

import logging
import math
import secrets
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, text_config
from model.engine.messages import SamplingParams

log = logging.getLogger("pixelferry")

LONGEST_BY_DEFAULT = 32768
GREEDY_BELOW = 1e-5  # dividing logits by less overflows float32
# What generation_config.json may ask for and this server does not do yet, with the value that changes nothing.
NOT_APPLIED = {"typical_p": 1.0, "no_repeat_ngram_size": 0, "num_beams": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a client asked for; None where it said nothing. Ranges are checked."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0: off
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # what ended the answer is shown
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a request that says nothing gets: generation_config.json, and its classes' defaults where that is silent."""

    temperature: float
    top_p: float
    top_k: int
    eos_ids: tuple[int, ...]
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, config: ConfigSection) -> "Defaults":
        """`do_sample` (false when absent, as in the published class) decides between greedy and the file's values.

        `config` is the model's part of config.json, which names the end tokens where generation_config.json does not.

        Raises CheckpointError for a value that no request could ask for.
        """
        file = checkpoint.file("generation_config.json")
        sampled = file.read(bool, "do_sample", False)
        temperature = file.read(float, "temperature", 1.0) if sampled else 0.0
        top_p = file.read(float, "top_p", 1.0)
        top_k = file.read(int, "top_k", 0)
        if not (temperature >= 0 and 0 < top_p <= 1 and top_k >= -1):
            raise CheckpointError(
                f"{file.location}: temperature {temperature}, top_p {top_p} or top_k {top_k} is absurd"
            )
        min_p = file.read(float, "min_p", 0.0)
        repetition_penalty = file.read(float, "repetition_penalty", 1.0)
        if not (0 <= min_p <= 1 and 0 < repetition_penalty < math.inf):
            raise CheckpointError(
                f"{file.location}: min_p {min_p} or repetition_penalty {repetition_penalty} is absurd"
            )
        for key, neutral in NOT_APPLIED.items():
            value = file.read(float, key, float(neutral))
            if value != neutral:
                log.warning("generation_config.json: %s = %s is not applied: not supported yet", key, value)
        eos_ids = read_ids(file) or read_ids(text_config(config))
        return cls(
            temperature=temperature, top_p=top_p, top_k=max(0, top_k), eos_ids=eos_ids, min_p=min_p,
            repetition_penalty=repetition_penalty,
        )  # fmt: skip

    def sampling(self, wishes: Wishes, room: int) -> SamplingParams:
        """What the engine is told. `room` is what the model's length leaves for the answer; it caps max_tokens."""
        temperature = self.temperature if wishes.temperature is None else wishes.temperature
        return SamplingParams(
            max_tokens=room if wishes.max_tokens is None else min(wishes.max_tokens, room),
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=self.top_p if wishes.top_p is None else wishes.top_p,
            top_k=self.top_k if wishes.top_k is None else wishes.top_k,
            min_p=self.min_p if wishes.min_p is None else wishes.min_p,
            repetition_penalty=wishes.repetition_penalty or self.repetition_penalty,
            presence_penalty=wishes.presence_penalty,
            frequency_penalty=wishes.frequency_penalty,
            logit_bias=wishes.logit_bias,
            min_tokens=wishes.min_tokens,
            seed=secrets.randbits(63) if wishes.seed is None else wishes.seed,
            n=wishes.n,
            stop_token_ids=tuple(dict.fromkeys((*(() if wishes.ignore_eos else self.eos_ids), *wishes.stop_token_ids))),
            logprobs=wishes.logprobs,
            top_logprobs=wishes.top_logprobs,
        )


def read_ids(file: ConfigSection) -> tuple[int, ...]:
    """`eos_token_id`, which is one id, a list of them, or absent."""
    if "eos_token_id" not in file:
        return ()
    value = file.read(object, "eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{file.location}: eos_token_id is {value!r}, expected an id or a list of ids")
    return tuple(ids)


def model_length(config: ConfigSection, asked: int | None) -> int:
    """Tokens of prompt and answer together; `config` is the model's part of config.json.

    Raises CheckpointError when `asked` is more than the model was made for.
    """
    own = text_config(config).read(int, "max_position_embeddings", LONGEST_BY_DEFAULT)
    if asked is None:
        return min(own, LONGEST_BY_DEFAULT)
    if asked > own:
        raise CheckpointError(f"--max-model-len {asked} is more than config.json's max_position_embeddings, {own}")
    return asked
