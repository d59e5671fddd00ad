"""Of several chat templates in a directory the one counts that transformers' processor takes (docs/adr/0012)."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from model.families.qwen2.qwen2_audio import TEMPLATE as BUILT_IN
from tests.parity.theirs import transformers
from tests.published.layouts import change, host_of
from tests.tables import entries
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import TEMPLATE, write_qwen2_vl
from tokenization.chat.dialects import chat_from_native
from tokenization.text.template import ChatTemplate

pytestmark = pytest.mark.network

FILES = ("processor_config.json", "chat_template.json", "chat_template.jinja", "tokenizer_config.json")
CHOICES = [files for n in range(len(FILES) + 1) for files in itertools.combinations(FILES, n)]


def with_templates(path: Path, files: tuple[str, ...], template: str) -> Path:
    """The directory with a template in each of `files`, which opens with the file's name, and in no other."""
    (path / "chat_template.json").unlink()
    for file in files:
        source = f"{file}:{template}"
        if file.endswith("jinja"):
            (path / file).write_text(source)
        else:
            change(path, file, chat_template=source)
    return path


def without_weights(path: Path) -> Path:
    (path / "model.safetensors").unlink()
    return path


def copied(path: Path, to: Path) -> Path:
    return Path(shutil.copytree(path, to))


def opening_of(path: Path, built_in: str | None = None) -> str:
    """What stands before the template in a prompt: the name of the file."""
    template = ChatTemplate.from_checkpoint(Checkpoint(path), built_in)
    text = "".join(text for text, _ in template.render(chat_from_native([{"text": "x"}])))
    assert text.partition("<|")[0] in (f"{template.location}:", "")
    return text.partition("<|")[0]


def test_of_a_model_that_sees(tmp_path: Path) -> None:
    """Its processor's class has no template: where its files hold none, the tokenizer's is all that there is."""
    bare = without_weights(write_qwen2_vl(tmp_path / "bare"))
    with entries() as entry:
        for i, files in enumerate(CHOICES):
            with entry(files):
                check_seeing(with_templates(copied(bare, tmp_path / str(i)), files, TEMPLATE))


def check_seeing(path: Path) -> None:
    theirs = transformers.ProcessorMixin.get_processor_dict(path)[0].get("chat_template")
    theirs = transformers.AutoTokenizer.from_pretrained(path).chat_template if theirs is None else theirs
    if theirs is None:
        with pytest.raises(CheckpointError, match="no chat template: none of processor_config.json"):
            host_of(path)
    else:
        assert theirs.startswith(opening_of(path)) and opening_of(path)
        assert host_of(path).origins["chat template"] == opening_of(path)[:-1]


def test_of_a_model_whose_class_has_a_template(tmp_path: Path) -> None:
    bare = without_weights(write_qwen2_audio(tmp_path / "bare"))
    with entries() as entry:
        for i, files in enumerate(CHOICES):
            with entry(files):
                path = with_templates(copied(bare, tmp_path / str(i)), files, BUILT_IN)
                theirs: Any = transformers.Qwen2AudioProcessor.from_pretrained(path)
                own = theirs.chat_template != theirs.default_chat_template
                assert opening_of(path, BUILT_IN) == (theirs.chat_template.partition("{")[0] if own else "")
                assert own == any(file != "tokenizer_config.json" for file in files)


def test_what_transformers_saves_is_what_is_read(tmp_path: Path) -> None:
    """It writes a .jinja; saved over the published directory, the older file stays beside it and still counts."""
    path = write_qwen2_audio(tmp_path / "hub")
    source = json.loads((path / "chat_template.json").read_text())["chat_template"]
    processor = transformers.Qwen2AudioProcessor.from_pretrained(path)
    processor.chat_template = "new " + source
    processor.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_bytes((path / "config.json").read_bytes())
    assert host_of(tmp_path / "saved").origins["chat template"] == "chat_template.jinja"
    processor.save_pretrained(path)
    assert transformers.Qwen2AudioProcessor.from_pretrained(path).chat_template == source
    assert host_of(path).origins["chat template"] == "chat_template.json"
