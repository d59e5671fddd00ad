"""What the server says at start: every limit with its value, and what the model does not take left out."""

import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.settings import SETTINGS, load_config
from configs.version import version
from server.report import describe
from server.thread_limit import Threads
from tests.server.doubles import card
from tests.tables import each_of
from tokenization.text.bpe import BPETokenizer

LIMITS = [
    setting
    for setting in SETTINGS
    if setting.name.startswith("max_") and (setting.section in ("http", "media") or setting.name == "max_seqs")
]


def said(tokenizer: BPETokenizer, modalities: tuple[Any, ...], *args: str) -> str:
    """The report of a model that takes these."""
    config = load_config(args, {})
    return describe(
        config,
        replace(card(tokenizer), modalities=frozenset(modalities)),
        Path("/root"),
        1 << 30,
        Threads(n=2, reason="2 cores"),
    )


def test_the_version_stands_first(tokenizer: BPETokenizer) -> None:
    first = said(tokenizer, ("image",)).splitlines()[1].split()
    assert first == ["version", importlib.metadata.version("pixelferry"), "(a", "checkout)"]


def test_a_checkout_that_nobody_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert version() == "not installed"


def test_the_memory_of_all_workers_counts_the_one_for_texts(tokenizer: BPETokenizer) -> None:
    text = said(tokenizer, ("image",), "--workers", "3", "--worker-memory-mib", "1024")
    assert "1 GiB of private memory of one worker; 5 with those for texts and pictures have at most 5 GiB" in text


def test_what_each_of_several_ranks_has_is_said(tokenizer: BPETokenizer) -> None:
    """Of what a setting gives to all of them; every rank keeps every embedding, so that one's part is what stays."""
    assert "--tensor-parallel" not in said(tokenizer, ("image",)).replace("(--tensor-parallel)", "")
    text = said(tokenizer, ("image",), "--tensor-parallel", "2", "--embedding-mib", "96", "--kv-cache-mib", "10")
    [row] = [line for line in text.splitlines() if line.split()[0] == "--tensor-parallel"]
    assert row.endswith(
        "2 processes, each with a part of the model, 48 MiB of --embedding-mib, 5 MiB of --kv-cache-mib, on a CPU 1 of "
        "2 threads"
    )
    assert "within 48 MiB (--embedding-mib / 2, for each rank keeps all of them)" in text


@each_of("setting", LIMITS, ids=lambda setting: setting.name)
def test_every_limit_is_printed_with_its_value(tokenizer: BPETokenizer, setting: Any) -> None:
    value = 7919 if setting.high > 7919 else 63
    text = said(tokenizer, ("image", "video", "audio"), setting.flag, str(value))
    lines = [line.split() for line in text.splitlines() if line.split()[0] == setting.flag]
    assert len(lines) == 1
    number, unit = lines[0][1:3]
    scale = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "megapixels": 10**6}.get(unit, 1)
    assert float(number) * scale == pytest.approx(value * setting.scale, rel=1e-3)


def test_a_model_of_a_hub_is_named_with_its_revision(tokenizer: BPETokenizer) -> None:
    lines = said(tokenizer, ("image",), "--model", "org/name@v1", "--hub", "modelscope").splitlines()
    assert "  from                   org/name@v1 (modelscope)" in lines
    assert not [line for line in said(tokenizer, ("image",)).splitlines() if line.startswith("  from ")]


def test_limits_of_what_the_model_does_not_take_are_not_printed(tokenizer: BPETokenizer) -> None:
    text = said(tokenizer, ("image",))
    assert "--max-pixels" in text and "--max-file-mib" in text
    assert not [flag for flag in ("--max-frames", "--max-video", "--max-decoded", "--max-audio") if flag in text]


def test_what_was_read_is_named_with_its_file(tokenizer: BPETokenizer) -> None:
    origins = {"chat template": "chat_template.jinja", "pictures": "processor_config.json: image_processor"}
    shown = replace(card(tokenizer), origins=origins)
    lines = describe(load_config([], {}), shown, Path("/root"), 1 << 30, Threads(n=2, reason="2 cores")).splitlines()
    assert "  chat template          from chat_template.jinja" in lines
    assert "  pictures               from processor_config.json: image_processor" in lines


def test_a_pool_that_was_cut_is_said(tokenizer: BPETokenizer) -> None:
    assert "/root, at most 1 GiB\n" in said(tokenizer, ("image",))
    assert "at most 1 GiB, all there is, instead of --shm-mib's 2 GiB" in said(
        tokenizer, ("image",), "--shm-mib", "2048"
    )


def test_keys_are_counted_and_not_shown(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("geheim-3\n")
    text = said(tokenizer, (), "--api-key", "geheim-1", "--api-key", "geheim-2", "--api-key-file", str(file))
    assert f"API keys               2 and those in {file}\n" in text and "geheim" not in text
    assert "API keys               none: whoever" in said(tokenizer, ())
    limits = ("--key-requests-per-minute", "60", "--key-concurrency", "8")
    text = said(tokenizer, (), "--api-key", "geheim", *limits)
    assert "API keys               1; each may make 60 requests a minute, 8 at once\n" in text
