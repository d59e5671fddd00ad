"""Where media come from: generated until there are enough, or out of a folder in turn."""

from pathlib import Path

import pytest

from server.loadtest.traffic.library import MediaLibrary, read_folder


def test_no_two_media_are_the_same_until_there_are_enough() -> None:
    library = MediaLibrary(0, distinct=3)
    first = [library.fresh("image", "16x16 png") for _ in range(3)]
    assert len({bytes(medium.data) for medium in first}) == 3
    assert [library.fresh("image", "16x16 png") for _ in range(4)] == [*first, first[0]]
    assert library.fresh("image", "24x16 png") not in first, "another size is counted for itself"


@pytest.mark.parametrize(
    ("kind", "bucket", "media_type"),
    [
        ("image", "16x24 jpeg", "image/jpeg"),
        ("image", "16x24 webp", "image/webp"),
        ("video", "0.2 s 32x32", "video/mp4"),
        ("audio", "0.1 s", "audio/wav"),
    ],
)
def test_each_kind_is_made_by_the_name_of_its_size(kind: str, bucket: str, media_type: str) -> None:
    medium = MediaLibrary(0, 1).fresh(kind, bucket)
    assert (medium.kind, medium.bucket, medium.type) == (kind, bucket, media_type)
    assert medium.nbytes > 50 and bytes(medium.url).startswith(f'"data:{media_type};base64,'.encode())


def test_a_folder_gives_its_files_in_turn(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.PNG", "a.jpg", "deep/c.webp", "clip.mp4", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    library = MediaLibrary(0, 64, tmp_path)
    names = [library.fresh("image", "1280x720 jpeg").bucket for _ in range(4)]
    assert names == ["a.jpg", "b.PNG", "c.webp", "a.jpg"]
    assert library.fresh("video", "x").type == "video/mp4"
    with pytest.raises(ValueError, match="no audio"):
        library.fresh("audio", "x")


def test_a_folder_without_media_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no picture"):
        read_folder(tmp_path)


def test_a_known_picture_has_an_answer() -> None:
    medium, question, answer = MediaLibrary(0, 1).known()
    assert medium.type == "image/png" and question.endswith("?") and len(answer.split()) == 2
