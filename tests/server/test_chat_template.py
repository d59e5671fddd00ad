"""`--chat-template`: a file that cannot be served ends the start in one sentence that names the flag and the file."""

import re
from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import ModelConfig, ServeConfig
from model.registry import family_of
from server import commands as program
from server.requests.model_card import read_model_card
from tests.server.tables import each_of
from tests.server.test_commands import served
from tests.tiny.families import WRITERS
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.template_proof import prove_placeholders

SHIPPED = Path(__file__).resolve().parents[2] / "examples" / "templates" / "qwen2_vl_tools.jinja"
WORDS = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
SHOUTS = SHIPPED.read_text().replace("part['text'] -", "part['text'] | upper -")


pytestmark = pytest.mark.usefixtures("kept_logging")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("model"))


def test_what_is_no_file_is_a_wrong_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = served(monkeypatch)
    for path in (tmp_path / "none.jinja", tmp_path):
        assert program.main(["serve", "--chat-template", str(path)]) == 2
        assert capsys.readouterr().err == f"error: --chat-template: {path} is not a file that can be found\n"
    assert given == []


def test_what_is_no_text_ends_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every other file does that a setting names and that holds something else."""
    given = served(monkeypatch)
    path = tmp_path / "t.jinja"
    path.write_bytes(b"{{ x }}\xff")
    assert program.main(["serve", "--chat-template", str(path)]) == 1
    assert capfd.readouterr().err == f"error: --chat-template {path}: not UTF-8 at byte 7\n"
    assert given == []


def proven(model: Path, template: Path) -> None:
    """As a worker does."""
    checkpoint = Checkpoint(model, template)
    prove_placeholders(family_of(checkpoint).host(checkpoint, 1 << 20))


@each_of(
    ("source", "said"),
    [
        ("{% for m in %}", "does not compile: Expected an expression"),
        ("{{ raise_exception('not today') }}", "refuses this conversation: not today"),
        ("{{ 1 // 0 }}", "refuses this conversation"),
        ("{{ nothing.of.that }}", "refuses this conversation: 'nothing' is undefined"),
        ("", "leaves this text out"),
        ("Hello", "leaves this text out"),
        (SHOUTS, "leaves this text out|tears this conversation's texts apart"),  # the marks around it are random
        (WORDS, "has places for 0 of the chat's 1 media items"),
    ],
    ids=["no Jinja", "raises", "divides", "undefined", "empty", "no text", "not as it was said", "no picture"],
)
def test_what_cannot_be_served_is_refused_by_its_reason(model: Path, tmp_path: Path, source: str, said: str) -> None:
    path = tmp_path / "t.jinja"
    path.write_text(source)
    with pytest.raises(CheckpointError) as caught:
        proven(model, path)
    assert str(caught.value).startswith(f"--chat-template {path}: the chat template ")
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)


def test_one_that_has_gone_since_is_no_empty_one(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        proven(model, tmp_path / "gone.jinja")
    assert str(caught.value) == f"--chat-template {tmp_path / 'gone.jinja'}: there is no such file"


def test_the_shipped_one_is_served_and_a_family_without_templates_takes_none(model: Path, tmp_path: Path) -> None:
    proven(model, SHIPPED)
    config = ServeConfig(model=ModelConfig(path=model, served_name="x", chat_template=SHIPPED))
    assert read_model_card(config).origins["chat template"] == f"--chat-template {SHIPPED}"
    other = ModelConfig(path=WRITERS["qwen_vl"](tmp_path), served_name="x", chat_template=SHIPPED)
    with pytest.raises(CheckpointError, match="^--chat-template: the family qwen_vl takes none"):
        read_model_card(ServeConfig(model=other))
