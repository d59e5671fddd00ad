"""One model of a decoder with rotary positions, its head, and encoders for the media that placeholders stand for."""

from collections.abc import Mapping
from dataclasses import dataclass

from configs.checkpoint import CheckpointError
from model.media_tokens import MediaTokens
from model.net.decoder import DecoderSpec, build_decoder, with_deepstack
from model.net.linear_weights import take_embedding
from model.net.multimodal import Encoder, MultimodalLM
from model.net.rope import MRope, RopeSpec
from model.ops.base import Ops
from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaEncoders:
    encoders: Mapping[str, Encoder]  # by kind
    tokens: MediaTokens
    deepstack: int = 0  # as of MultimodalLM


def compose(
    ops: Ops, weights: Weights, spec: DecoderSpec, media: MediaEncoders,
    *, vocab: int, tied: bool, rope: RopeSpec,
) -> MultimodalLM:  # fmt: skip
    """Take what is left, under "model." and "lm_head.".

    Raises CheckpointError for a placeholder without an embedding, and for tensors that are missing or left over.
    """
    for placeholder in media.tokens.placeholders.values():
        if placeholder >= vocab:
            said = media.tokens.said[placeholder]
            raise CheckpointError(f"{said} is {placeholder}, for which vocab_size {vocab} leaves no embedding")
    shape = (vocab, spec.hidden)
    embed, head = take_embedding(ops, weights, "model.embed_tokens.weight", "lm_head.weight", shape, tied)
    model = MultimodalLM(
        ops=ops,
        embed=embed,
        head=head,
        rope=MRope(rope, head_dim=spec.head_dim, device=ops.device, dtype=ops.dtype),
        decoder=with_deepstack(build_decoder(ops, weights, spec, "model."), media.deepstack),
        encoders=media.encoders,
        placeholder_ids={str(kind): placeholder for kind, placeholder in media.tokens.placeholders.items()},
        media_token_ids=frozenset(media.tokens.ids),
        deepstack=media.deepstack,
    )
    weights.finish()
    return model
