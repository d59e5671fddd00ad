"""Qwen2-Audio as published hears, and a template that has no place for a modality stops the start of any family."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import CheckpointError
from configs.serve import MediaConfig
from model.families.qwen2.qwen2_audio import TEMPLATE
from tests.parity.theirs import transformers
from tests.published.layouts import TEXT_TEMPLATE, WRITERS, audio_as_published, change, host_of
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import tone
from tests.tiny.qwen_vl import write_qwen_vl
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.media.source import Source, fetch_source
from tokenization.template_proof import prove_placeholders

pytestmark = pytest.mark.network

WORDS = ("the quick", " brown fox", "", "\n", "你好", "Audio 1: ", "a  b ", "<b>", "7")


@pytest.fixture(scope="module", params=[TEXT_TEMPLATE, None], ids=["instruct", "base"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audio_as_published(tmp_path_factory.mktemp("audio"), template=request.param)


# ---- the class's template


def random_chat(rng: random.Random) -> list[dict[str, Any]]:
    """Roles in any order, contents of either form, sounds under each of their keys."""

    def part() -> dict[str, Any]:
        sound = rng.choice([{"type": "audio"}, {"type": "audio", "audio_url": "x"}, {"type": "audio", "audio": "x"}])
        return rng.choice([sound, {"type": "text", "text": rng.choice(WORDS)}])

    def content() -> Any:
        return rng.choice([rng.choice(WORDS), [part() for _ in range(rng.randrange(5))]])

    return [
        {"role": rng.choice(["user", "assistant", "system"]), "content": content()} for _ in range(rng.randint(1, 5))
    ]


def test_the_built_in_template_is_the_class_s(published: Path) -> None:
    theirs = transformers.Qwen2AudioProcessor.from_pretrained(published)
    assert theirs.chat_template == theirs.default_chat_template
    chats = [random_chat(random.Random(i)) for i in range(500)]
    chats += [[{"role": "user", "type": "audio", "content": [{"text": "x"}, {"audio_url": "y"}]}]]
    for prompted in (True, False):
        ours, expected = (
            transformers.utils.chat_template_utils.render_jinja_template(
                chats, chat_template=source, add_generation_prompt=prompted
            )[0]
            for source in (TEMPLATE, theirs.default_chat_template)
        )
        assert ours == expected


def as_sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chat as clients write it."""
    sound = {"type": "audio_url", "audio_url": "x"}
    return [
        {**message, "content": [sound if part["type"] == "audio" else part for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def test_ids_of_random_chats_are_the_processor_s(published: Path) -> None:
    host, theirs = host_of(published), transformers.Qwen2AudioProcessor.from_pretrained(published)
    rng = random.Random(0)
    for _ in range(200):
        messages = [m for m in random_chat(rng) if m["role"] != "system"] or [{"role": "user", "content": "x"}]
        for message in messages:
            if isinstance(message["content"], list):
                kept = message["content"] if message["role"] == "user" else []
                message["content"] = kept or [{"type": "text", "text": "x"}]
        text = theirs.apply_chat_template(messages, add_generation_prompt=True)
        assert host.render(chat_from_openai(as_sent(messages))) == theirs.tokenizer(text)["input_ids"], messages


def test_whole_prompts_with_sounds_are_the_processor_s(published: Path) -> None:
    host, theirs = host_of(published), transformers.Qwen2AudioProcessor.from_pretrained(published)
    sounds = [tone(n, i) for i, n in enumerate((16000, 9000))]
    sound, question = {"type": "audio", "audio_url": "x"}, {"type": "text", "text": "What is that?"}
    messages = [{"role": "user", "content": [sound, question, sound]}]
    text = theirs.apply_chat_template(messages, add_generation_prompt=True)
    floats = [(samples / 32768).astype(np.float32) for samples in sounds]
    expected = np.asarray(theirs(text=text, audio=floats, sampling_rate=16000)["input_ids"]).reshape(-1)
    ids = host.render(chat_from_openai(as_sent(messages)))
    sources = [Source(kind="audio", param="", data=make_wav(samples)) for samples in sounds]
    measures = [host.measure(source, MediaConfig()) for source in sources]
    assert host.expand(ids, measures).input_ids.tolist() == expected.tolist()


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json", "processor_config.json"])
def test_a_template_of_the_processor_s_own_files_still_wins(tmp_path: Path, file: str) -> None:
    path = audio_as_published(tmp_path)
    source = TEMPLATE.replace("Audio %d", "Sound %d")
    (path / file).write_text(source if file.endswith("jinja") else json.dumps({"chat_template": source}))
    assert transformers.Qwen2AudioProcessor.from_pretrained(path).chat_template == source
    assert host_of(path).origins["chat template"] == file


# ---- what a client sends


def test_ids_of_both_routes_are_the_processor_s(tmp_path: Path) -> None:
    """A server of each published directory of this model answers in `make layouts`."""
    path, question = audio_as_published(tmp_path), "What is that?"
    data = make_wav(tone(16000, 1))
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}}
    chats = [
        chat_from_native([{"audio": "data:audio/wav;base64," + base64.b64encode(data).decode()}, {"text": question}]),
        chat_from_openai([{"role": "user", "content": [sound, {"type": "text", "text": question}]}]),
    ]
    theirs = transformers.Qwen2AudioProcessor.from_pretrained(path)
    content = [{"type": "audio", "audio_url": "x"}, {"type": "text", "text": question}]
    text = theirs.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    samples = (tone(16000, 1) / 32768).astype(np.float32)
    expected = np.asarray(theirs(text=text, audio=[samples], sampling_rate=16000)["input_ids"]).reshape(-1).tolist()
    host = host_of(path)
    for chat in chats:
        measure = host.measure(fetch_source(chat.media[0], MediaConfig()), MediaConfig())
        assert host.expand(host.render(host.fit(chat)), [measure]).input_ids.tolist() == expected
    assert host.origins["chat template"] == "the processor's class"


# ---- the proof at start


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_template_stops_the_start(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path)
    (path / "chat_template.json").unlink()
    (path / "chat_template.jinja").write_text(TEXT_TEMPLATE)
    with pytest.raises(CheckpointError, match=r"^chat_template.jinja: .* one (audio|image), which .*; put the pub"):
        host_of(path)


@pytest.mark.parametrize(
    ("mark", "kind", "places"),
    [("<|AUDIO|>", "audio", 0), ("<|VIDEO|>", "video", 0), ("<|IMAGE|>", "image", 2)],
)
def test_each_kind_is_proven_by_itself(tmp_path: Path, mark: str, kind: str, places: int) -> None:
    path = WRITERS["qwen2_5_omni"](tmp_path)
    source = json.loads((path / "chat_template.json").read_text())["chat_template"]
    change(path, "chat_template.json", chat_template=source.replace(mark, mark * places))
    with pytest.raises(CheckpointError, match=f"^chat_template.json: .* one {kind}, .*{places} of the chat's 1 media"):
        host_of(path)


@pytest.mark.parametrize("sees", [True, False])
def test_a_family_without_a_template_passes_the_same_proof(tmp_path: Path, sees: bool) -> None:
    host = host_of(write_qwen_vl(tmp_path, ["Hello"], sees=sees))
    assert host.modalities.keys() == ({"image"} if sees else set())
    if sees:
        host.render = lambda chat: [1, 2, 3]  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match="the processor's class: .* one image, .*it has 0 places"):
            prove_placeholders(host)
