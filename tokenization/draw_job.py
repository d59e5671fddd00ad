"""The other job of a worker: an answer's boxes on the picture they belong to. Knows no queue and no model."""

import pybase64

from tokenization.chat.errors import ChatError
from tokenization.media.draw import draw_boxes
from tokenization.media.fetch import fetch
from tokenization.messages import Draw, Drawn, StartWorker

MAX_PNG_BYTES = 64 << 20  # a frame of the channel holds it with room to spare


def draw(job: Draw, start: StartWorker) -> Drawn:
    """Fetch the picture once more and draw. Raises ChatError when it is gone, no picture, or too large to send."""
    limits = start.media
    where = job.media.where
    data = fetch(job.media.source, roots=limits.roots, max_bytes=limits.max_file_bytes, where=where)
    drawing = draw_boxes(data, job.boxes, max_source_pixels=limits.max_source_pixels)
    if len(drawing.png) > MAX_PNG_BYTES:
        raise ChatError(f"the drawn picture would have {len(drawing.png)} bytes, more than {MAX_PNG_BYTES}", where)
    url = "data:image/png;base64," + pybase64.b64encode(drawing.png).decode("ascii")
    return Drawn(request_id=job.request_id, picture=url, notes=drawing.notes)
