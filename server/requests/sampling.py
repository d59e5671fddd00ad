"""How one request wants its tokens sampled: what a client may ask, and the checkpoint's defaults."""

import math
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, shown, text_config, whole
from model.engine.messages import SamplingParams
from server.requests.refusal import listed
from server.requests.unapplied import warn_of_unapplied

INT32_MAX = (1 << 31) - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 128
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BIAS = 100
MAX_ALLOWED = 1 << 18  # more than any vocabulary has
MAX_BAD_WORDS = 128
MAX_WORD_CHARS = 256

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
# What validators below take, as a schema.
BIASES: dict[str, Any] = {
    "type": "object", "maxProperties": MAX_BIASES, "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
}  # fmt: skip
BAD_WORDS: dict[str, Any] = {
    "type": "array", "maxItems": MAX_BAD_WORDS, "items": {"type": "string", "minLength": 1, "maxLength": MAX_WORD_CHARS}
}  # fmt: skip
STOP: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
STOPS: dict[str, Any] = {"anyOf": [STOP, {"type": "array", "maxItems": MAX_STOPS, "items": STOP}]}
LONGEST_BY_DEFAULT = 32768
GREEDY_BELOW = 1e-5  # dividing logits by less overflows float32


class SamplingRequest(BaseModel):
    """The parameters of sampling as a client writes them, the same on all routes; null says nothing.

    They are read from a body, whose other fields are each route's own. None stands where the checkpoint's default
    holds. Raises pydantic.ValidationError.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True, extra="ignore")

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="What the model's length leaves, unless given; more than is left is cut to that, not refused."
    )
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] = Field(
        0, description="At most `max_tokens`. In the first so many tokens no end token and no `stop_token_ids` can be "
        "sampled, and no `stop` string is looked for in their text.",
    )  # fmt: skip
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="The checkpoint's unless given. 0 is greedy, and so is less than 1e-5."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="The checkpoint's, else 1.")
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = Field(
        None, description="The checkpoint's, else off. 0 and -1 are off."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="The checkpoint's, else 0. A token less likely than this share of the likeliest one is not "
        "sampled; 0 is off.",
    )  # fmt: skip
    presence_penalty: Penalty = Field(
        0.0, description="Subtracted once from the logit of every token that the answer holds."
    )
    frequency_penalty: Penalty = Field(0.0, description="Subtracted for each time that the answer holds the token.")
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] | None = Field(
        None, description="The checkpoint's, else 1. For every token in prompt or answer: a positive logit is divided "
        "by it, a negative one multiplied.",
    )  # fmt: skip
    logit_bias: Annotated[Any, WithJsonSchema(BIASES)] = Field(
        default_factory=tuple,
        description="Token ids, as strings, and what is added to their logits before everything else.",
    )  # tuple[tuple[int, float], ...]
    allowed_token_ids: Annotated[list[TokenId], Field(fail_fast=True, min_length=1, max_length=MAX_ALLOWED)] | None = (
        Field(None, description="No other token is sampled; end tokens must be listed to end the answer.")
    )
    bad_words: Annotated[Any, WithJsonSchema(BAD_WORDS)] = Field(
        default_factory=tuple,
        description="The answer never holds the tokens of such a word in a row, spelled as at the beginning of a "
        "text or behind a blank.",
    )  # tuple[str, ...]  # fmt: skip
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] | None = Field(
        None, description="64 bits, random unless given. The same seed gives the same answer, whatever else the server "
        "does; answer i of `n` samples with seed + i, so it is the answer that a chat with that seed gets.",
    )  # fmt: skip
    n: Annotated[int, Field(ge=1, le=INT32_MAX)] = Field(
        1,
        description="Answers to the one chat, at most `--max-n` (8); its media are read and its prompt computed once.",
    )
    stop: Annotated[Any, WithJsonSchema(STOPS)] = Field(
        default_factory=tuple, description="A string that ends the answer, or several."
    )  # tuple[str, ...]
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=MAX_STOP_IDS)] = Field(
        [], description="They end the answer as the model's end tokens do."
    )
    include_stop_str_in_output: bool = Field(
        False, description="The `stop` string, or the text of the token, that ended the answer is shown; a special "
        "token (such as `<|im_end|>`) has no text to show, unless `skip_special_tokens` is false.",
    )  # fmt: skip
    skip_special_tokens: bool = Field(
        True, description="If false, special tokens stand in the answer by their names, where `stop` strings see them, "
        "too.",
    )  # fmt: skip
    ignore_eos: bool = Field(
        False, description="The model's end tokens do not end the answer; `stop_token_ids` still do."
    )
    logprobs: bool = Field(False, description="Each sampled token with its log-probability stands beside the text.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = Field(
        0, description="Needs `logprobs`. So many likely tokens stand beside each; each token of an answer counts "
        "2 x (`top_logprobs` + 1) of the tokens that a body may ask for.",
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def nulls_say_nothing(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        ours = SamplingRequest.model_fields
        return {name: value for name, value in values.items() if value is not None or name not in ours}

    @field_validator("stop")
    @classmethod
    def stop_strings(cls, value: Any) -> tuple[str, ...]:
        """One string or a list of them; none of them empty."""
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"has {len(stops)} strings; at most {MAX_STOPS} are taken")
        if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_CHARS} characters")
        return tuple(stops)

    @field_validator("bad_words")
    @classmethod
    def bad_word_list(cls, value: Any) -> tuple[str, ...]:
        """A list of words, each more than blanks."""
        if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
            raise ValueError("must be a list of strings")
        if len(value) > MAX_BAD_WORDS:
            raise ValueError(f"has {len(value)} words; at most {MAX_BAD_WORDS} are taken")
        if any(not word.strip() or len(word) > MAX_WORD_CHARS for word in value):
            raise ValueError(f"a word must have 1 to {MAX_WORD_CHARS} characters that are not all blanks")
        return tuple(value)

    @field_validator("logit_bias")
    @classmethod
    def biases(cls, value: Any) -> tuple[tuple[int, float], ...]:
        """An object of ids, in quotes as JSON has them, and what is added to their logits."""
        if not isinstance(value, dict):
            raise ValueError("must be an object of token ids and biases")
        if len(value) > MAX_BIASES:
            raise ValueError(f"has {len(value)} entries; at most {MAX_BIASES} are taken")
        found: dict[int, float] = {}
        strange = [
            key for key in value
            if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= INT32_MAX)
        ]  # fmt: skip
        if strange:
            raise ValueError(f"a key must be a token id, 0 or more: not {listed(strange)}")
        for key, bias in value.items():
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise ValueError(f"a bias must be a number: not that of {key}")
            if not -MAX_BIAS <= bias <= MAX_BIAS:  # so that NaN and an integer that no float holds are refused too
                raise ValueError(f"a bias must lie between -{MAX_BIAS} and {MAX_BIAS}: not that of {key}")
            if int(key) in found:
                raise ValueError(f"the id {int(key)} stands there twice")
            found[int(key)] = float(bias)
        return tuple(found.items())

    @field_validator("top_k")
    @classmethod
    def off_is_zero(cls, value: int | None) -> int | None:
        return None if value is None else max(0, value)

    @model_validator(mode="after")
    def go_together(self) -> "SamplingRequest":
        """Alternatives are part of logprobs; asking for them alone is a mistake, as is more at least than at most."""
        if self.top_logprobs and not self.logprobs:
            raise pydantic_core.PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise pydantic_core.PydanticCustomError("min_tokens", "min_tokens must not be larger than max_tokens")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a request that says nothing gets: generation_config.json, and what changes nothing where that is silent.

    So top_k is off where the file has none, as in vLLM; transformers then takes 50.
    """

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
        warn_of_unapplied(file)
        eos_ids = read_ids(file) or read_ids(text_config(config))
        return cls(
            temperature=temperature, top_p=top_p, top_k=max(0, top_k), eos_ids=eos_ids, min_p=min_p,
            repetition_penalty=repetition_penalty,
        )  # fmt: skip

    def parameters(self) -> dict[str, float]:
        """Each by the name of the parameter that it stands for."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}

    def sampling(
        self, asked: SamplingRequest, room: int, bad_words: tuple[tuple[int, ...], ...] = ()
    ) -> SamplingParams:
        """What the engine is told. `room` is what the model's length leaves for the answer; it caps max_tokens.

        bad_words: the ids of each spelling.
        """
        temperature = self.temperature if asked.temperature is None else asked.temperature
        return SamplingParams(
            max_tokens=room if asked.max_tokens is None else min(asked.max_tokens, room),
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=self.top_p if asked.top_p is None else asked.top_p,
            top_k=self.top_k if asked.top_k is None else asked.top_k,
            min_p=self.min_p if asked.min_p is None else asked.min_p,
            repetition_penalty=asked.repetition_penalty or self.repetition_penalty,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            logit_bias=asked.logit_bias,
            allowed_token_ids=tuple(dict.fromkeys(asked.allowed_token_ids or ())),
            bad_words=bad_words,
            min_tokens=asked.min_tokens,
            seed=secrets.randbits(63) if asked.seed is None else asked.seed,
            n=asked.n,
            stop_token_ids=tuple(dict.fromkeys((*(() if asked.ignore_eos else self.eos_ids), *asked.stop_token_ids))),
            logprobs=asked.logprobs,
            top_logprobs=asked.top_logprobs,
        )


def read_ids(file: ConfigSection) -> tuple[int, ...]:
    """`eos_token_id`, which is one id, a list of them, or absent."""
    if "eos_token_id" not in file:
        return ()
    value = file.read(object, "eos_token_id")
    ids = [whole(one) for one in (value if isinstance(value, list) else [value])]
    if not all(type(i) is int and abs(i) < 1 << 31 for i in ids):
        raise CheckpointError(f"{file.location}: eos_token_id is {shown(value)}, expected an id or a list of ids")
    return tuple(ids)


def model_length(config: ConfigSection, asked: int | None) -> int:
    """Tokens of prompt and answer together; `config` is the model's part of config.json.

    Raises CheckpointError when `asked` is more than the model was made for.
    """
    text = text_config(config)
    own, key = text.count("max_position_embeddings", LONGEST_BY_DEFAULT), "max_position_embeddings"
    rope = text.child("rope_scaling").merged(text.child("rope_parameters"))
    if rope.read(str, "rope_type" if "rope_type" in rope else "type", "default") == "yarn":
        # The READMEs that describe it leave max_position_embeddings as it is.
        scaled = int(rope.positive("factor") * rope.count("original_max_position_embeddings", own))
        own, key = max((own, key), (scaled, "rope_scaling"))
    if asked is None:
        return min(own, LONGEST_BY_DEFAULT)
    if asked > own:
        raise CheckpointError(f"--max-model-len {asked} is more than config.json's {key}, {own}")
    return asked
