"""How LLaVA-1.5 reads a chat: a picture has as many placeholders as its tower has patches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.families.llava.sizes import picture_tokens, pictures_of
from tokenization.chat.parts import Kind
from tokenization.processor import Modality, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

DEFAULT_EDGE = 224  # of the published image processor's class
# For directories of before there were chat templates: what the later ones render.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role != 'system' %}{{ message.role.upper() + ': ' }}{% endif %}"
    "{% if message.content is string %}{{ message.content + ' ' }}{% else %}"
    "{% for part in message.content if part.type == 'image' %}{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text + ' ' }}{% endfor %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


class LlavaProcessor(TemplateProcessor):
    """Pictures are resized by their shorter edge, and cut to the square in their centre."""

    modalities: Mapping[Kind, Modality] = {"image": Modality(fixed=True)}
    otherwise: ClassVar[str] = TEMPLATE

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels is not used. Raises CheckpointError for a damaged tokenizer, template or processor's file."""
        files, tokens, pictures = (
            checkpoint.section("image_processor"), picture_tokens(checkpoint), pictures_of(checkpoint.config)
        )  # fmt: skip
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        self.template = ChatTemplate.from_checkpoint(checkpoint, otherwise=self.otherwise)
        edge = _shorter_edge(files, pictures.pixels)
        self.handlers = {"image": replace(pictures, edge=edge, origin=files.origin())}


def _shorter_edge(files: ConfigSection, side: int) -> int:
    """To how many pixels a picture's shorter edge is resized, before a square of `side` is cut out of it."""
    for key in ("do_resize", "do_center_crop", "do_convert_rgb"):
        files.expect(key, (True,), True)
    files.expect("do_pad", (False,), False)
    files.expect("resample", (3,), 3)
    edge, crop = _lengths(files, "size", ("shortest_edge",)), _lengths(files, "crop_size", ("height", "width"))
    if crop != {side}:
        raise CheckpointError(
            f"{files.location}: crop_size is {sorted(crop)}, but the tower of config.json takes pictures of {side}"
        )
    if max(edge) < side:
        raise CheckpointError(f"{files.location}: size is {max(edge)}, less than the {side} that are cut out of it")
    return max(edge)


def _lengths(files: ConfigSection, key: str, inner: tuple[str, ...]) -> set[int]:
    """A number, or an object with numbers under `inner`; old files have the first form."""
    if isinstance(files.read(object, key, None), int):
        return {files.count(key)}
    if key not in files:
        return {DEFAULT_EDGE}
    return {files.child(key).count(name) for name in inner}
