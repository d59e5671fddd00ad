"""Turns a sound into log-mel frames and counts their tokens: the host half of the audio encoder."""

import numpy as np

from configs.checkpoint import Checkpoint, ConfigSection
from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.media.mel import CONTEXT_FRAMES, MelSpec, log_mel
from tokenization.media.source import Source
from tokenization.processor import Measure, MediaHandler, StageClock

CHUNK_SECONDS = 30  # what the published extractor class takes at once, where the file does not say


class FeatureExtractor(MediaHandler):
    def __init__(self, checkpoint: Checkpoint, audio: ConfigSection, *, positions: int | None = None) -> None:
        """positions: the encoder's, two frames each; None: no end. Raises CheckpointError for another extractor."""
        file = checkpoint.section("feature_extractor")
        self.origin = file.origin()
        spec = MelSpec(n_mels=file.count("feature_size", audio.count("num_mel_bins", 128)))
        for key, value in (("hop_length", spec.hop), ("n_fft", spec.n_fft), ("sampling_rate", spec.rate)):
            file.expect(key, (value,), value)
        for key in ("dither", "padding_value"):
            file.expect(key, (0.0,), 0.0)
        audio.expect("num_mel_bins", (spec.n_mels,), 128)
        self.spec = spec
        seconds = file.count("chunk_length", CHUNK_SECONDS)
        self._padded = seconds * spec.rate  # samples that the published extractor placeholders each sound to
        frames = self._padded // spec.hop
        self._frames = frames if positions is None else min(frames, 2 * positions)
        self._context = 0 if positions is None else CONTEXT_FRAMES  # an encoder of whole sounds convolves their padding

    @property
    def max_seconds(self) -> float:
        return self._frames * self.spec.hop / self.spec.rate

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Decode the sound; more than a container's padding above what the model hears is refused. Raises ChatError."""
        from tokenization.media.audio import read_sound

        # The published processor cuts off every longer sound: an answer about half looks like one about the whole.
        try:
            sound = read_sound(source.data, limits, model_seconds=self.max_seconds, check=source.check)
        except ChatError as error:
            if not source.of_video:
                raise
            raise ChatError(f"use_audio_in_video: {error.message}", error.param, error.code) from None
        # What is over is padding. Of a sound whose rate changes on the way each part was also rounded up to a sample.
        sound = sound[: self._frames * self.spec.hop]
        return self._measure(-(-len(sound) // self.spec.hop), sound=sound, of_video=source.of_video)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """float32 `measure.shape`: log-mel frames of the sound, and of the padding what the encoder sees."""
        assert measure.sound is not None, "a sound was decoded when it was measured"
        with clock.stage("mel", measure.kind):
            return log_mel(measure.sound, self.spec, self._padded, self._context)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The longest sound that the model, the limits and `max_tokens` let through; None where none is."""
        seconds = min(self.max_seconds, limits.max_audio_seconds)
        frames = min(int(seconds * self.spec.rate) // self.spec.hop, 4 * max_tokens + 2)
        found = self._measure(frames)
        return found if found.n_tokens >= 2 else None

    def _measure(self, frames: int, *, sound: np.ndarray | None = None, of_video: bool = False) -> Measure:
        return Measure(
            kind="audio", grid=(1, 1, frames), shape=(frames + self._context, self.spec.n_mels), dtype="float32",
            n_tokens=audio_tokens(frames), sound=sound, of_video=of_video, n_delimiters=2 if of_video else 0,
        )  # fmt: skip


def audio_tokens(frames: int) -> int:
    """Half of the frames by the encoder's second convolution, half of those again by pooling."""
    return max(0, ((frames - 1) // 2 + 1 - 2) // 2 + 1)
