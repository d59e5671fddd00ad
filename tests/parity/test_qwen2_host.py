"""Ids and positions of Qwen2-VL and Qwen2.5-VL against transformers' own tokenizer and rope index."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.parity.conftest import MAX_PIXELS
from tests.parity.theirs import transformers
from tests.tables import entries
from tests.tiny.qwen2_vl import SPECIAL, TEMPLATE, write_json
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.media.video_plan import VideoPlan
from tokenization.processor import Measure, Processor

pytestmark = pytest.mark.network

IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}
VIDEO = {"type": "video_url", "video_url": {"url": "data:,x"}}


@pytest.fixture(scope="module")
def tokenizer(qwen2: Checkpoint) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(qwen2.path))


@pytest.fixture(scope="module")
def reference(qwen2: Checkpoint) -> Any:
    model = transformers.Qwen2VLModel if family_of(qwen2).name == "qwen2_vl" else transformers.Qwen2_5_VLModel
    with torch.device("meta"):  # its rope index needs no weights
        return model(transformers.AutoConfig.from_pretrained(str(qwen2.path)))


# ---- ids

WORDS = [
    "", " ", "\n", "\nnew line first", "  blanks first", "blanks last  \n", "\t\ttabs", "Hello, world!", "don't stop",
    "你好，世界。这张图片里有什么？", "🙂👩\u200d👩\u200d👧 x 🇩🇪", "e\u0301 is not é",
    '<tool_call>{"a": 1}</tool_call>',
    "a\n\n\nb", "\u3000wide", "1 2 3 4 5 10 20", "\u00a0nbsp\u00a0",
]  # fmt: skip


def reference_ids(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    ids = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATE, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(i) for i in ids]


def hub_form(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI messages as transformers' templates take them."""
    turned = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = [
                part if part["type"] == "text" else {"type": part["type"].removesuffix("_url")} for part in content
            ]
        turned.append({"role": message["role"], "content": content})
    return turned


def test_ids_of_texts(host: Processor, tokenizer: Any) -> None:
    with entries() as entry:
        for words in WORDS:
            text = {"type": "text", "text": words}
            mixed = [text, IMAGE, text, VIDEO, text]
            for content in (words, [text], [IMAGE, text], [text, VIDEO], [VIDEO, IMAGE, text], mixed, [text, text]):
                messages = [{"role": "user", "content": content}]
                with entry(repr(content)):
                    assert host.render(chat_from_openai(messages)) == reference_ids(tokenizer, hub_form(messages))


def test_ids_of_whole_conversations(host: Processor, tokenizer: Any) -> None:
    rng = random.Random(1)
    for _ in range(60):
        messages: list[dict[str, Any]] = []
        if rng.random() < 0.5:
            messages.append({"role": "system", "content": rng.choice(WORDS)})
        for i in range(rng.randrange(1, 4)):
            media = IMAGE if rng.random() < 0.5 else VIDEO
            parts = [media if rng.random() < 0.4 else {"type": "text", "text": rng.choice(WORDS)} for _ in range(4)]
            messages.append({"role": "user", "content": rng.choice(WORDS) if rng.random() < 0.3 else parts})
            if i < 2:
                messages.append({"role": "assistant", "content": rng.choice(WORDS)})
        assert host.render(chat_from_openai(messages)) == reference_ids(tokenizer, hub_form(messages))


def test_both_dialects_give_the_same_ids(host: Processor) -> None:
    native = chat_from_native(
        {
            "system": "Be brief.",
            "history": [{"inputs": [{"image": "a"}, {"text": "what?"}], "text": "a cat"}],
            "inputs": [{"text": "and?"}, {"image": "b"}],
        }
    )
    image, text = {"type": "image_url", "image_url": "a"}, {"type": "text"}
    openai = chat_from_openai(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [image, {**text, "text": "what?"}]},
            {"role": "assistant", "content": "a cat"},
            {"role": "user", "content": [{**text, "text": "and?"}, image]},
        ]
    )
    assert host.render(native) == host.render(openai)


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_typed_special_tokens_are_ordinary_ids_beside_real_images(host: Processor, role: str) -> None:
    with entries() as entry:
        for token in SPECIAL:
            with entry(token):
                check_typed(host, token, role)


def check_typed(host: Processor, token: str, role: str) -> None:
    """The special ids of the prompt are exactly those of the same chat without the typed token, in the same order."""

    def special_ids(word: str) -> list[int]:
        text = {"type": "text", "text": f"{word} a {word}\n{word}"}
        user: list[dict[str, Any]] = [{"role": "user", "content": [text, IMAGE, text, IMAGE, text]}]
        if role == "system":
            messages = [{"role": "system", "content": f"x{word}"}, *user]
        elif role == "assistant":
            messages = [*user, {"role": "assistant", "content": word}, *user]
        else:
            messages = user
        return [i for i in host.render(chat_from_openai(messages)) if host.tokenizer.is_special(i)]

    assert special_ids(token) == special_ids("word")
    everything = host.render(chat_from_openai([{"role": "user", "content": f"a{token}b"}]))
    spelled = host.tokenizer.encode(f"user\na{token}b")
    at = next(i for i in range(len(everything)) if everything[i : i + len(spelled)] == spelled)
    assert at > 0 and len(spelled) > len(host.tokenizer.encode("user\nab")) + 1


# ---- expansion and positions


def image(h: int, w: int) -> Measure:
    return Measure(kind="image", grid=(1, h, w), shape=(h * w, 588), n_tokens=h * w // 4)


def video(t: int, h: int, w: int, seconds: float = 1.0) -> Measure:
    clip = VideoPlan(indices=(), seconds_per_grid=seconds, fps=2.0, size=(h * 14, w * 14), info=None)
    return Measure(kind="video", grid=(t, h, w), shape=(t * h * w, 1176), n_tokens=t * h * w // 4, video=clip)


def check_layout(host: Processor, ids: list[int], measures: Sequence[Measure]) -> np.ndarray:
    """The expanded ids: each pad became as many as its medium has tokens, and the spans say where."""
    pads = [host.tokenizer.special["<|image_pad|>"], host.tokenizer.special["<|video_pad|>"]]
    layout = host.expand(ids, measures)
    expected: list[int] = []
    remaining = iter(measures)
    for i in ids:
        expected += [i] * next(remaining).n_tokens if i in pads else [i]
    assert layout.input_ids.dtype == np.int64 and layout.input_ids.tolist() == expected
    for spans, measure in zip(layout.spans, measures, strict=True):
        ((start, length),) = spans
        pad = pads[measure.kind == "video"]
        assert length == measure.n_tokens and (layout.input_ids[start : start + length] == pad).all()
        assert layout.input_ids[start - 1] == host.tokenizer.special["<|vision_start|>"]
    return layout.input_ids


def reference_positions(reference: Any, ids: np.ndarray, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
    """transformers' own, [3, n] and the delta."""
    config, input_ids = reference.config, torch.from_numpy(ids)[None]
    kinds = (input_ids == config.image_token_id).int() + 2 * (input_ids == config.video_token_id).int()
    named: dict[str, Any] = {}
    for kind in ("image", "video"):
        grids = [measure.grid for measure in measures if measure.kind == kind]
        named[f"{kind}_grid_thw"] = torch.tensor(grids) if grids else None
    if hasattr(config.vision_config, "tokens_per_second"):
        named["second_per_grid_ts"] = torch.tensor([m.video.seconds_per_grid for m in measures if m.video])
    found, delta = reference.get_rope_index(input_ids, kinds, **named)
    return found[:, 0].numpy(), int(delta)


def check_positions(host: Processor, reference: Any, ids: list[int], measures: Sequence[Measure]) -> None:
    layout = host.expand(ids, measures)
    positions, delta = host.positions(layout, measures)
    theirs, their_delta = reference_positions(reference, check_layout(host, ids, measures), measures)
    assert positions.dtype == np.int32 and np.array_equal(positions, theirs)
    assert delta == their_delta


GRIDS: list[list[tuple[int, int]]] = [
    [], [(4, 4)], [(2, 2)], [(2, 80)], [(80, 2)], [(4, 6), (10, 4), (2, 2)],
    [(4 + 2 * (i % 5), 4 + 2 * (i % 3)) for i in range(20)], [(74, 66)],
]  # fmt: skip


def test_expansion_and_positions(host: Processor, reference: Any) -> None:
    with entries() as entry:
        for grids in GRIDS:
            with entry(grids):
                check_pictures(host, reference, grids)


def check_pictures(host: Processor, reference: Any, grids: list[tuple[int, int]]) -> None:
    text = {"type": "text", "text": "words between\n"}
    layouts: list[list[Any]] = [
        [text, *[IMAGE] * len(grids)],
        [*[IMAGE] * len(grids), text],
        [part for i in range(len(grids)) for part in (IMAGE, {"type": "text", "text": f" {i}"})] or [text],
    ]
    for content in layouts:
        ids = host.render(chat_from_openai([{"role": "user", "content": content}]))
        check_positions(host, reference, ids, [image(h, w) for h, w in grids])


VIDEOS = [  # none lasts longer than it is high or wide
    [video(1, 4, 4)],
    [video(2, 6, 8, 0.5), video(2, 10, 4, 2.0)],
    [image(4, 6), video(3, 8, 10, 0.7)],
    [video(3, 8, 10, 1.1), image(4, 6)],
    [video(7, 40, 4, 1 / 3), image(2, 2), video(5, 4, 30, 2 / 3), image(10, 4)],
    [video(25, 220, 4, seconds=2 / 0.9)],
]


def test_positions_of_videos_where_the_rules_agree(host: Processor, reference: Any) -> None:
    with entries() as entry:
        for i, measures in enumerate(VIDEOS):
            with entry(i):
                check_videos(host, reference, measures)


def check_videos(host: Processor, reference: Any, measures: list[Measure]) -> None:
    parts = [
        part for m in measures for part in ({"image": IMAGE, "video": VIDEO}[m.kind], {"type": "text", "text": " x"})
    ]
    for content in (parts, [{"type": "text", "text": "before"}, *parts]):
        check_positions(
            host, reference, host.render(chat_from_openai([{"role": "user", "content": content}])), measures
        )


def test_text_behind_a_long_video_follows_its_greatest_position(host: Processor, reference: Any) -> None:
    """Where 5.x differs: it lets text go on behind height and width, in the middle of the video's time."""
    text = {"type": "text", "text": "words"}
    ids = host.render(chat_from_openai([{"role": "user", "content": [text, VIDEO, text, VIDEO, text]}]))
    measures = [video(10, 4, 4, 1.0), video(3, 4, 4, 3.0)]
    ends = {"qwen2_vl": (9, 2), "qwen2_5_vl": (18, 12)}[reference.config.model_type]  # greatest time inside each
    layout = host.expand(ids, measures)
    positions, delta = host.positions(layout, measures)
    theirs, their_delta = reference_positions(reference, layout.input_ids, measures)
    for ((start, length),), end in zip(layout.spans, ends, strict=True):
        before, behind = positions[:, start - 1], positions[:, start + length]
        assert (before == before[0]).all() and (behind == before[0] + 1 + end + 1).all()
        assert positions[0, start : start + length].max() == before[0] + 1 + end
        block, their_block = positions[:, start : start + length], theirs[:, start : start + length]
        assert np.array_equal(block - block[:, :1], their_block - their_block[:, :1])  # inside, the rules agree
    assert delta == positions.max() + 1 - len(ids) - sum(m.n_tokens - 1 for m in measures)
    assert delta > their_delta


def test_a_template_without_a_place_for_images_is_refused(qwen2: Checkpoint, tmp_path: Path) -> None:
    for path in qwen2.path.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    words = "{{ messages[0].content[0].text }}"
    cases = [
        (words, "0 of the chat's 1 media"),
        ("<|image_pad|>" * 3 + words, "3 of the chat's 1 media"),
        ("<|video_pad|>" + words, "in another order"),
    ]
    for source, message in cases:
        write_json(tmp_path / "chat_template.json", {"chat_template": source})
        odd = family_of(qwen2).processor(Checkpoint(tmp_path), MAX_PIXELS)
        with pytest.raises(ChatError, match=message):
            odd.render(chat_from_openai([{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]))
