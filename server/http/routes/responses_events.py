"""The answer of POST /v1/responses: whole, or as the events of its stream."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from model.engine.messages import Token
from server.http.responses import LazyList, data
from server.http.routes.answer_fields import logprob_entries, thought_tokens, usage
from server.http.routes.responses_body import ResponsesRequest
from server.requests.answer import Delta, FinishReason
from server.requests.model_card import ModelCard
from tokenization.messages import Prepared
from tokenization.text.call_parser import CallPiece

# Of an error, as a response tells it, by the type that our errors have.
FAILURES: Mapping[str, str] = {"server_error": "server_error", "rate_limit_error": "rate_limit_exceeded"}


class ResponsesSerializer:
    """POST /v1/responses. An answer is items: a thought, a message where it has words or nothing else, and each call.

    Of a stream, one item is open at a time. All that its last event says of the answer is what a plain answer says.
    """

    def __init__(self, asked: ResponsesRequest, card: ModelCard) -> None:
        self._asked = asked
        self._tokenizer = card.tokenizer
        sampling = asked.request.sampling
        defaults = card.defaults
        self._head = {
            "id": f"resp_{asked.request.id}", "object": "response", "created_at": int(time.time()), "model": card.name,
            **asked.said,
            "temperature": defaults.temperature if sampling.temperature is None else sampling.temperature,
            "top_p": defaults.top_p if sampling.top_p is None else sampling.top_p,
        }  # fmt: skip
        self._logprobs = sampling.logprobs
        self._n_events = 0
        self._items: list[dict[str, Any]] = []  # of a stream: those that are done, and the open one
        self._written: list[str] = []  # of the open item: its text or its arguments
        self._tokens: list[Token] = []  # of the answer so far, where they are shown
        self._n_shown = 0  # of them: what events brought
        self._n_reasoning = 0  # of a stream: tokens of its thought
        self._finish: FinishReason | None = None

    # ---- in one piece

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        [answer] = answers
        items: list[dict[str, Any]] = []
        status = status_of(answer.finish)
        if answer.reasoning:
            followed = bool(answer.text or answer.calls)
            items.append(self._thought(0, answer.reasoning, "completed" if followed else status))
        if answer.text or not (answer.calls or items):
            tokens = answer.tokens[answer.n_thought :]
            items.append(self._message(len(items), answer.text, "completed" if answer.calls else status, tokens))
        for call in answer.calls:
            last = call is answer.calls[-1]
            items.append(self._call(len(items), call, status if last else "completed", call.arguments))
        return self._response(status, items, self._usage(prepared, n_tokens, thought_tokens(answers) or 0))

    def _response(
        self, status: str, items: Sequence[dict[str, Any]], counts: dict[str, Any] | None, failure: Any = None
    ) -> dict[str, Any]:
        done = {"completed_at": int(time.time())} if status == "completed" else {}
        return {
            **self._head,
            **done,
            "status": status,
            "error": failure,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": LazyList(lambda: items),
            "usage": counts,
        }

    def _message(self, index: int, text: str, status: str, tokens: Sequence[Token]) -> dict[str, Any]:
        content = LazyList(lambda: [self._part(text, tokens)])
        return {**self._opened_message(index), "status": status, "content": content}

    def _opened_message(self, index: int) -> dict[str, Any]:
        name = f"msg_{self._asked.request.id}_{index}"
        return {"id": name, "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def _opened_thought(self, index: int) -> dict[str, Any]:
        name = f"rs_{self._asked.request.id}_{index}"
        return {"id": name, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}

    def _thought(self, index: int, text: str, status: str) -> dict[str, Any]:
        return {**self._opened_thought(index), "status": status, "content": [thought_part(text)]}

    def _part(self, text: str, tokens: Sequence[Token] = ()) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._entries(tokens)}

    def _entries(self, tokens: Sequence[Token]) -> LazyList:
        return logprob_entries(tokens if self._logprobs else (), self._tokenizer)

    def _call(self, index: int, call: CallPiece, status: str, arguments: str) -> dict[str, Any]:
        name = f"fc_{self._asked.request.id}_{index}"
        said = {"call_id": call.id, "name": call.name, "arguments": arguments}
        return {"id": name, "type": "function_call", "status": status, **said}

    def _usage(self, prepared: Prepared, n_tokens: int, n_reasoning: int) -> dict[str, Any]:
        """As other routes count, under OpenAI's newer names."""
        counts = usage(prepared, n_tokens, self._asked.request.context)
        for reduced in counts.get("reduced_media", ()):
            reduced["param"] = self._asked.names.of(reduced["param"])
        return {
            "input_tokens": counts.pop("prompt_tokens"),
            "input_tokens_details": {**counts.pop("prompt_tokens_details"), "cache_write_tokens": 0},
            "output_tokens": counts.pop("completion_tokens"),
            "output_tokens_details": {"reasoning_tokens": n_reasoning},
            **counts,
        }

    # ---- as a stream

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        made = self._opening()
        if self._logprobs:
            self._tokens += delta.tokens[delta.n_thought :]
        self._n_reasoning += delta.n_reasoning
        if delta.reasoning:
            made += self._think(delta.reasoning)
        talks = bool(self._items) and self._items[-1]["type"] == "message"
        ends_empty = delta.finish is not None and not self._items and not delta.calls
        if delta.text or ends_empty or (talks and self._logprobs):
            made += self._words(delta.text, talks)
        for call in delta.calls:
            made += self._piece(call)
        if delta.finish is not None:
            self._finish = delta.finish
            made += self._close(status_of(delta.finish))
        return made

    def closing(self, prepared: Prepared, n_tokens: int) -> dict[str, Any]:
        status = status_of(self._finish)
        return self._said(
            f"response.{status}",
            response=self._response(status, self._items, self._usage(prepared, n_tokens, self._n_reasoning)),
        )

    def failed(self, body: dict[str, Any]) -> bytes:
        """What ends a stream that an error ends; SDKs raise at the one event or at the other."""
        error = body["error"]
        code = FAILURES.get(error["type"], "invalid_prompt")
        told = {"code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
        items = [item for item in self._items if item["status"] != "in_progress"]
        response = self._response("failed", items, None, {"code": code, "message": error["message"]})
        return (
            self._opening()
            + data(self._said("error", **told, error=error))
            + data(self._said("response.failed", response=response))
        )

    def _said(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def _opening(self) -> bytes:
        if self._n_events:
            return b""
        response = self._response("in_progress", (), None)
        kinds = ("response.created", "response.in_progress")
        return b"".join(data(self._said(kind, response=response)) for kind in kinds)

    def _add(self, item: dict[str, Any]) -> bytes:
        """Open it, behind what was open."""
        made = self._close("completed")
        self._items.append(item)
        return made + data(self._said("response.output_item.added", output_index=len(self._items) - 1, item=item))

    def _place(self) -> dict[str, Any]:
        """Where the open item stands."""
        index = len(self._items) - 1
        place = {"item_id": self._items[index]["id"], "output_index": index}
        return place if self._items[index]["type"] == "function_call" else {**place, "content_index": 0}

    def _think(self, text: str) -> bytes:
        made = b""
        if not self._items:  # a thought is the first of all
            made = self._add(self._opened_thought(0))
            made += data(self._said("response.content_part.added", **self._place(), part=thought_part("")))
        self._written.append(text)
        return made + data(self._said("response.reasoning_text.delta", **self._place(), delta=text))

    def _words(self, text: str, talks: bool) -> bytes:
        made = b""
        if not talks:
            made = self._add(self._opened_message(len(self._items)))
            made += data(self._said("response.content_part.added", **self._place(), part=self._part("")))
        self._written.append(text)
        entries, self._n_shown = self._entries(self._tokens[self._n_shown :]), len(self._tokens)
        return made + data(self._said("response.output_text.delta", **self._place(), delta=text, logprobs=entries))

    def _piece(self, call: CallPiece) -> bytes:
        made = b""
        if call.id:
            made = self._add(self._call(len(self._items), call, "in_progress", ""))
        if not call.arguments:
            return made
        self._written.append(call.arguments)
        kind = "response.function_call_arguments.delta"
        return made + data(self._said(kind, **self._place(), delta=call.arguments))

    def _close(self, status: str) -> bytes:
        """End the item that is open. Its log-probabilities stand in the deltas, and once more in the last event."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return b""
        item, text, place = self._items[-1], "".join(self._written), self._place()
        self._written.clear()
        if item["type"] == "reasoning":
            item = self._items[-1] = self._thought(place["output_index"], text, status)
            made = data(self._said("response.reasoning_text.done", **place, text=text))
            made += data(self._said("response.content_part.done", **place, part=thought_part(text)))
        elif item["type"] == "message":
            item = {**item, "status": status, "content": [self._part(text)]}
            made = data(self._said("response.output_text.done", **place, text=text, logprobs=[]))
            made += data(self._said("response.content_part.done", **place, part=self._part(text)))
            self._items[-1] = self._message(place["output_index"], text, status, self._tokens)
        else:
            item = self._items[-1] = {**item, "status": status, "arguments": text}
            kind = "response.function_call_arguments.done"
            made = data(self._said(kind, **place, name=item["name"], arguments=text))
        done = self._said("response.output_item.done", output_index=place["output_index"], item=item)
        return made + data(done)


def thought_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def status_of(finish: FinishReason | None) -> str:
    return "incomplete" if finish == "length" else "completed"
