"""The parameters of sampling as a client writes them: types, ranges, and what does not go together. Knows no chat."""

from typing import Annotated, Any

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from server.requests.sampling import Wishes

INT32_MAX = (1 << 31) - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 128
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BIAS = 100

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class SamplingFields(BaseModel):
    """The parameters of sampling, the same on both routes."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True, extra="forbid")

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] | None = None
    logit_bias: Any = None
    seed: Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    stop: Any = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("stop")
    @classmethod
    def stop_strings(cls, value: Any) -> tuple[str, ...]:
        """One string or a list of them; none of them empty."""
        stops = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"has {len(stops)} strings; at most {MAX_STOPS} are taken")
        if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_CHARS} characters")
        return tuple(stops)

    @field_validator("logit_bias")
    @classmethod
    def biases(cls, value: Any) -> tuple[tuple[int, float], ...]:
        """An object of ids, in quotes as JSON has them, and what is added to their logits."""
        if value is None:
            return ()
        if not isinstance(value, dict):
            raise ValueError("must be an object of token ids and biases")
        if len(value) > MAX_BIASES:
            raise ValueError(f"has {len(value)} entries; at most {MAX_BIASES} are taken")
        found: dict[int, float] = {}
        for key, bias in value.items():
            if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= INT32_MAX):
                raise ValueError("a key must be a token id, 0 or more")
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise ValueError("a bias must be a number")
            if not -MAX_BIAS <= bias <= MAX_BIAS:  # so that NaN and an integer that no float holds are refused too
                raise ValueError(f"a bias must lie between -{MAX_BIAS} and {MAX_BIAS}")
            if int(key) in found:
                raise ValueError("an id stands there twice")
            found[int(key)] = float(bias)
        return tuple(found.items())

    @model_validator(mode="after")
    def go_together(self) -> "SamplingFields":
        """Alternatives are part of logprobs; asking for them alone is a mistake, as is more at least than at most."""
        if self.top_logprobs and not self.logprobs:
            raise pydantic_core.PydanticCustomError("top_logprobs", "top_logprobs needs logprobs: true")
        longest = self.longest
        if self.min_tokens and longest is not None and self.min_tokens > longest:
            raise pydantic_core.PydanticCustomError("min_tokens", "min_tokens must not be larger than max_tokens")
        return self

    @property
    def longest(self) -> int | None:
        """Tokens that the answer may have."""
        return self.max_tokens

    def wishes(self) -> Wishes:
        """As the service takes them."""
        return Wishes(
            max_tokens=self.longest,
            min_tokens=self.min_tokens or 0,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias or (),
            seed=self.seed,
            n=self.n or 1,
            stop=self.stop or (),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop=bool(self.include_stop_str_in_output),
            ignore_eos=bool(self.ignore_eos),
            logprobs=bool(self.logprobs),
            top_logprobs=self.top_logprobs or 0,
        )
