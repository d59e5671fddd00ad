"""Defaults that depend on the checkpoint: what an absent setting means for the one that is served."""

import msgspec

from configs.checkpoint import Checkpoint
from configs.serve import ServeConfig
from model.registry import family_of


def with_own_pixels(config: ServeConfig) -> ServeConfig:
    """The same with the number that --max-pixels stands for, which workers, limits and the memory profile then share.

    Where the checkpoint's own bound of a picture may be taken, it replaces a lower default. Raises CheckpointError.
    """
    if config.media.own_pixels == "never":
        return config
    checkpoint = Checkpoint(config.model.path)
    own = family_of(checkpoint).pixels(checkpoint)
    asked = own is not None and (own.tiled or config.media.own_pixels == "always")
    most = max(config.media.max_pixels, own.image if own and asked else 0)
    return msgspec.structs.replace(
        config, media=msgspec.structs.replace(config.media, max_pixels=most, own_pixels="never")
    )
