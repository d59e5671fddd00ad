"""The routes of texts and ids, as the document tells them: completions without a template, counts, ids and back."""

from typing import Annotated

from pydantic import Field

from server.http.openapi.answers import CountedTokens, DetokenizedText, TextCompletion
from server.http.openapi.chats import PICTURE, WEATHER, NativeChat, asked
from server.http.openapi.described import DescribedRoute
from server.http.openapi.request_fields import (
    ChatMessage,
    FormFields,
    LabelFields,
    NativeInputs,
    RenderingFields,
    ToolFields,
)
from server.http.routes.completions import MAX_PROMPTS, SHORT, TextBody
from server.http.routes.tokenize import CountBody, CountedText
from server.http.validation import BodyFields
from server.requests.sampling import INT32_MAX, MAX_LOGPROBS, SamplingRequest, TokenId

TextOfPrompt = Annotated[str, Field(min_length=1)]
IdsOfPrompt = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[TextOfPrompt | IdsOfPrompt], Field(min_length=1, max_length=MAX_PROMPTS)]


class TextCompletionRequest(FormFields, LabelFields, SamplingRequest, TextBody):
    """OpenAI's completion request. Other fields are ignored, but for some that would change the answer."""

    prompt: TextOfPrompt | IdsOfPrompt | Prompts = Field(
        description=f"A text, token ids, or up to {MAX_PROMPTS} of either; each is continued by itself."
    )
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = Field(
        SHORT, description="0 only with `echo`; more than is left is cut to what is left, not refused."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(  # type: ignore[assignment]  # a number here
        None,
        description="Log-probabilities, with so many of the likeliest tokens; with `echo` also of the prompt's own.",
    )
    top_logprobs: None = Field(  # type: ignore[assignment]
        None, description="Not taken here: `logprobs` itself is the number."
    )


class CountedMessages(ToolFields, RenderingFields, CountBody):
    """A chat in OpenAI's form."""

    messages: list[ChatMessage] = Field(min_length=1)


class CountedPrompt(CountedText, CountBody):
    """A text that no template is put around."""

    prompt: TextOfPrompt


class TokenIds(BodyFields):
    """Ids of which the text is asked for."""

    tokens: IdsOfPrompt


COMPLETIONS = DescribedRoute(
    path="/v1/completions", methods=("POST",), tag="texts", summary="Texts, continued without a template",
    told="OpenAI's older form. The choices of prompt i are n i to n i + n - 1.",
    body=TextCompletionRequest, answer=TextCompletion, events=TextCompletion, may_miss=True,
    examples={
        "a text": {"prompt": "The picture shows", "max_tokens": 8, "temperature": 0},
        "two texts, as a stream": {"prompt": ["One", "Two"], "max_tokens": 4, "stream": True},
        "the log-probabilities of a prompt": {"prompt": "One two", "max_tokens": 0, "echo": True, "logprobs": 1},
        "token ids": {"prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True},
    },
)  # fmt: skip
TOKENIZE = DescribedRoute(
    path="/tokenize", methods=("POST",), tag="texts", summary="The ids of a chat or text, without an answer",
    told="Takes the body of either route of chats, or `prompt`. Parameters of sampling are not used.",
    body=CountedMessages | CountedPrompt | NativeChat | NativeInputs, answer=CountedTokens, may_miss=True,
    examples={
        "a text": {"prompt": "The picture shows", "return_token_strs": True},
        "a chat": {"messages": asked("What is in this picture?"), "tools": [WEATHER]},
        "a native chat": {"inputs": [{"image": PICTURE}, {"text": "Hello"}]},
    },
)  # fmt: skip
DETOKENIZE = DescribedRoute(
    path="/detokenize", methods=("POST",), tag="texts", summary="The text that ids spell",
    told="Special tokens stand there by their names. At most `max_model_len` ids are taken.",
    body=TokenIds, answer=DetokenizedText, may_miss=True, examples={"three ids": {"tokens": [1, 2, 3]}},
)  # fmt: skip
ROUTES = (COMPLETIONS, TOKENIZE, DETOKENIZE)
