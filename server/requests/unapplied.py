"""Names what generation_config.json asks for and this server does not do, so that nothing is lost in silence."""

import logging
from collections.abc import Mapping
from typing import Any

from configs.checkpoint import ConfigSection, unquoted

log = logging.getLogger("pixelferry")

# Every field of transformers' GenerationConfig that changes an answer and is no default here: the values that change
# nothing, None and empty ones aside, and what does the same in a request. tests/published/test_generation_config.py
# holds the fields that change no answer, such as those of caches.
NOT_APPLIED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "max_new_tokens": ((), "a request's max_tokens does this"),
    "max_length": ((20,), "--max-model-len and a request's max_tokens do this"),
    "max_time": ((), ""),
    "min_new_tokens": ((0,), "a request's min_tokens does this"),
    "min_length": ((0,), "a request's min_tokens does this"),
    "stop_strings": ((), "a request's stop does this"),
    "suppress_tokens": ((), "a request's logit_bias of -100 does this"),
    "begin_suppress_tokens": ((), ""),
    "bad_words_ids": ((), "for words of one token a request's logit_bias of -100 does this"),
    "sequence_bias": ((), "for sequences of one token a request's logit_bias does this"),
    "force_words_ids": ((), ""),
    "constraints": ((), ""),
    "forced_bos_token_id": ((), ""),
    "forced_eos_token_id": ((), ""),
    "exponential_decay_length_penalty": ((), ""),
    "typical_p": ((1.0,), ""),
    "top_h": ((), ""),
    "epsilon_cutoff": ((0.0,), ""),
    "eta_cutoff": ((0.0,), ""),
    "no_repeat_ngram_size": ((0,), ""),
    "encoder_repetition_penalty": ((1.0,), ""),
    "encoder_no_repeat_ngram_size": ((0,), ""),
    "penalty_alpha": ((0.0,), ""),
    "dola_layers": ((), ""),
    "guidance_scale": ((1.0,), ""),
    "watermarking_config": ((), ""),
    "token_healing": ((False,), ""),
    "num_return_sequences": ((1,), "a request's n does this"),
    "num_beams": ((1,), ""),
    "num_beam_groups": ((1,), ""),
    "diversity_penalty": ((0.0,), ""),
    "length_penalty": ((1.0,), ""),
    "early_stopping": ((False,), ""),
}


def warn_of_unapplied(file: ConfigSection) -> None:
    """One line for each key of `file`, generation_config.json, that would change answers and is not applied."""
    for key, (neutral, instead) in NOT_APPLIED.items():
        value = file.read(object, key, None)
        if value is None or value in ([], {}, "") or value in neutral:
            continue
        log.warning(
            "%s: %s = %s is not applied: %s", file.location, key, unquoted(value), instead or "not supported yet"
        )
