"""`pixelferry plan`: what it prints for people and for programs, and the code that it ends with."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from configs.serve import GIB, MIB
from server.commands import main
from server.hub import fetch
from tests.layouts.directories import facts_of
from tests.rights import forbidden
from tests.server.hub.test_fetch import Shelf
from tests.server.tables import each_of
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_json

Captured = pytest.CaptureFixture[str]
PAGE = Path(__file__).parents[2] / "docs" / "tensor-parallel.md"
LARGE = "Qwen2.5-VL-72B"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """config.json of a model that no machine of ours holds."""
    write_json(tmp_path / "config.json", facts_of(f"{LARGE}-Instruct")["files"]["config.json"])
    return tmp_path


def told(capsys: Captured, *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", "--json", *words]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["fits"] == (code == 0)
    return found


def test_a_large_model_by_its_config_alone(large: Path, capsys: Captured) -> None:
    """The page has the same figures; tests/ranks compares all that it has."""
    found = told(capsys, "--model", str(large))
    one, two, four, eight = found["tensor_parallel"]
    assert [each["n"] for each in (one, two, four, eight)] == [1, 2, 4, 8]
    assert one["why_not"] == "136.7 GiB of weights are more than 64 GiB" and not two["fits"]
    assert one["kv_tokens"] is one["requests"] is one["serve_kv_tokens"] is None
    for each in (four, eight):
        assert each["fits"] and each["why_not"] is None
        weights, decoder = each["weight_bytes"] / GIB, each["decoder_bytes"] / GIB
        row = f"| {LARGE} | {each['n']} | {weights:.1f} | {decoder:.1f} | {each['kv_heads']} | "
        assert row in PAGE.read_text()
        left = 64 * GIB - each["weight_bytes"] - each["embedding_bytes"] - found["activation_bytes"]
        assert each["left_bytes"] == left
        blocks = int(0.9 * left) // (128 * each["kv_bytes_per_token"]) - 1  # of which one is for the padding of graphs
        assert each["kv_tokens"] == 128 * blocks and each["requests"] == blocks // (32768 // 128)
    assert (four["embedding_bytes"], eight["embedding_bytes"]) == (256 * MIB, 128 * MIB)
    assert (found["weights_by"], found["dtype"], found["device"]) == ("architecture", "bfloat16", "npu")
    assert found["activation_bytes"] == 9 * 16 * 152064 * 4 and "a start measures" in found["activation_rule"]


def test_what_people_read(large: Path, capsys: Captured) -> None:
    assert main(["plan", str(large), "--tensor-parallel", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"plan for {large}"
    rows = {line[2:24].rstrip(): line[25:] for line in lines[1:4]}
    assert rows["devices"] == "npu, 64 GiB for each rank (--device-memory-gib)"
    assert rows["weights"].startswith("counted from the architecture: no weights here")
    (row,) = [line.split("  ") for line in lines if line.startswith("4  ")]
    cells = [cell.strip() for cell in row if cell]
    assert cells == ["4", "35.17 GiB", "33.86 GiB", "1.312 GiB", "256 MiB", "28.5 GiB", "80 KiB", "336,000", "10"]
    assert lines[-1] == "N = 4 fits: serve has 336,000 tokens of KV cache (--kv-cache-share 0.9 of 28.5 GiB left)"


def test_a_number_that_does_not_divide_it_is_the_sentence_of_the_start(large: Path, capsys: Captured) -> None:
    words = (
        "config.json: 3 ranks do not share 64 heads of queries evenly (ranks that share all: 1, 2, 4, 8, 16, 32, 64)"
    )
    found = told(capsys, "--model", str(large), "--tensor-parallel=3", code=1)
    (three,) = found["tensor_parallel"]
    assert three["why_not"] == words and three["weight_bytes"] is three["left_bytes"] is None
    assert main(["plan", "--model", str(large), "--tensor-parallel", "3"]) == 1
    assert capsys.readouterr().out.endswith(f"\nN = 3 does not fit: {words}\n")


def test_settings_that_decide_memory_are_those_of_serve(large: Path, capsys: Captured) -> None:
    config = json.loads((large / "config.json").read_text())
    write_json(large / "config.json", config | {"num_hidden_layers": 2})  # which a test builds in no time
    words = ["--model", str(large), "--tensor-parallel", "4"]

    def one(*more: str) -> dict[str, Any]:
        (found,) = told(capsys, *words, *more)["tensor_parallel"]
        return dict(found)

    plain = one()
    assert one("--device-memory-gib", "80")["left_bytes"] == plain["left_bytes"] + 16 * GIB
    assert one("--embedding-mib", "400")["embedding_bytes"] == 100 * MIB
    assert one("--activations-mib", "1024")["left_bytes"] == plain["left_bytes"] + 9 * 16 * 152064 * 4 - GIB
    assert one("--max-model-len", "4096")["requests"] == plain["kv_tokens"] // 4096
    assert one("--max-seqs", "2")["serve_kv_tokens"] == 2 * 32768 < plain["kv_tokens"]
    assert one("--kv-cache-share", "0.5")["kv_tokens"] < 0.6 * plain["kv_tokens"]
    assert one("--no-graphs")["kv_tokens"] == plain["kv_tokens"] + 128


def test_headers_of_safetensors_are_read_where_they_are(tmp_path: Path, capsys: Captured) -> None:
    path = write_qwen2_5_vl(tmp_path)
    words = ["--model", str(path), "--device", "cpu", "--tensor-parallel", "1"]
    found = told(capsys, *words)
    assert (found["weights_by"], found["no_headers"], found["activation_bytes"]) == ("headers", None, None)
    (path / "model.safetensors").unlink()
    without = told(capsys, *words)
    assert without["weights_by"] == "architecture" and without["tensor_parallel"] == found["tensor_parallel"]


def test_a_cpus_cache_by_size_that_is_more_than_is_left_is_told_and_not_refused(
    tmp_path: Path, capsys: Captured
) -> None:
    words = ["--model", str(write_qwen2_5_vl(tmp_path)), "--device", "cpu", "--tensor-parallel", "1"]
    words += ["--dtype", "float32", "--kv-cache-mib", "64", "--max-seqs", "2048"]
    more = " tokens of KV cache (--kv-cache-mib): more than is left, and on a CPU no start looks at that"
    for memory, told in (("0.05", more), ("1", " tokens of KV cache (--kv-cache-mib)")):
        assert main(["plan", *words, "--device-memory-gib", memory]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("N = 1 fits: serve has ") and last.endswith(told)


@each_of(("words", "told"), [
    (["--model", "/nowhere/at/all"], "--model: /nowhere/at/all is not a directory"),
    (["--tensor-parallel", "0"], "--tensor-parallel: 0 is outside 1 to 64"),
    (["--device-memory-gib", "much"], "--device-memory-gib: expected a number, got 'much'"),
    (["--device-memory-gib", "nan"], "--device-memory-gib: nan is outside"),
    (["--activations-mib", "-1"], "--activations-mib: -1 is outside"),
    (["--activations-mib", "1", "--device", "cpu"], "--activations-mib: on a CPU nothing is measured"),
    (["--max-model-len", "9999"], "--max-model-len 9999 is more than config.json's max_position_embeddings, 4096"),
    (["--dtype", "float32"], "--dtype float32 is not served on an NPU: take bfloat16"),
    (["--device-memory", "1"], "unrecognized arguments: --device-memory"),
])  # fmt: skip
def test_a_setting_that_cannot_be_taken_is_named(words: list[str], told: str, capsys: Captured) -> None:
    assert main(["plan", *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {told}") and shown.err.count("\n") == 1 and shown.out == ""


def test_a_checkpoint_that_is_not_served_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert main(["plan", "--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("no config.json here; --model takes a checkpoint directory\n")
    write_json(tmp_path / "config.json", {"architectures": ["Other"]})
    assert main(["plan", "--model", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: config.json: architecture 'Other' is not supported")


def test_what_nobody_may_read_is_one_line(large: Path, capsys: Captured) -> None:
    (large / "closed").mkdir()
    for closed, code, told in (
        (large, 1, "config.json: cannot be read: Permission denied"),
        (large / "closed", 2, f"--model: {large}/closed/model cannot be read: Permission denied"),
    ):
        with forbidden(closed):
            assert main(["plan", "--model", str(large if code == 1 else closed / "model")]) == code
        assert capsys.readouterr().err == f"error: {told}\n"


def test_of_a_model_on_a_hub_no_weights_are_fetched(
    large: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((large / "config.json").read_text())
    (tmp_path / "cache").mkdir()
    shelf = Shelf(tmp_path / "cache", {"config.json": config, "model.safetensors": 1})
    monkeypatch.setitem(fetch.CLIENTS, "huggingface", lambda wanted, progress: shelf)
    found = told(capsys, "--model", "org/name", "--tensor-parallel", "8")
    assert found["model"] == "org/name@rev" and found["weights_by"] == "architecture"
    assert set(shelf.fetched) == {"config.json"}
    shutil.rmtree(tmp_path / "cache")
