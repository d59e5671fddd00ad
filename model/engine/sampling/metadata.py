"""Sampling metadata: lengths and flags of what the rows of a step ask for, from which the arrays' layout follows."""

import msgspec

from model.staging.layout import SamplingArrays
from model.staging.packing import Field

_NUMBERS = 5  # temperature, the random number, top_k, top_p, min_p


class SamplingMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths and flags of what the rows ask for: with the packed arrays all that rules and sampler need."""

    n_rows: int
    n_random: int = 0  # rows that are sampled by chance; the others take the likeliest
    top_k: int = 0  # the largest
    top_p: bool = False  # some row asks for it
    top_p_alone: bool = False  # some row asks for it without top_k
    min_p: bool = False
    # Of each row, how many of the likeliest stand beside its log-probability, -1 where it wants none; (): none does.
    logprobs: tuple[int, ...] = ()
    n_biased: int = 0
    n_penalised: int = 0
    n_forbidden: int = 0
    n_allowed: int = 0
    n_restricted: int = 0
    n_masked: int = 0  # rows that are held to a form

    @property
    def top_logprobs(self) -> int:
        """The most that a row wants."""
        return max(self.logprobs, default=0)

    def layout(self) -> SamplingArrays[Field] | None:
        """None where each row takes the likeliest of all ids."""
        if not (
            self.n_random or self.n_biased or self.n_penalised or self.n_forbidden or self.n_restricted or self.n_masked
        ):
            return None

        def ints(n: int) -> Field | None:
            return Field("int64", (n,)) if n else None

        return SamplingArrays(
            biased=ints(self.n_biased),
            bias=Field("float32", (self.n_biased,)) if self.n_biased else None,
            penalised=ints(self.n_penalised),
            penalties=Field("float32", (2, self.n_penalised)) if self.n_penalised else None,
            forbidden=ints(self.n_forbidden),
            allowed=ints(self.n_allowed),
            restricted=ints(self.n_restricted),
            masked=ints(self.n_masked) if self.n_masked < self.n_rows else None,
            numbers=Field("float32", (_NUMBERS, self.n_random)) if self.n_random else None,
            random_rows=ints(self.n_random) if self.n_random < self.n_rows else None,
        )
