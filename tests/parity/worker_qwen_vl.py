"""One worker's job for the original Qwen-VL: a chat in, ids and arrays out."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen_vl.processor import QwenVLProcessor
from model.registry import family_of
from shm import Owner, Pool, decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.parity.golden_qwen_vl import (
    GOLDEN,
)
from tokenization.chat.parts import Chat
from tokenization.messages import Measured, Prepare, Prepared, StartWorker
from tokenization.prepare import prepare

PIC = "data:;base64," + base64.b64encode((GOLDEN / "alpha_90x60.png").read_bytes()).decode()


def written(host: QwenVLProcessor, chat: Chat) -> str:
    """The prompt as a reader sees it."""
    return b"".join(map(host.tokenizer.token_bytes, host.render(chat))).decode()


def run(path: Path, root: Path, chat: Chat, **fields: Any) -> tuple[Prepared, list[Measured], list[np.ndarray]]:
    """A worker's whole job, and the arrays that it wrote."""
    owner = Owner.claim(root)
    pool, asked = Pool(owner, 64 << 20), []

    def ask(measured: Measured) -> Sequence[str]:
        asked.append(measured)
        return pool.lease("r", measured.nbytes)

    start = StartWorker(checkpoint="", media=MediaConfig(), max_model_len=8192, shm_root=str(root))
    checkpoint = Checkpoint(path)
    try:
        found = prepare(
            Prepare(request_id="r", chat=chat, **fields), start, family_of(checkpoint).processor(checkpoint, 1), ask,
            lambda: None,
        )  # fmt: skip
        arrays = []
        for item in [] if fields else found.media:
            first = item.spans[0][0]
            name, shape = found.input_ids[first : first + 2].tolist()
            decoded = decode_shape_from_int64(shape)
            arrays.append(read_segment(root, decode_shm_name_from_int64(name), decoded, np.uint8))
        return found, asked, arrays
    finally:
        owner.close()
