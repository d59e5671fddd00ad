"""How models that hear but do not see read a chat: a run of pads for each sound, plain positions. Knows no weights."""

from collections.abc import Sequence

import numpy as np

from configs.checkpoint import Checkpoint, Facts
from configs.serve import MediaConfig
from model.families.qwen2.feature_extractor import Hearing
from tokenization.clock import StageClock
from tokenization.media.source import Source
from tokenization.messages import Chat, Kind
from tokenization.pads import content_digest, expand_pads, plain_positions, render_pads
from tokenization.processor import Layout, Measure
from tokenization.text.bpe import TextCodec
from tokenization.text.template import ChatTemplate


def sound_pad(config: Facts) -> int:
    """The id that stands in the prompt for each token of a sound, under its old key or its new one."""
    return config.read(int, "audio_token_id", config.read(int, "audio_token_index", 151646))


class SoundPrompt:
    """Satisfies tokenization.processor.Prompt. Defaults are those of the published configuration and processor classes.

    A sound is at most as long as the encoder has positions, 30 s as published: a longer one is refused, where the
    published processor would cut it off silently.
    """

    def __init__(self, checkpoint: Checkpoint, *, family: str) -> None:
        """Raises CheckpointError for a damaged tokenizer, template or preprocessor_config.json."""
        config = checkpoint.config
        self._pads: dict[Kind, int] = {"audio": sound_pad(config)}
        self.codec = TextCodec.from_checkpoint(checkpoint, tuple(self._pads.values()))
        self.modalities: frozenset[Kind] = frozenset(self._pads)
        self.hears_videos = False
        self.grounds = False
        self.stop_ids: tuple[int, ...] = ()
        self._template = ChatTemplate.from_checkpoint(checkpoint)
        audio = config.child("audio_config")
        self._hearing = Hearing(checkpoint, audio, positions=audio.read(int, "max_source_positions", 1500))
        self._settings = {"family": family, **self._hearing.settings}

    def fit(self, chat: Chat) -> Chat:
        """All of it: what is too long for the model is an error."""
        return chat

    def render(self, chat: Chat) -> list[int]:
        """Ids with one pad for each sound."""
        return render_pads(chat, self._template, self.codec, self._pads)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Decode the sound: a frame every 10 ms, a token for every four, and context behind them in the array."""
        return self._hearing.measure(source, limits)

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        """The longest sound."""
        found = self._hearing.largest(limits, max_tokens)
        return () if found is None else (found,)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """float32 `measure.shape`: log-mel, a frame in each row."""
        with clock.stage("mel"):
            return self._hearing.load(measure)

    def digest(self, array: np.ndarray, measure: Measure) -> str:
        """sha256, in hex. Equal frames with other settings have another digest."""
        return content_digest({**self._settings, "kind": measure.kind, "shape": measure.shape}, array)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        """Each pad becomes as many as its sound has tokens."""
        return expand_pads(ids, self._pads, measures)

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        """The index of each token, three times."""
        return plain_positions(len(layout.input_ids))
