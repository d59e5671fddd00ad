"""The request fields of vLLM's chat completions, one by one: honoured, refused by name, or without effect here.

The list is that of `ChatCompletionRequest` in vLLM's main branch of August 2026, about release 0.29
(vllm/entrypoints/openai/chat_completion/protocol.py), with the fields that earlier releases had, and those of OpenAI's
that vLLM never took but that a client would believe in.
"""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from configs.nearest import did_you_mean
from server.requests.refusal import invalid_request
from tokenization.chat.errors import shortened

log = logging.getLogger("pixelferry.http")
MOST_MISSPELT = 4
MOST_LABELS, LONGEST_NAME, LONGEST_LABEL = 16, 64, 512  # of metadata, as OpenAI has them; characters

Treatment = Literal["honoured", "refused", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmField:
    name: str
    treatment: Treatment
    note: str  # refused: what to do instead; ignored: why it changes nothing; honoured: what is to be known
    neutral: tuple[Any, ...] = ()  # refused: the JSON values, besides null, that change nothing and pass


def refuse_unsupported(body: Mapping[str, Any], fields: Sequence[VllmField] | None = None) -> None:
    """Raise Refusal for the first of `fields` (None: `FIELDS`) that would change the answer and is not supported."""
    for field in FIELDS if fields is None else fields:
        if field.treatment != "refused" or field.name not in body:
            continue
        value = body[field.name]
        if value is not None and not any(_same(value, neutral) for neutral in field.neutral):
            raise invalid_request(f"{field.name}: {field.note}", field.name, "unsupported_parameter")


def check_metadata(body: Mapping[str, Any]) -> None:
    """Raise Refusal for more than OpenAI's own bounds: nothing reads it, and it is held as long as its request."""
    if (given := body.get("metadata")) is None:
        return
    labels = given if isinstance(given, dict) else {"": given}
    if len(labels) > MOST_LABELS:
        raise invalid_request(f"metadata: has {len(labels)} entries; at most {MOST_LABELS} are taken", "metadata")
    for name, label in labels.items():
        if len(name) > LONGEST_NAME:
            message = f"metadata: {shortened(name)!r} has more than {LONGEST_NAME} characters"
            raise invalid_request(message, "metadata")
        if _size(label) > LONGEST_LABEL:
            param = f"metadata.{shortened(name)}" if name else "metadata"
            raise invalid_request(f"{param}: has more than {LONGEST_LABEL} characters", param)


def _size(value: Any) -> int:
    """Characters of all texts in a piece of JSON, and one for each other value."""
    size, left = 0, [value]
    while left and size <= LONGEST_LABEL:
        one = left.pop()
        size += len(one) if isinstance(one, str) else 1
        if isinstance(one, dict | list):
            left += one if isinstance(one, list) else (*one, *one.values())
    return size


def tell_misspelt(body: Mapping[str, Any], request_id: str, known: frozenset[str] | None = None) -> None:
    """Log each field that nothing reads and that is nearly one of `known` (None: `KNOWN`): it changes nothing, and
    nobody else says so.

    Of a body with many fields the first few are looked at.
    """
    known = KNOWN if known is None else known
    for name in itertools.islice((name for name in body if name not in known), MOST_MISSPELT):
        if meant := did_you_mean(name, known):
            log.info("request %s: nothing reads the field %r%s", request_id, shortened(name), meant)


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON, where true is not 1; a null inside an object says nothing."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if inner is not None}
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _fields(treatment: Treatment, note: str, *names: str, neutral: tuple[Any, ...] = ()) -> tuple[VllmField, ...]:
    return tuple(VllmField(name=name, treatment=treatment, note=note, neutral=neutral) for name in names)


_honoured, _refused, _ignored = partial(_fields, "honoured"), partial(_fields, "refused"), partial(_fields, "ignored")
_FORM = "[structured.md](structured.md)"
_BEAMS = "beam search is not supported; leave it out and draw several answers with n"
_OFFERED = "[tools.md](tools.md)"
_NO_CHAT = "a text has no tools; POST /v1/chat/completions takes them"
_SPLIT = "one server computes the whole answer here; leave it out"
_LOGPROBS = "not supported; logprobs with top_logprobs gives the tokens of the answer"
_BODY = "[api.md](api.md#post-v1chatcompletions)"
_DRAWN = "[api.md](api.md#parameters-of-sampling)"
_SPEAKS = "answers are text only; leave it out"
_PROMPT = "the checkpoint's prompt says whether it thinks; chat_template_kwargs reaches a template that asks"
_LABEL = "a label of the client's own"

FIELDS: tuple[VllmField, ...] = (
    *_honoured(
        _BODY, "messages", "model", "stream", "stream_options", "max_completion_tokens", "return_token_ids",
        "return_tokens_as_token_ids", "cache_salt",
    ),
    *_honoured(
        _DRAWN, "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "seed", "n", "stop",
        "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "ignore_eos", "logprobs", "top_logprobs",
    ),
    *_honoured(_BODY, "mm_processor_kwargs", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"),
    *_refused("only the model's own template is used; give its variables in chat_template_kwargs", "chat_template"),
    *_refused("not supported; put the documents into a message", "documents", neutral=([],)),
    *_ignored(
        "the chat template and the vocabulary's own rule place all special tokens, none of them twice",
        "add_special_tokens",
    ),
    *_refused(
        "not supported: cutting a chat by tokens tears its system message, turns and media apart; leave out the oldest "
        "messages and count with POST /tokenize",
        "truncate_prompt_tokens",
    ),
    *_refused("give num_frames, fps or pixel bounds in mm_processor_kwargs", "media_io_kwargs", neutral=({},)),
    *_honoured(_OFFERED, "tools", "tool_choice", "parallel_tool_calls"),
    *_refused("not supported; give the functions as tools", "functions", neutral=([],)),
    *_refused("not supported; give it as tool_choice", "function_call", neutral=("none", "auto")),
    *_honoured(_FORM, "response_format", "structured_outputs"),
    *_refused("vLLM has removed it; give json in structured_outputs", "guided_json"),
    *_refused("vLLM has removed it; give regex in structured_outputs", "guided_regex"),
    *_refused("vLLM has removed it; give choice in structured_outputs", "guided_choice"),
    *_refused("vLLM has removed it; give grammar in structured_outputs", "guided_grammar"),
    *_refused(
        "not supported; structured_outputs takes json, regex, choice, grammar and json_object",
        "guided_whitespace_pattern", "guided_decoding_backend", "structural_tag",
    ),
    *_refused(_BEAMS, "use_beam_search", "early_stopping", neutral=(False,)),
    *_refused(_BEAMS, "length_penalty", neutral=(1,)),
    *_refused("only the answers of n are computed; choose among them by their logprobs", "best_of", neutral=(1,)),
    *_honoured("the last message stands in front of each answer, where it is the assistant's", "echo"),
    *_refused(_LOGPROBS, "prompt_logprobs", "logprob_token_ids"),
    *_refused("not supported; return_token_ids gives the prompt's ids", "return_prompt_text", neutral=(False,)),
    *_refused("not supported; max_tokens bounds thoughts and words together", "thinking_token_budget"),
    *_refused("not supported; use repetition_penalty or frequency_penalty", "repetition_detection"),
    *_refused("a request brings no code; use logit_bias or allowed_token_ids", "logits_processors", neutral=([],)),
    *_refused("there are no extensions that could read them; leave it out", "vllm_xargs", neutral=({},)),
    *_refused(_SPLIT, "kv_transfer_params", "ec_transfer_params", neutral=({},)),
    *_refused("not supported; leave it out", "watermarking", neutral=(False,)),
    *_refused(_SPEAKS, "modalities", neutral=(["text"],)),
    *_refused(_SPEAKS, "audio"),
    *_refused("nothing here judges a text; leave it out", "moderation"),
    *_refused("this server searches nothing; put what is known into a message", "web_search_options"),
    *_honoured(_BODY, "include_reasoning"),
    *_ignored(_PROMPT, "reasoning_effort"),
    *_ignored("no template here asks for it; ask for short answers in words", "verbosity"),
    *_ignored("truncate_prompt_tokens is refused", "truncation_side"),
    *_ignored("the vocabularies here write nothing between tokens", "spaces_between_special_tokens"),
    *_ignored("clients take turns", "priority", "service_tier"),
    *_ignored("what is kept is found by its content; cache_salt says who shares it", "prompt_cache_key"),
    *_ignored("a cache is kept as the server is told to", "prompt_cache_options", "prompt_cache_retention"),
    *_ignored("the answer's id is the server's; X-Request-Id gives the client's own", "request_id"),
    *_ignored(_LABEL, "session_id", "user", "safety_identifier", "metadata", "store"),
    *_ignored("chunks come as tokens do; their texts joined are the same", "stream_interval"),
    *_ignored("a hint that changes no text", "prediction"),
    *_ignored("the chat route of vLLM ignores it too", "return_token_offsets", "return_mm_kwargs"),
    *_ignored("no routed experts are returned", "routed_experts_prompt_start"),
)  # fmt: skip

# Of POST /v1/completions, which has no template: the same, but for these.
_NOT_OF_TEXTS = ("echo", "add_special_tokens", "tools", "tool_choice", "include_reasoning", "max_completion_tokens")
COMPLETION_FIELDS: tuple[VllmField, ...] = (
    *(field for field in FIELDS if field.name not in _NOT_OF_TEXTS),
    *_ignored("no thoughts are told apart where no template made the prompt", "include_reasoning"),
    *_refused(_NO_CHAT, "tools", neutral=([],)),
    *_refused(_NO_CHAT, "tool_choice", neutral=("none", "auto")),
    *_honoured("the prompt stands in front of each answer", "echo"),
    *_honoured("what the vocabulary puts in front of every prompt, such as `<s>`", "add_special_tokens"),
    *_refused("not supported: these models continue a text, they do not fill gaps", "suffix", neutral=("",)),
    *_refused("not supported; give the prompt as text or token ids", "prompt_embeds"),
    *_refused("not known here; the name is max_tokens", "max_completion_tokens"),
)
KNOWN = frozenset(field.name for field in COMPLETION_FIELDS) | {"prompt"}

# Of POST /v1/responses: the same, but for these; `store` is taken, and nothing is stored.
_NOT_STORED = "nothing is stored here: send store: false and the whole conversation as input"
_ITS_NAME = "not known here; the name is max_output_tokens"
OF_RESPONSES: tuple[VllmField, ...] = (
    *_honoured("[api.md](api.md#post-v1responses)", "input", "instructions", "max_output_tokens", "include", "text"),
    *_honoured("the answer repeats it", "metadata", "user", "safety_identifier", "prompt_cache_key"),
    *_refused(_NOT_STORED, "previous_response_id", "conversation"),
    *_refused("not supported; wait for the answer, or have it as a stream", "background", neutral=(False,)),
    *_refused("not supported; nothing is stored here: give instructions and input", "prompt"),
    *_refused(
        "not supported: cutting a chat tears its turns and media apart; leave out the oldest items and count with POST "
        "/tokenize",
        "truncation", neutral=("disabled",),
    ),
    *_refused("not supported; leave out the oldest items", "context_management", neutral=([],)),
    *_refused("not known here; give the chat as input", "messages"),
    *_refused(_ITS_NAME, "max_tokens", "max_completion_tokens"),
    *_refused("not known here; give it as text.format", "response_format"),
    *_refused('give include: ["message.output_text.logprobs"], with top_logprobs', "logprobs", neutral=(False,)),
    *_refused("a response has one answer; ask again for another", "n", neutral=(1,)),
    *_refused("not supported here; POST /v1/chat/completions takes it", "echo", neutral=(False,)),
    *_refused(
        "this route shows no token ids; POST /v1/chat/completions does", "return_token_ids",
        "return_tokens_as_token_ids", neutral=(False,),
    ),
    *_ignored("nothing is stored, whatever it says; the answer says false", "store"),
    *_ignored(_PROMPT, "reasoning"),
    *_ignored("it bounds tools that a server runs, and none does here", "max_tool_calls"),
    *_ignored("no picture is compressed in the context", "image"),
    *_ignored("one model answers, by no program", "access_programs"),
)  # fmt: skip
_OWN = frozenset(field.name for field in OF_RESPONSES)
RESPONSES_FIELDS = OF_RESPONSES + tuple(field for field in FIELDS if field.name not in _OWN)
