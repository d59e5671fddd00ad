"""ViP-LLaVA: its chats, and the record by which the registry finds it. Several blocks of its tower are seen."""

from typing import TYPE_CHECKING, ClassVar

from configs.checkpoint import Checkpoint
from model.families.llava.family import RENAMES
from model.families.llava.processor import LlavaProcessor
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights

# For directories of before there were chat templates: the turns of the published example.
TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': '', 'user': '###Human: ', 'assistant': '###Assistant: '}[message.role] }}"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content if part.type == 'image' %}{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '###Assistant:' }}{% endif %}"
)


class VipLlavaProcessor(LlavaProcessor):
    otherwise: ClassVar[str] = TEMPLATE

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels is not used. Raises CheckpointError as LLaVA-1.5's, and where the class token is to be shown."""
        checkpoint.config.expect("vision_feature_select_strategy", ("default",), "default")
        super().__init__(checkpoint, max_pixels)


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.llava import recipe

    return recipe.build_vip(checkpoint, weights, ops)


FAMILY = Family(
    name="vip_llava",
    models="ViP-LLaVA, all sizes",
    processor=VipLlavaProcessor,
    build=build,
    renames=RENAMES,
)
