"""Every field of transformers' GenerationConfig is applied, named at start, or changes no answer; and what ends one."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint
from configs.serve import ModelConfig, ServeConfig
from server.requests.model_card import ModelCard, read_model_card
from server.requests.sampling import Defaults, SamplingRequest
from server.requests.unapplied import NOT_APPLIED
from tests.parity.theirs import transformers
from tests.published.edits import edit_json
from tests.tables import entries
from tests.tiny.families import WRITERS

pytestmark = pytest.mark.network

# Field: a value that a request without wishes then gets, and where.
APPLIED: dict[str, Any] = {
    "do_sample": True, "temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
    "eos_token_id": [3, 4],
}  # fmt: skip
CHANGES_NO_ANSWER = {
    # ids that the tokenizer and the processor place, or that only encoder-decoders and padding have
    "bos_token_id", "pad_token_id", "decoder_start_token_id",
    # caches, compilation, batching and memory
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory",
    "compile_config", "disable_compile", "continuous_batching_config",
    # drafts of another model or of the prompt, whose tokens are checked
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_early_exit", "assistant_ensemble_weight", "assistant_lookbehind", "target_lookbehind",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp",
    # what generate() hands back beside the tokens
    "output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate",
    # of logits that are finite; and a shift that no softmax sees
    "remove_invalid_values", "renormalize_logits",
    "transformers_version", "_from_model_config",
}  # fmt: skip
# A value of each named field that changes answers.
ODD: dict[str, Any] = {
    "suppress_tokens": [5], "begin_suppress_tokens": [5], "bad_words_ids": [[5, 6]], "force_words_ids": [[5]],
    "stop_strings": ["end"], "sequence_bias": [[[5], -2.0]], "constraints": ["x"], "early_stopping": True,
    "exponential_decay_length_penalty": [5, 1.1], "watermarking_config": {"bias": 2.0}, "token_healing": True,
    "dola_layers": "high", "typical_p": 0.9, "top_h": 0.4, "penalty_alpha": 0.6, "guidance_scale": 1.5,
    "length_penalty": 0.8, "diversity_penalty": 0.5, "epsilon_cutoff": 3e-4, "eta_cutoff": 3e-4, "max_time": 2.5,
    "encoder_repetition_penalty": 1.2,
}  # fmt: skip


def defaults_at(path: Path, values: dict[str, Any]) -> Defaults:
    (path / "config.json").write_text('{"architectures": ["A"]}')
    (path / "generation_config.json").write_text(json.dumps(values))
    checkpoint = Checkpoint(path)
    return Defaults.from_checkpoint(checkpoint, checkpoint.config)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pixelferry"]


def test_every_field_is_known() -> None:
    fields = set(vars(transformers.GenerationConfig()))
    assert fields == APPLIED.keys() | NOT_APPLIED.keys() | CHANGES_NO_ANSWER
    assert len(fields) == len(APPLIED) + len(NOT_APPLIED) + len(CHANGES_NO_ANSWER), "each of them once"


def test_what_is_not_applied_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with entries() as entry:
        for key in NOT_APPLIED:
            value = ODD.get(key, 3)
            caplog.clear()
            with entry(key):
                defaults_at(tmp_path, {key: value})
                (line,) = warnings_of(caplog)
                assert line.startswith(f"generation_config.json: {key} = {value} is not applied: ")


def test_what_says_nothing_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What releases of transformers write for a field that nobody set: null, and the old classes' defaults."""
    transformers.GenerationConfig().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    old: dict[str, Any] = transformers.GenerationConfig._get_default_generation_params()
    for values in (saved, old, dict.fromkeys(NOT_APPLIED)):
        defaults_at(tmp_path, values)
    assert warnings_of(caplog) == []


def test_what_is_applied_arrives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampling = defaults_at(tmp_path, APPLIED).sampling(SamplingRequest(), 9)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.25, 0.5, 7, 0.125)
    assert (sampling.repetition_penalty, sampling.stop_token_ids) == (1.5, (3, 4))
    assert warnings_of(caplog) == []
    assert defaults_at(tmp_path, {"do_sample": True}).top_k == 0, "off, where transformers takes 50"


# ---- what ends an answer


def card_of(path: Path) -> ModelCard:
    return read_model_card(ServeConfig(model=ModelConfig(path=path, served_name="x")))


def without_end(path: Path, family: str) -> Path:
    """Neither generation_config.json nor config.json names an end token, in any of its sections."""

    def strip(values: dict[str, Any]) -> None:
        values.pop("eos_token_id", None)
        for value in values.values():
            if isinstance(value, dict):
                strip(value)

    edit_json(WRITERS[family](path), strip)
    return edit_json(path, strip, "generation_config.json")


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen2_audio"])
def test_the_tokenizers_own_end(tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture) -> None:
    """Written as a text, then as an object."""
    path = without_end(tmp_path, family)
    token = {"__type": "AddedToken", "content": "<|endoftext|>", "special": True}
    for values in ({}, {"eos_token": token}):
        edit_json(path, lambda config, values=values: config.update(values), "tokenizer_config.json")  # type: ignore[misc]
        caplog.clear()
        theirs = transformers.AutoTokenizer.from_pretrained(str(path))
        assert card_of(path).defaults.eos_ids == (theirs.eos_token_id,)
        (line,) = warnings_of(caplog)
        assert "name no end token (eos_token_id)" in line and f"{theirs.eos_token}, the eos_token of" in line


@pytest.mark.parametrize(("name", "why"), [(None, "has no eos_token"), ("<|other|>", "does not hold '<|other|>'")])
def test_no_end_anywhere(tmp_path: Path, name: str | None, why: str, caplog: pytest.LogCaptureFixture) -> None:
    path = without_end(tmp_path, "qwen2_vl")
    edit_json(path, lambda config: config.update(eos_token=name), "tokenizer_config.json")
    assert card_of(path).defaults.eos_ids == ()
    (line,) = warnings_of(caplog)
    assert why in line and "answers run to max_tokens; add eos_token_id to generation_config.json" in line


def test_a_family_with_ends_of_its_own_needs_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(card_of(without_end(tmp_path, "qwen_vl")).defaults.eos_ids) == 3
    assert warnings_of(caplog) == []
