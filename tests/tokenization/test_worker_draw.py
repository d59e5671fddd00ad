"""The other job of a worker: a picture fetched once more and drawn on."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.serve import MediaConfig
from tests.samples.pictures import encoded, photo
from tokenization import worker
from tokenization.chat.boxes import Box
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Media
from tokenization.messages import Draw, Drawn, StartWorker
from tokenization.worker import picture_with_boxes

BOX = Box(ref="cat", kind="box", points=((20, 30), (90, 70)), picture=0)


def drawn(source: str, **media: object) -> Drawn:
    start = StartWorker(checkpoint="", media=MediaConfig(**media), max_model_len=1, shm_root="")  # type: ignore[arg-type]
    param = "inputs[0].image"
    return picture_with_boxes(
        Draw(request_id="r", media=Media(kind="image", source=source, param=param), boxes=(BOX,)), start
    )


def test_the_picture_comes_back_with_its_box(tmp_path: Path) -> None:
    data = encoded(photo(120, 80), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    found = drawn("a.png", roots=(tmp_path,))
    assert found.picture.startswith("data:image/png;base64,") and found.notes == ()
    with Image.open(io.BytesIO(base64.b64decode(found.picture.partition(",")[2]))) as image:
        after = np.asarray(image)
    assert after.shape == (80, 120, 3)
    changed = (after != np.asarray(photo(120, 80))).any(axis=2)
    assert changed[69, 25:85].all() and not changed[40:65, 30:85].any()
    assert found.picture == drawn("data:;base64," + base64.b64encode(data).decode()).picture


def test_a_picture_that_is_gone_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChatError, match="not a file that the server may open") as caught:
        drawn("gone.png", roots=(tmp_path,))
    assert caught.value.param == "inputs[0].image"
    url = "data:;base64," + base64.b64encode(encoded(photo(120, 80), "PNG")).decode()
    with pytest.raises(ChatError, match="at most 100 are allowed"):
        drawn(url, max_source_pixels=100)
    monkeypatch.setattr(worker, "MAX_PNG_BYTES", 100)
    with pytest.raises(ChatError, match="more than 100"):
        drawn(url)
