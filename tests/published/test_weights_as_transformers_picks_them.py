"""Which of a directory's files and tensors are used: as by transformers, from the same directory."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import EngineConfig
from model.engine import loop
from model.engine.messages import StartEngine
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights
from tests.parity.harness import OurRun, hf_logits, load_hf, load_ours, make_sample
from tests.published.edits import edit_json, edit_tensors
from tests.tables import entries
from tests.tiny.families import WRITERS

pytestmark = pytest.mark.network

FAMILIES = [name for name in WRITERS if name != "qwen_vl"]  # those that transformers has
SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
STALE = f"{SINGLE} is read and {INDEX} beside it is passed over"
UNTIED = "tie_word_embeddings is true, but lm_head.weight on disk differs from "


def same_as_transformers(path: Path, wait_for: float = 0.5) -> None:
    sample = make_sample(path, [12])
    expected = hf_logits(load_hf(path), sample, path)
    assert expected.std() > wait_for
    torch.testing.assert_close(OurRun(load_ours(path)).whole(sample), expected, rtol=0, atol=1e-4)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pixelferry"]


# ---- files


@pytest.mark.parametrize("shards", ["there", "gone"])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_omni", "internvl"])  # the pick stands before all families
def test_one_file_before_an_index(tmp_path: Path, family: str, shards: str, caplog: pytest.LogCaptureFixture) -> None:
    """A fine-tune saved into the directory of its base leaves the base's index, and perhaps its shards."""
    path = WRITERS[family](tmp_path / "tuned", seed=1)
    base = load_file(WRITERS[family](tmp_path / "base", seed=0) / SINGLE)
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(base)}
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    if shards == "there":
        for file in set(where.values()):
            save_file({name: base[name] for name in base if where[name] == file}, path / file, {"format": "pt"})
    same_as_transformers(path)
    assert [STALE in line and "remove the stale one" in line for line in warnings_of(caplog)] == [True]
    (path / SINGLE).unlink()
    if shards == "there":  # then the index leads to the base
        same_as_transformers(path)
        assert torch.equal(logits_of(path), logits_of(tmp_path / "base"))
    else:
        with pytest.raises(CheckpointError, match="model-00001-of-00002.safetensors is missing; .*index.json names it"):
            load_ours(path)


def logits_of(path: Path) -> torch.Tensor:
    return OurRun(load_ours(path)).whole(make_sample(path, [12]))


def test_the_same_of_torchs_own_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = WRITERS["qwen2_vl"](tmp_path)
    tensors = {name: torch.from_numpy(value) for name, value in load_file(path / SINGLE).items()}
    torch.save(tensors, path / "pytorch_model.bin")
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "x.bin")}))
    (path / SINGLE).unlink()
    same_as_transformers(path)
    assert len(warnings_of(caplog)) == 1 and "pytorch_model.bin is read and" in warnings_of(caplog)[0]


def test_the_file_that_config_json_names(tmp_path: Path) -> None:
    path = WRITERS["qwen2_vl"](tmp_path / "a")
    shutil.copy(WRITERS["qwen2_vl"](tmp_path / "b", seed=1) / SINGLE, path / "other.safetensors")
    edit_json(path, lambda config: config.update(transformers_weights="other.safetensors"))
    same_as_transformers(path)
    assert torch.equal(logits_of(path), logits_of(tmp_path / "b"))


# ---- a tied head

HEADS: dict[str, tuple[str, str]] = {  # family: the head and the table, as its tiny directory names them
    "qwen2_vl": ("lm_head.weight", "model.embed_tokens.weight"),
    "qwen2_5_vl": ("lm_head.weight", "model.embed_tokens.weight"),
    "qwen2_5_omni": ("thinker.lm_head.weight", "thinker.model.embed_tokens.weight"),
    "qwen_vl": ("lm_head.weight", "transformer.wte.weight"),
}


def tied(path: Path, family: str, on_disk: str) -> Path:
    """A directory whose configuration ties, with both tensors on disk (equal or different), or one of them alone."""
    head, table = HEADS[family]
    if family == "qwen_vl":
        edit_json(WRITERS[family](path), lambda config: config.update(tie_word_embeddings=True))
    else:
        WRITERS[family](path, tied=True)

    def change(tensors: dict[str, Any]) -> None:
        values = tensors[table].copy()
        tensors.pop(head, None)
        if on_disk != "table":
            other = np.random.default_rng(5).standard_normal(values.shape).astype(np.float32) * values.std()
            tensors[head] = other if on_disk == "different" else values
        if on_disk == "head":
            del tensors[table]

    return edit_tensors(path, change)


@pytest.mark.parametrize("family", [family for family in HEADS if family in FAMILIES])
def test_a_tied_head_is_the_one_on_disk(tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture) -> None:
    with entries() as entry:
        for on_disk in ("table", "equal", "different", "head"):
            caplog.clear()
            with entry(on_disk):
                same_as_transformers(tied(tmp_path / on_disk, family, on_disk))
                said = [UNTIED in line and "tie_word_embeddings: false" in line for line in warnings_of(caplog)]
                assert said == ([True] if on_disk == "different" else [])


@pytest.mark.parametrize("family", HEADS)
def test_what_it_takes_of_memory(tmp_path: Path, family: str) -> None:
    """An equal head is one copy, and two where a CPU packs one; shapes alone count what the real network takes."""

    def taken(path: Path, device: str, kind: str | None = None) -> int:
        checkpoint = Checkpoint(path)
        found, ops = family_of(checkpoint), load_ops(torch.device(device), torch.float32, kind=kind)
        weights = Weights(checkpoint, found.renames, ops.dtype, ops.device, found.skips)
        model = found.build(checkpoint, weights, ops)
        assert model.embed.table.device.type == device
        return weights.taken_bytes

    sizes, more = {}, {}
    for on_disk in ("table", "equal", "different", "head"):
        path = tied(tmp_path / on_disk, family, on_disk)
        sizes[on_disk], on_a_cpu = taken(path, "meta"), taken(path, "cpu")
        assert taken(path, "meta", "cpu") == on_a_cpu
        more[on_disk] = on_a_cpu - sizes[on_disk]
    head = load_file(tmp_path / "different" / SINGLE)[HEADS[family][0]].nbytes
    assert sizes["table"] == sizes["equal"] == sizes["head"] == sizes["different"] - head
    copy = head if load_ops(torch.device("cpu"), torch.float32).prepacks else 0
    assert more == {"table": copy, "equal": copy, "different": 0, "head": copy}


def test_the_first_qwen_answers_with_the_head_on_disk(tmp_path: Path) -> None:
    """Its class is not in transformers: with an equal head, and with its own one and the key left out."""
    assert torch.equal(*(logits_of(tied(tmp_path / name, "qwen_vl", name)) for name in ("table", "equal")))
    path = tied(tmp_path / "different", "qwen_vl", "different")
    found = logits_of(path)
    assert torch.equal(found, logits_of(edit_json(path, lambda config: config.pop("tie_word_embeddings"))))


def test_an_engine_says_each_warning_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It builds the network twice, the second time for the profile of its memory."""
    path = tied(tmp_path / "model", "qwen2_vl", "different")
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    config = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=1 << 20)
    loop.load(StartEngine(checkpoint=str(path), engine=config, shm_root=str(tmp_path / "shm"), max_model_len=256))
    assert [line.split(" beside")[0].split(" is true")[0] for line in warnings_of(caplog)] == [
        f"{SINGLE} is read and {INDEX}", "config.json: tie_word_embeddings",
    ]  # fmt: skip


# ---- tables that every network makes itself

OLD_TABLES = [
    "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.1.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq", "visual.rotary_pos_emb.inv_freq", "visual.embeddings.position_ids",
    "language_model.model.layers.0.self_attn.rotary_emb.inv_freq",
]  # fmt: skip


@pytest.mark.parametrize("family", WRITERS)
def test_left_over_tables_are_passed_over(tmp_path: Path, family: str) -> None:
    """Under the names of old releases, and under those of every buffer of transformers' own network."""
    path = WRITERS[family](tmp_path)
    before = logits_of(path)
    tables = {name: np.ones(8, np.float32) for name in OLD_TABLES}
    if family in FAMILIES:
        tables |= {name: value.numpy() for name, value in load_hf(path).named_buffers()}
        assert len(tables) > len(OLD_TABLES)
    else:
        tables |= {
            f"transformer.{end}": np.ones(1, np.float32) for end in ("rotary_emb.inv_freq", "h.0.attn.masked_bias")
        }
    if family == "qwen2_5_omni":
        tables |= {f"thinker.{name}": value for name, value in tables.items()}
    edit_tensors(path, lambda tensors: tensors.update(tables))
    assert torch.equal(logits_of(path), before)
    if family in FAMILIES:
        same_as_transformers(path)


@pytest.mark.parametrize("family", WRITERS)
def test_other_tensors_are_refused_by_name(tmp_path: Path, family: str) -> None:
    names = ["model.layers.0.self_attn.inv_freqs", "rotary_emb.inv_freq.weight", "visual.extra"]
    more = dict.fromkeys(names, np.ones(3, np.float32))
    path = edit_tensors(WRITERS[family](tmp_path), lambda tensors: tensors.update(more))
    with pytest.raises(CheckpointError) as caught:
        load_ours(path)
    told = ", ".join(f"{name} ({SINGLE})" for name in names)
    assert str(caught.value).endswith(f"tensors that this model does not use: {told}")
