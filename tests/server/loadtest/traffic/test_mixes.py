"""Mixes: shares, repeats and cancellations are as often as they were asked for, and a seed gives the same requests."""

from collections import Counter
from pathlib import Path

import pytest

from server.loadtest.options import Options, read_options
from server.loadtest.traffic.generated import QUESTION
from server.loadtest.traffic.mixes import Make, RequestList, SyntheticRequests, media_of
from server.loadtest.traffic.requests import Medium, SampleRequest, medium_of
from tests.server.tables import each_of

N = 4000


class Counted(SyntheticRequests):
    """With media of a few bytes, each another: nothing is drawn."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.made: list[tuple[str, str]] = []

    def fresh(self, bucket: str, media_type: str, make: Make) -> Medium:
        self.made.append((media_type, bucket))
        return medium_of(media_type.partition("/")[0], bucket, media_type, b"%d" % len(self.made))


def made(source: SyntheticRequests | RequestList, n: int) -> list[SampleRequest]:
    return [source.make(index) for index in range(n)]


SIZES = ["--prompt-words", "3", "--max-tokens", "8", "--image-sizes", "64x32", "--image-format", "png"]
SIZES += ["--video-size", "32x32", "--audio-seconds", "1.5"]


def synthetic(*flags: str) -> Counted:
    return Counted(read_options([*SIZES, *flags]))


def drawn(*flags: str) -> list[Medium]:
    """The media of four requests, one in each, which are really made."""
    source = SyntheticRequests(read_options(["--seed", "0", *flags]))
    return [request.media[0] for request in made(source, 4)]


def test_kinds_come_by_their_weights() -> None:
    source = synthetic("--mix", "text:60,image:30,image+audio:10")
    found = Counter(request.kind for request in made(source, N))
    for kind, share in (("text", 0.6), ("image", 0.3), ("image+audio", 0.1)):
        assert found[kind] / N == pytest.approx(share, abs=4 * (share * (1 - share) / N) ** 0.5)


def test_media_are_as_many_and_as_large_as_asked_for() -> None:
    source = synthetic("--mix", "image+video+audio", "--items", "2")
    (ask,) = made(source, 1)
    images, videos = [("image/png", "64x32 png")] * 2, [("video/mp4", "2 s 32x32")] * 2
    assert source.made == [*images, *videos, *[("audio/wav", "1.5 s")] * 2]
    assert [medium.kind for medium in ask.media] == ["image", "image", "video", "video", "audio", "audio"]
    assert ask.bucket == "64x32 png+2 s 32x32+1.5 s"


@each_of("share", [0.0, 0.3, 1.0])
def test_so_many_media_are_repeated(share: float) -> None:
    source = synthetic("--mix", "image", "--repeat", str(share))
    asks = made(source, N)
    n, repeated = media_of([asks], [N])
    assert n == N and repeated == pytest.approx(share, abs=0.03)


def test_going_round_again_repeats_everything() -> None:
    source = synthetic("--mix", "image")
    asks = made(source, 10)
    assert media_of([asks], [10]) == (10, 0.0) and media_of([asks], [40]) == (40, 0.75)
    assert media_of([asks, asks], [10, 10]) == (20, 0.5) and media_of([[]], [0]) == (0, 0.0)


def test_media_are_chosen_among_as_many_as_are_shared() -> None:
    asks = made(synthetic("--mix", "image+audio,demo", "--shared-media", "5"), N)
    for kind, bucket in (("image", "64x32 png"), ("audio", "1.5 s"), ("image", "drawing")):
        media = [one for ask in asks for one in ask.media if (one.kind, one.bucket) == (kind, bucket)]
        counts = Counter(bytes(one.data) for one in media)
        assert len(counts) == 5
        assert max(abs(n / len(media) - 0.2) for n in counts.values()) < 0.04, "each as often"
    answers = {bytes(ask.media[0].data): ask.expect for ask in asks if ask.kind == "demo"}
    assert all(answers[bytes(ask.media[0].data)] == ask.expect for ask in asks if ask.kind == "demo")


def test_no_medium_is_made_twice_where_all_are_unique() -> None:
    flags = ("--mix", "image,demo", "--image-sizes", "16x16", "--distinct", "2", "--unique-media")
    asks = made(SyntheticRequests(read_options(list(flags))), 40)
    assert len({bytes(ask.media[0].data) for ask in asks}) == 40


@each_of("flags", [("--unique-media",), ("--shared-media", "3")])
def test_a_folder_with_too_few_media_is_told(flags: tuple[str, ...], tmp_path: Path) -> None:
    for name, content in (("a.jpg", b"1"), ("b.jpg", b"2"), ("copy.jpg", b"2")):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"copy\.jpg"):
        made(SyntheticRequests(read_options(["--mix", "image", "--media-dir", str(tmp_path), *flags])), 40)


def test_so_many_requests_are_left() -> None:
    source = synthetic("--cancel", "25%", "--cancel-within", "2s")
    times = [ask.cancel_after for ask in made(source, N)]
    left = [time for time in times if time is not None]
    assert len(left) / N == pytest.approx(0.25, abs=0.03)
    assert 0 <= min(left) and max(left) <= 2 and sum(left) / len(left) == pytest.approx(1.0, abs=0.1)


def test_prompts_are_so_many_words_and_never_the_same() -> None:
    source = synthetic("--prompt-words", "20")
    prompts = [ask.prompt for ask in made(source, 200)]
    assert len(set(prompts)) == 200
    assert all(len(prompt.split(".")[0].split()) == 20 for prompt in prompts)


def test_a_trace_says_how_long_prompt_and_answer_are() -> None:
    ask = synthetic().make(0, 7, 3)
    assert len(ask.prompt.split(".")[0].split()) == 7 and ask.max_tokens == 3
    assert synthetic().make(0).max_tokens == 8


def test_a_drawing_brings_its_question_and_its_answer() -> None:
    request = synthetic("--mix", "demo").make(0)
    assert (request.prompt, request.bucket) == (QUESTION, "drawing") and len((request.expect or "").split()) == 2


def test_a_seed_gives_the_same_requests() -> None:
    flags = ("--mix", "text,image", "--seed")
    first, again, other = (made(synthetic(*flags, seed), 9) for seed in ("1", "1", "2"))
    assert [(one.kind, one.prompt) for one in first] == [(one.kind, one.prompt) for one in again]
    assert [one.prompt for one in first] != [one.prompt for one in other]


def test_no_two_media_are_the_same_until_there_are_enough() -> None:
    first, second, third, again = drawn("--mix", "image", "--image-sizes", "16x16", "--distinct", "3")
    assert len({bytes(medium.data) for medium in (first, second, third)}) == 3 and again is first


def test_each_size_is_counted_for_itself() -> None:
    media = drawn("--mix", "image", "--image-sizes", "16x16,24x16", "--distinct", "1", "--seed", "1")
    assert len({bytes(medium.data) for medium in media}) == len({medium.bucket for medium in media}) == 2


@each_of(
    ("flags", "bucket", "media_type"),
    [
        (("image", "--image-sizes", "16x24"), "16x24 jpeg", "image/jpeg"),
        (("image", "--image-sizes", "16x24", "--image-format", "webp"), "16x24 webp", "image/webp"),
        (("video", "--video-seconds", "0.2", "--video-size", "32x32"), "0.2 s 32x32", "video/mp4"),
        (("audio", "--audio-seconds", "0.1"), "0.1 s", "audio/wav"),
    ],
)
def test_each_kind_is_made_in_its_size(flags: tuple[str, ...], bucket: str, media_type: str) -> None:
    medium = drawn("--mix", *flags)[0]
    assert (medium.kind, medium.bucket, medium.type) == (flags[0], bucket, media_type)
    assert medium.nbytes > 50 and bytes(medium.url).startswith(f'"data:{media_type};base64,'.encode())


def test_a_folder_gives_its_files_in_turn(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.PNG", "a.jpg", "deep/c.webp", "clip.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    folder = ("--media-dir", str(tmp_path))
    assert [medium.bucket for medium in drawn("--mix", "image", *folder)] == ["a.jpg", "b.PNG", "c.webp", "a.jpg"]
    assert drawn("--mix", "video", *folder)[0].type == "video/mp4"
    with pytest.raises(ValueError, match="no audio"):
        drawn("--mix", "audio", *folder)


def listed(path: Path, text: str) -> RequestList:
    path.write_text(text)
    return RequestList(read_options(["--requests-file", str(path), "--max-tokens", "9"]))


def test_a_list_is_sent_in_the_order_of_its_file_and_round_again(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    lines = '{"prompt": "one", "output_tokens": 5}\n\n'
    lines += '{"text": "two", "max_tokens": 6, "expect": "2", "media": ["a.png", "a.png"]}\n'
    source = listed(tmp_path / "list.jsonl", lines)
    first, second, third = made(source, 3)
    assert (first.prompt, first.max_tokens, first.kind, first.expect) == ("one", 5, "text", None)
    assert (second.prompt, second.max_tokens, second.kind, second.expect) == ("two", 6, "image", "2")
    assert second.media[0] is second.media[1], "a file is read once"
    assert (third.prompt, third.index) == ("one", 2)
    assert source.make(0, tokens=1).max_tokens == 1


def test_what_a_line_of_a_list_does_not_say_is_the_default(tmp_path: Path) -> None:
    assert made(listed(tmp_path / "list.jsonl", '{"prompt": "one"}'), 1)[0].max_tokens == 9


@each_of(
    "text",
    ["", "{", "[]", "{}", '{"prompt": 3}', '{"prompt": "x", "media": "a.png"}', '{"prompt": "x", "media": ["a.txt"]}'],
)
def test_a_line_of_a_list_that_cannot_be_used_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"list\.jsonl"):
        listed(tmp_path / "list.jsonl", text)
