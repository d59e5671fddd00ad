"""How Qwen-VL reads a chat: ids with placeholders, and patches of pictures. Also Qwen without a vision tower."""

from collections.abc import Mapping, Sequence

import msgspec

from configs.checkpoint import Checkpoint
from model.families.qwen_vl.chatml import (
    DEFAULT_SYSTEM,
    MAX_WINDOW_SIZE,
    PICTURE_TOKENS,
    Piece,
    Round,
    Words,
    answer_pieces,
    encode_pieces,
    make_context,
    n_kept,
    rounds_of,
    stop_ids,
    text_of,
)
from model.families.qwen_vl.list_format import PICTURE_PREFIX, list_pieces
from model.families.qwen_vl.vocabulary import END_OF_TEXT, IMG_PAD, QwenVLTokenizer
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Kind, Media, Turn
from tokenization.chat.rendering import CONTINUE
from tokenization.chat.template_variables import VARIABLES
from tokenization.chat.tools import refuse_tools
from tokenization.fixed_pictures import FixedPictures, read_sides
from tokenization.processor import Feature, Modality, Processor
from tokenization.text.template import BUILT_IN


class QwenVLProcessor(Processor):
    tokenizer: QwenVLTokenizer
    modalities: Mapping[Kind, Modality] = {"image": Modality(fixed=True)}
    features: frozenset[Feature] = frozenset({"grounding"})
    drops_turns = True
    written_by = BUILT_IN

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels is not used. Raises CheckpointError for damaged files."""
        self._sees = "visual" in checkpoint.config
        generation = checkpoint.file("generation_config.json")
        generation.expect("chat_format", ("chatml", "raw"), "chatml")
        self._raw = generation.read(str, "chat_format", "chatml") == "raw"
        self._window = generation.count("max_window_size", MAX_WINDOW_SIZE, least=0)
        # One published copy of the original's tokenizer writes no space after the colon; this key says so.
        self._prefix = checkpoint.file("tokenizer_config.json").read(str, "picture_prefix", PICTURE_PREFIX)
        self.tokenizer = QwenVLTokenizer.from_checkpoint(checkpoint)
        if not self._sees:
            self.modalities, self.features = {}, frozenset()
        self.stop_ids = (self.tokenizer.special[END_OF_TEXT],) if self._raw else stop_ids(self.tokenizer)
        visual = checkpoint.config.child("visual")
        self.placeholders = {"image": self.tokenizer.special[IMG_PAD]} if self._sees else {}
        side, patch = read_sides(visual, size=448, patch=14)
        pictures = FixedPictures(
            side=side, patch=patch, n_tokens=PICTURE_TOKENS, on_white=False, origin=visual.origin()
        )
        self.handlers = {"image": pictures} if self._sees else {}

    def fit(self, chat: Chat) -> Chat:
        """Without the oldest exchanges, where system and history together do not fit into the model's window."""
        self._refuse_unknown(chat)
        super().fit(chat)
        if self._raw:
            return chat
        system, pairs = rounds_of(chat)
        n = n_kept(self._pieces(pairs[:-1]), self.tokenizer, system=_said(system), max_window_size=self._window)
        kept = [turn for pair in [(system, None), *pairs[len(pairs) - 1 - n :]] for turn in pair if turn is not None]
        return msgspec.structs.replace(chat, turns=tuple(kept))

    def render(self, chat: Chat) -> list[int]:
        system, pairs = rounds_of(chat)
        if self._raw:
            if system or len(pairs) > 1:
                raise ChatError("this is a base model: it continues one list of parts, without history or system text")
            return encode_pieces(self._pieces(pairs)[0][0], self.tokenizer, placeholders=1)
        *history, (query, begun) = self._pieces(pairs)
        opens = chat.add_generation_prompt or begun is not None
        context = make_context(
            query, history, self.tokenizer, system=_said(system), max_window_size=self._window, opens=opens
        )
        return encode_pieces([*context, *(begun or [])], self.tokenizer, placeholders=1)

    def _refuse_unknown(self, chat: Chat) -> None:
        refuse_tools(chat, calls=False, answers=False)
        for turn in chat.turns:
            for part in turn.parts:
                if turn.role != "user" and isinstance(part, Media):
                    raise ChatError(
                        f"this model sees pictures in a user's message, not in one by '{turn.role}'", part.param
                    )
        if chat.template_kwargs:
            raise ChatError(f"{VARIABLES}: this model has no chat template that could read them", VARIABLES)
        if self._raw and chat.continue_final_message:
            raise ChatError(f"{CONTINUE}: this is a base model; it continues the one list of parts anyway", CONTINUE)

    def _pieces(self, pairs: Sequence[Round]) -> list[tuple[list[Piece], list[Piece] | None]]:
        """Each exchange as pieces; pictures are counted within their turn."""
        found: list[tuple[list[Piece], list[Piece] | None]] = []
        for user, answer in pairs:
            said = "" if answer is None else text_of(answer)
            replied: list[Piece] = answer_pieces(said) if self.features else [Words(said)]
            found.append((list_pieces(user.parts, self._prefix), None if answer is None else replied))
        return found


def _said(system: Turn | None) -> str:
    return DEFAULT_SYSTEM if system is None else text_of(system)
