"""A video whose frames stand behind their times takes its share of the model's length, times and marks counted."""

from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.samples.videos import make_clip
from tests.tables import each_of
from tests.tiny.qwen3_vl import write_qwen3_vl
from tests.tokenization.worker_harness import url, worker_harness_at
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.messages import Prepare, Room
from tokenization.prepare import prepare

CLIP = make_clip(60, rate=10, size=(320, 480), key_every=8)  # six seconds: six frame pairs of 150 tokens


@each_of("length", [1200, 300, 180, 60])
def test_a_video_gives_way(tmp_path: Path, length: int) -> None:
    checkpoint = Checkpoint(write_qwen3_vl(tmp_path / "tiny"))
    with worker_harness_at(tmp_path / "shm", family_of(checkpoint).processor(checkpoint, 1 << 24)) as harness:
        video = {"type": "video_url", "video_url": {"url": url(CLIP)}}
        chat = chat_from_openai([{"role": "user", "content": [{"type": "text", "text": "look:"}, video]}])
        room = Room(tokens=length, media_tokens=length, media_bytes=UNBOUNDED)
        job = Prepare(request_id="a", chat=chat, room=room, count_only=True)

        def asked() -> int:
            found = prepare(job, harness.start(), harness.processor, harness.ask, harness.check)
            assert len(found.media[0].spans) == 6
            return len(found.input_ids)

        if length < 100:  # the times and marks alone are more
            with pytest.raises(ChatError, match="tokens"):
                asked()
        else:
            assert asked() < length
