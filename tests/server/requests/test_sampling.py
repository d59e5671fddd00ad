"""Defaults come from the checkpoint's files, wishes win over them."""

from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from server.requests.sampling import Defaults, SamplingRequest, model_length
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_json


def checkpoint(path: Path, generation: dict[str, Any] | None = None, **config: Any) -> Checkpoint:
    write_json(path / "config.json", {"architectures": ["A"], **config})
    if generation is not None:
        write_json(path / "generation_config.json", generation)
    return Checkpoint(path)


def defaults_of(found: Checkpoint) -> Defaults:
    return Defaults.from_checkpoint(found, found.config)


def test_a_sampling_checkpoint_gives_its_values(tmp_path: Path) -> None:
    section = {"do_sample": True, "temperature": 0.01, "top_p": 0.8, "top_k": 20, "eos_token_id": [7, 8]}
    defaults = defaults_of(checkpoint(tmp_path, section))
    assert defaults == Defaults(temperature=0.01, top_p=0.8, top_k=20, eos_ids=(7, 8))


@each_of("generation", [None, {}, {"do_sample": False, "temperature": 0.7}])
def test_without_do_sample_it_is_greedy(tmp_path: Path, generation: dict[str, Any] | None) -> None:
    defaults = defaults_of(checkpoint(tmp_path, generation, eos_token_id=5))
    assert defaults.temperature == 0 and defaults.eos_ids == (5,)


def test_wishes_win_and_room_caps(tmp_path: Path) -> None:
    defaults = Defaults(temperature=0.5, top_p=0.8, top_k=20, eos_ids=(7,))
    silent = defaults.sampling(SamplingRequest(), 100)
    assert (silent.max_tokens, silent.temperature, silent.top_p, silent.top_k) == (100, 0.5, 0.8, 20)
    assert silent.stop_token_ids == (7,)
    wanted = SamplingRequest(
        max_tokens=7, temperature=0.0, top_p=1.0, top_k=0, seed=-3, ignore_eos=True, logprobs=True, top_logprobs=2
    )
    asked = defaults.sampling(wanted, 100)
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.seed) == (7, 0.0, 1.0, 0, -3)
    assert asked.stop_token_ids == () and asked.top_logprobs == 2
    assert defaults.sampling(SamplingRequest(max_tokens=101), 100).max_tokens == 100


def test_seeds_are_drawn_and_tiny_temperatures_are_greedy() -> None:
    defaults = Defaults(temperature=1.0, top_p=1.0, top_k=0, eos_ids=())
    assert len({defaults.sampling(SamplingRequest(), 1).seed for _ in range(8)}) == 8
    assert all(0 <= defaults.sampling(SamplingRequest(), 1).seed < 1 << 63 for _ in range(8))
    assert defaults.sampling(SamplingRequest(temperature=1e-9), 1).temperature == 0
    assert defaults.sampling(SamplingRequest(temperature=1e-3), 1).temperature == 1e-3


def test_the_checkpoints_penalty_and_min_p_are_defaults(tmp_path: Path) -> None:
    defaults = defaults_of(checkpoint(tmp_path, {"repetition_penalty": 1.05, "min_p": 0.1}))
    silent = defaults.sampling(SamplingRequest(), 9)
    assert (silent.repetition_penalty, silent.min_p) == (1.05, 0.1)
    asked = defaults.sampling(SamplingRequest(repetition_penalty=1.0, min_p=0.0), 9)
    assert (asked.repetition_penalty, asked.min_p) == (1.0, 0.0)


def test_stop_tokens_stand_beside_the_models_own() -> None:
    defaults = Defaults(temperature=0.5, top_p=0.8, top_k=20, eos_ids=(7, 8))
    assert defaults.sampling(SamplingRequest(stop_token_ids=[3, 7]), 9).stop_token_ids == (7, 8, 3)
    assert defaults.sampling(SamplingRequest(stop_token_ids=[3], ignore_eos=True), 9).stop_token_ids == (3,)


@each_of(
    "bad",
    [
        {"do_sample": True, "temperature": -1},
        {"top_p": 0},
        {"eos_token_id": ["x"]},
        {"min_p": 2},
        {"repetition_penalty": 0},
    ],
)
def test_absurd_values_stop_the_load(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="generation_config.json"):
        defaults_of(checkpoint(tmp_path, bad))


@each_of("config", [{"eos_token_id": 5}, {"text_config": {"eos_token_id": 5}}])
def test_end_tokens_of_the_models_config(tmp_path: Path, config: dict[str, Any]) -> None:
    assert defaults_of(checkpoint(tmp_path, {"do_sample": True}, **config)).eos_ids == (5,)


def test_the_models_length(tmp_path: Path) -> None:
    def length(asked: int | None, **config: Any) -> int:
        return model_length(checkpoint(tmp_path, **config).config, asked)

    assert length(None, max_position_embeddings=100) == 100
    assert length(200, text_config={"max_position_embeddings": 200}) == 200
    assert length(200, max_position_embeddings=100, text_config={"max_position_embeddings": 200}) == 200, "as the net"
    assert length(None, max_position_embeddings=128000) == 32768
    assert length(100000, max_position_embeddings=128000) == 100000
    with pytest.raises(CheckpointError, match="--max-model-len 101"):
        length(101, max_position_embeddings=100)
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
    assert length(131072, max_position_embeddings=128000, rope_scaling=yarn) == 131072, "as Qwen2.5-VL's README has it"
    with pytest.raises(CheckpointError, match="--max-model-len 131073 is more than config.json's rope_scaling, 131072"):
        length(131073, max_position_embeddings=128000, rope_scaling=yarn)
    with pytest.raises(CheckpointError, match="--max-model-len 131072"):
        length(131072, max_position_embeddings=128000, rope_scaling={**yarn, "type": "dynamic"})
