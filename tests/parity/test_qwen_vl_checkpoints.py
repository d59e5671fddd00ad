"""Windows, base models and text-only Qwen of the original Qwen-VL."""

import json
from pathlib import Path

import pytest

from configs.checkpoint import CheckpointError
from model.families.qwen_vl.processor import QwenVLProcessor
from tests.parity.golden_qwen_vl import (
    IMG,
    checkpoint_with,
    processor_at,
)
from tests.parity.worker_qwen_vl import PIC, run, written
from tests.tiny.qwen2_vl import write_json
from tests.tiny.qwen_vl import write_qwen_vl
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def host() -> QwenVLProcessor:
    return processor_at()


# ---- the window


def long_chat(n: int) -> Chat:
    """n exchanges, each with a picture, then a question with one."""
    history = [{"inputs": [{"image": PIC}, {"text": f"question {i}"}], "text": f"answer {i}"} for i in range(n)]
    return chat_from_native({"system": "s", "history": history, "inputs": [{"image": PIC}, {"text": "now"}]})


def test_dropped_turns_take_their_pictures_along(tmp_path: Path) -> None:
    path = checkpoint_with(tmp_path / "ckpt")
    (path / "generation_config.json").unlink()
    write_json(path / "generation_config.json", {"chat_format": "chatml", "max_window_size": 1000})
    found, asked, arrays = run(path, tmp_path / "root", long_chat(6))
    assert len(found.media) == 4 == len(asked[0].nbytes) == len(arrays)  # three of six, and the question's own
    assert asked[0].params == (*(f"history[{i}].inputs[0].image" for i in (3, 4, 5)), "inputs[0].image")
    text = written(processor_at(path), processor_at(path).fit(long_chat(6)))
    assert "answer 2" not in text and "answer 3" in text and "system\ns<" in text
    counted, _, _ = run(path, tmp_path / "root", long_chat(6), count_only=True)
    assert len(counted.input_ids) == len(found.input_ids)
    whole = processor_at().fit(long_chat(6))  # 6144 hold them all
    assert whole == long_chat(6)


def test_render_agrees_with_what_fits(tmp_path: Path) -> None:
    """Cut twice is cut once, whatever the window."""
    for window in (0, 30, 310, 320, 600, 900, 2000):
        path = checkpoint_with(tmp_path / str(window))
        (path / "generation_config.json").unlink()
        write_json(path / "generation_config.json", {"max_window_size": window})
        host = processor_at(path)
        kept = host.fit(long_chat(5))
        assert host.fit(kept) == kept
        assert host.render(kept) == host.render(long_chat(5))
        assert host.render(kept).count(IMG) == len(kept.media)


# ---- other checkpoints


def test_a_base_model_continues_one_list(tmp_path: Path) -> None:
    path = checkpoint_with(tmp_path / "ckpt")
    (path / "generation_config.json").unlink()
    write_json(path / "generation_config.json", {"chat_format": "raw", "eos_token_id": 295})
    host = processor_at(path)
    text = written(host, chat_from_native([{"image": PIC}, {"text": "Generate the caption:"}]))
    assert text == "Picture 1: <img><imgpad></img>\nGenerate the caption:"
    assert host.stop_ids == (295,)
    for chat in (long_chat(1), chat_from_native({"system": "s", "inputs": [{"text": "x"}]})):
        with pytest.raises(ChatError, match="base model"):
            host.render(host.fit(chat))


def test_text_only_qwen(tmp_path: Path) -> None:
    path = write_qwen_vl(tmp_path / "text", ["Hello"], sees=False)
    host = processor_at(path)
    assert host.modalities == {} and host.features == frozenset()
    chat = chat_from_native(
        {"history": [{"inputs": [{"text": "a"}], "text": "<ref>b</ref>"}], "inputs": [{"text": "c"}]}
    )
    assert host.tokenizer.special["<ref>"] not in host.render(chat)
    with pytest.raises(ChatError, match="takes no"):  # a picture is refused by the server, before a worker has it
        run(path, tmp_path / "root", chat_from_native([{"box": [[1, 2, 3, 4]]}]))


def test_what_ends_an_answer(host: QwenVLProcessor) -> None:
    assert [host.tokenizer.token_bytes(i) for i in host.stop_ids] == [b"<|im_end|>", b"<|im_start|>", b"<|endoftext|>"]


def test_an_unknown_chat_format_is_refused(tmp_path: Path) -> None:
    path = checkpoint_with(tmp_path / "ckpt")
    (path / "generation_config.json").unlink()
    (path / "generation_config.json").write_text(json.dumps({"chat_format": "alpaca"}))
    with pytest.raises(CheckpointError, match="chat_format = 'alpaca' is not supported"):
        processor_at(path)
