"""OpenAI's Responses API: a response is a run. docs/design/gateway.md has how its events are numbered."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import JsonValue
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.message import Head, TokenUsage
from ...contracts.status import Status
from ...contracts.text import full_length, is_cut_from
from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.client import API_DEFAULTS, ClientTool
from ..history.events import RunEndedEvent
from .errors import BadRequestError, ConflictError, NotFoundError, as_gateway_error
from .openai_calls import CallsWait, Part, call_id, give_results, place_of
from .openai_common import (
    RUN_HEADER,
    error_body,
    failed_run,
    is_incomplete,
    turns_shown,
    wait_text,
)
from .openai_input import ResponseRequest, input_messages, input_results, stored_items
from .openai_options import echoed, ignored_headers, response_choices
from .protocol import IDEMPOTENCY_KEY, caller_of, number_in, read_body, unless_disconnected
from .question import TargetQuestion
from .run import Run
from .runs import Runs
from .speeches import Begun, Over, Retracted, Said, Speech, Spoken, Update, Waits
from .sse import EventStream, comment, encode
from .targets import ServedTarget, Targets

PREFIX = "resp_"
"""The beginning of a response's id; the id of its run follows."""

RESERVED = 2**20
"""The sequence numbers of an attempt that has failed: more than an answer has characters."""

ECHO = "response"
"""The memo entry with the fields of the request that its response repeats, as JSON."""

MAX_ECHO = 4_000
"""Characters of the instructions that a response repeats."""

TURNS = ("items", "none")
"""What ``turns`` may be: whether what members say before the answer are output items."""

CANCEL_SECONDS = 10.0
"""Seconds for which a request to cancel waits for the end of the run."""

MAX_ITEMS = 100
"""The most input items that are listed at once."""


@dataclass
class ResponseWriter:
    """Makes the events of a response from the updates of its run's speeches.

    Only events whose sequence number is greater than ``after`` are made. ``echo`` are fields of the request, ``tools``
    those that the client has offered. The output items are those of the members, or with ``answer_only`` that of the
    answer. What a person has sent into the run is none: in this protocol all output is the assistant's.
    """

    id: str
    echo: Mapping[str, Any]
    tools: Sequence[ClientTool] = ()
    after: int = -1
    answer_only: bool = False
    created_at: int = 0
    output: list[JsonObject] = field(default_factory=list)
    final: JsonObject | None = None
    """The response once its run has ended."""

    _base: int = 2
    """The first sequence number of the current speech."""

    _index: int = 0
    """The output index of the first attempt of the current speech."""

    _attempt: int = 0
    """The attempt of the current speech whose item was added; 0 if none was."""

    _closed: int = 0
    """The last attempt of the current speech whose item was taken back."""

    _sent: int = 0
    """The characters of the current attempt that were sent, or that the client has already."""

    _held: tuple[int, int] | None = None
    """The sequence number and the output index of the last item, which is done once it is known to be the answer."""

    _has_failed: bool = False
    """Whether a speech has failed or was cut off: not all readers know its number of attempts."""

    _waiting: list[JsonObject] = field(default_factory=list)
    """The events of items that were taken back, which follow once the last item is done."""

    def feed(self, update: Update) -> Iterator[JsonObject]:
        """The events that an update brings."""
        match update:
            case Begun(event=event):
                self.created_at = int(event.at.timestamp())
                yield from self._send(0, "response.created", response=self.response("in_progress"))
                yield from self._send(1, "response.in_progress", response=self.response("in_progress"))
            case Said(speech=speech) if self._is_output(speech):
                yield from self._said(speech)
            case Retracted(speech=speech, text=text) if self._is_output(speech):
                yield from self._take_back(speech, speech.draft, text)
            case Spoken(speech=speech) if self._is_output(speech):
                yield from self._spoken(speech)

    def _is_output(self, speech: Speech) -> bool:
        return not (self.answer_only or speech.from_person)

    def end(self, event: RunEndedEvent, status: Status) -> Iterator[JsonObject]:
        """The events at the end of the run."""
        answer = status.message if status.phase == "Completed" else ""
        last = _text_of(self.output[-1]) if self.output else None
        is_said = last is not None and (last == answer or is_cut_from(answer, last))
        if answer and not is_said:
            speech = Speech(
                event.id,
                event.run,
                self.echo.get("target", ""),
                text=answer,
                length=len(answer),
                is_cut_off=status.finish_reason == "length",
            )
            yield from self._said(speech)
            yield from self._spoken(speech)
        yield from self._finish("final_answer" if answer else "commentary")
        kind, response = self._ended(event, status)
        self.final = response
        yield from self._send_last(kind, response)

    def call(self, waiting: CallsWait, usage: TokenUsage) -> Iterator[JsonObject]:
        """The events of calls for which the run waits. They complete the response."""
        yield from self._finish("commentary")
        for call in waiting.calls:
            item: JsonObject = {
                "id": f"fc_{call.decision}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.id,
                "name": call.tool,
                "arguments": call.arguments,
            }
            place: dict[str, Any] = {"item_id": item["id"], "output_index": self._index}
            added = {**item, "status": "in_progress", "arguments": ""}
            kind = "response.function_call_arguments"
            start = self._base
            yield from self._send(start, "response.output_item.added", output_index=self._index, item=added)
            yield from self._send(start + 1, f"{kind}.delta", **place, delta=call.arguments)
            yield from self._send(start + 2, f"{kind}.done", **place, name=call.tool, arguments=call.arguments)
            yield from self._send(start + 3, "response.output_item.done", output_index=self._index, item=item)
            self.output.append(item)
            self._go_on(4, 1)
        self.final = {
            **self.response("completed"),
            "output": list[JsonValue](self.output),
            "usage": usage_of(usage),
            "completed_at": int(waiting.at.timestamp()),
        }
        yield from self._send_last("response.completed", self.final)

    def _send_last(self, kind: str, response: JsonObject) -> Iterator[JsonObject]:
        """Ends the stream for every reader: one that saw later attempts of a canceled call has higher numbers."""
        number = max(self._base, self.after + 1) if self._has_failed else self._base
        yield from self._send(number, kind, response=response)

    def _number(self, setting: str) -> JsonValue:
        """What the request has chosen, or else the default of the APIs: strict clients require a number."""
        chosen = self.echo.get(setting)
        return API_DEFAULTS[to_camel(setting)] if chosen is None else chosen

    def response(self, status: str) -> JsonObject:
        """The response as it is, without its output."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": self.echo.get("background", False),
            "completed_at": None,
            "error": None,
            "frequency_penalty": self._number("frequency_penalty"),
            "incomplete_details": None,
            "instructions": self.echo.get("instructions"),
            "max_output_tokens": self.echo.get("max_output_tokens"),
            "max_tool_calls": None,
            "model": self.echo.get("model", ""),
            "output": [],
            "parallel_tool_calls": self.echo.get("parallel_tool_calls", True),
            "presence_penalty": self._number("presence_penalty"),
            "prompt_cache_key": None,
            "previous_response_id": self.echo.get("previous_response_id"),
            "conversation": self.echo.get("conversation"),
            "reasoning": self.echo.get("reasoning", {"effort": None, "summary": None}),
            "safety_identifier": None,
            "service_tier": "default",
            "store": self.echo.get("store", True),
            "temperature": self._number("temperature"),
            "text": self.echo.get("text", {"format": {"type": "text"}}),
            "tool_choice": self.echo.get("tool_choice", "auto"),
            "tools": [{"type": "function", **tool.model_dump(mode="json"), "strict": None} for tool in self.tools],
            "top_logprobs": 0,
            "top_p": self._number("top_p"),
            "truncation": "disabled",
            "usage": None,
            "metadata": self.echo.get("metadata", {}),
        }

    def so_far(self) -> JsonObject:
        """The response of an open run, with the output so far."""
        return {**self.response("in_progress"), "output": list[JsonValue](self.output)}

    def _ended(self, event: RunEndedEvent, status: Status) -> tuple[str, JsonObject]:
        state = "completed"
        kind = "response.completed"
        more: JsonObject = {}
        if status.phase == "Canceled":
            state = "cancelled"
            kind = "response.incomplete"  # the protocol has no event of its own
        elif reason := is_incomplete(status):
            state = "incomplete"
            kind = "response.incomplete"
            more = {"incomplete_details": {"reason": reason}}
        elif status.phase == "Failed":
            state = "failed"
            kind = "response.failed"
            more = {"error": {"code": "server_error", "message": status.error or "the run has failed"}}
        response: JsonObject = {
            **self.response(state),
            **more,
            "output": list[JsonValue](self.output),
            "usage": usage_of(event.usage),
            "completed_at": int(event.at.timestamp()) if state == "completed" else None,
        }
        return kind, response

    def _said(self, speech: Speech) -> Iterator[JsonObject]:
        self._pass_attempts(speech, speech.draft - 1)
        start = self._start_of(speech.draft)
        index = self._index + speech.draft - 1
        item_id = _item_id(speech)
        if self._attempt != speech.draft:
            yield from self._finish("commentary")
            self._attempt = speech.draft
            self._sent = max(0, self.after - start - 1)
            yield from self._send_item_added(speech, speech.draft)
        text = speech.text[self._sent :]
        if text:
            before = self._sent
            self._sent += len(text)
            # The mark of a truncated text may be longer than what it stands for, or the model's own words.
            length = full_length(speech.text)
            place = min(self._sent, length) if length > before else self._sent
            number = min(start + 1 + place, start + RESERVED - 4)
            delta = "response.output_text.delta"
            yield from self._send_part(number, delta, item_id, index, delta=text, logprobs=[])

    def _spoken(self, speech: Speech) -> Iterator[JsonObject]:
        attempts = speech.draft
        if speech.has_failed or not speech.text:
            failed = attempts if speech.has_failed else attempts - 1
            self._has_failed |= speech.has_failed
            self._pass_attempts(speech, failed)
            if self._held is None:
                yield from self._finish("commentary")
            self._go_on(failed * RESERVED, failed)
            return
        start = self._start_of(attempts)
        index = self._index + attempts - 1
        end = start + 2 + speech.length
        yield from self._send_dones(end, _item_id(speech), index, speech.text)
        status = "incomplete" if speech.is_cut_off else "completed"
        self.output.append(_item(speech, status, self._expected_phase, speech.text))
        self._held = end + 2, index
        self._go_on(end + 3 - self._base, attempts)

    def _finish(self, phase: Literal["commentary", "final_answer"]) -> Iterator[JsonObject]:
        """Ends the last item, of which it is now known whether it is the answer, and those taken back after it."""
        if self._held:
            number, index = self._held
            self._held = None
            item = self.output[-1] = {**self.output[-1], "phase": phase}
            yield from self._send(number, "response.output_item.done", output_index=index, item=item)
        yield from self._waiting
        self._waiting.clear()

    def _pass_attempts(self, speech: Speech, last: int) -> None:
        """Takes the items of failed attempts back, for every reader: what one has seen of them is stored nowhere."""
        for attempt in range(self._closed + 1, last + 1):
            text = speech.text[: self._sent] if attempt == self._attempt else ""
            if attempt != self._attempt:
                self._waiting += self._send_item_added(speech, attempt)
            self._waiting += self._take_back(speech, attempt, text)

    def _take_back(self, speech: Speech, attempt: int, text: str) -> Iterator[JsonObject]:
        index = self._index + attempt - 1
        number = self._start_of(attempt) + RESERVED - 3
        yield from self._send_dones(number, _item_id(speech, attempt), index, text)
        item = {**_item(speech, "incomplete", "commentary", text, attempt), "retracted": True}
        yield from self._send(number + 2, "response.output_item.done", output_index=index, item=item)
        self._closed = attempt
        self._attempt = 0

    def _start_of(self, attempt: int) -> int:
        return self._base + (attempt - 1) * RESERVED

    def _go_on(self, numbers: int, indexes: int) -> None:
        self._base += numbers
        self._index += indexes
        self._attempt = 0
        self._closed = 0
        self._sent = 0

    @property
    def _expected_phase(self) -> Literal["commentary", "final_answer"]:
        """The phase of an item before it is known: what an agent says may be the answer, what a member says is not.

        Nor is what has to match a JSON Schema: clients parse a final answer at its end, and it may be asked for again.
        """
        is_open = self.echo.get("kind") == "team" or self.echo.get("has_schema", False)
        return "commentary" if is_open and not self.answer_only else "final_answer"

    def _send_item_added(self, speech: Speech, attempt: int) -> Iterator[JsonObject]:
        start = self._start_of(attempt)
        index = self._index + attempt - 1
        item = _item(speech, "in_progress", self._expected_phase, None, attempt)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._send(start, "response.output_item.added", output_index=index, item=item)
        yield from self._send_part(
            start + 1, "response.content_part.added", _item_id(speech, attempt), index, part=part
        )

    def _send_dones(self, number: int, item_id: str, index: int, text: str) -> Iterator[JsonObject]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield from self._send_part(number, "response.output_text.done", item_id, index, text=text, logprobs=[])
        yield from self._send_part(number + 1, "response.content_part.done", item_id, index, part=part)

    def _send_part(self, number: int, kind: str, item_id: str, index: int, **fields: Any) -> Iterator[JsonObject]:
        yield from self._send(number, kind, item_id=item_id, output_index=index, content_index=0, **fields)

    def _send(self, number: int, kind: str, **fields: Any) -> Iterator[JsonObject]:
        if number > self.after:
            yield {"type": kind, "sequence_number": number, **fields}


def _item_id(speech: Speech, attempt: int | None = None) -> str:
    digest = hashlib.sha256(f"{speech.id}\n{attempt or speech.draft}".encode()).hexdigest()
    return f"msg_{digest[:40]}"


def _item(speech: Speech, status: str, phase: str, text: str | None, attempt: int | None = None) -> JsonObject:
    """An output item. ``speaker`` is an extension: the name of the member that says it."""
    content: list[Any] = []
    if text is not None:
        content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {
        "id": _item_id(speech, attempt),
        "type": "message",
        "role": "assistant",
        "status": status,
        "phase": phase,
        "speaker": speech.speaker,
        "content": content,
    }


def _text_of(item: JsonObject) -> str:
    content: Any = item["content"]
    return str(content[0]["text"])


def usage_of(usage: TokenUsage) -> JsonObject:
    """The token usage of a run in the form of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


class ResponsesApi:
    """The operations of OpenAI's Responses."""

    def __init__(self, targets: Targets, runs: Runs) -> None:
        self._targets = targets
        self._runs = runs

    @property
    def routes(self) -> list[Route]:
        """Their routes."""
        one = "/v1/responses/{response}"
        return [
            Route("/v1/responses", self.create, methods=["POST"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.input_items, methods=["GET"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """Asks a target, or gives the results of calls to a run. It is durable before the response begins."""
        body = await read_body(request, ResponseRequest)
        caller = caller_of(request)
        if body.background and body.store is False:
            raise BadRequestError("store: a response in the background has to be stored", param="store")
        if body.previous_response_id and body.conversation:
            raise BadRequestError("conversation: it can't be combined with previous_response_id", param="conversation")
        target = await self._targets.find(caller, body.model)
        turns = turns_shown(request, TURNS)
        if results := input_results(body.input):
            if body.previous_response_id:
                previous = await self._find(request, body.previous_response_id)
                if stray := [each.id for each in results if each.is_new and each.place[0] != previous.run.id]:
                    text = f"No tool call found for function call output with call_id {stray[0]}."
                    raise BadRequestError(text, param="input")
            part = await give_results(self._runs, caller, target, results, "input")
            return await self._answer_to(request, body, part)
        messages = input_messages(body.input)
        choices = response_choices(body, target, await self._targets.catalog())
        settings = choices.settings
        if body.instructions and _allows_instructions(target):
            settings["instructions"] = body.instructions
        elif body.instructions:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        question = TargetQuestion(
            input=body.input if isinstance(body.input, str) and len(messages) == 1 else messages,
            conversation=body.conversation,
            after=await self._head(request, body.previous_response_id, body) if body.previous_response_id else None,
            tools=choices.tools,
            settings=settings,
        )
        echo = {
            **echoed(choices, MAX_ECHO),
            "ignored": choices.ignored,
            "kind": target.kind,
            "target": target.name,
            "model": target.id,
            "background": bool(body.background),
            "store": body.store is not False,
            "instructions": body.instructions if len(body.instructions or "") <= MAX_ECHO else None,
            "previous_response_id": body.previous_response_id,
            "conversation": {"id": body.conversation} if body.conversation else None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": body.tool_choice or "auto",
            "turns": turns,
            "has_schema": bool(target.output_schema or settings.get("output_schema")),
        }
        try:
            run = await self._runs.start(
                caller,
                target,
                question,
                protocol="responses",
                key=request.headers.get(IDEMPOTENCY_KEY),
                memo={ECHO: json.dumps(echo)},
            )
        except BadRequestError as error:
            is_input = (error.param or "").partition(".")[0] == "input"
            exactly = isinstance(body.input, list) and len(messages) == len(body.input)
            raise (error.named("input", exactly=exactly) if is_input else error) from None
        return await self._answer_to(request, body, Part(run))

    async def _answer_to(self, request: Request, body: ResponseRequest, part: Part) -> Response:
        """The response to a request: a part of a run."""
        run = part.run
        if body.stream:
            return await self._stream(part, -1)
        if body.background:
            return self._answer(run, await _read(part, wait=False))
        writer = await unless_disconnected(request, _read(part, wait=True))
        if writer.final and writer.final["status"] == "failed":
            error: Any = writer.final["error"]
            return failed_run(run.id, error["message"])
        return self._answer(run, writer)

    async def get(self, request: Request) -> Response:
        """A response as it is, or with ``stream=true`` its events after ``starting_after``."""
        part = await self._find(request, request.path_params["response"])
        if request.query_params.get("stream") in ("true", "1"):
            return await self._stream(part, number_in(request, "starting_after", -1, least=-1))
        return self._answer(part.run, await _read(part, wait=False))

    async def cancel(self, request: Request) -> Response:
        """Cancels a response; one that has ended stays as it is."""
        part = await self._find(request, request.path_params["response"])
        run = part.run
        await run.cancel("canceled by the client of the response")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await run.result()
        return self._answer(run, await _read(part, wait=False))

    async def delete(self, request: Request) -> Response:
        """Deletes a response that has ended: its run, and the runs below it, with their histories."""
        response = request.path_params["response"]
        run = (await self._find(request, response)).run
        await unless_disconnected(request, run.delete())
        return JSONResponse({"id": response, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """The input of a response, the last item first unless ``order`` is ``asc``."""
        part = await self._find(request, request.path_params["response"])
        if part.last:
            results = await unless_disconnected(request, part.results())
            items = [_result_item(part.run, decision, output) for decision, output in results.items()]
        else:
            spec = await part.run.spec()
            asked = spec.model_dump(mode="json", by_alias=True, exclude_none=True)["input"] if spec else []
            items = stored_items(asked)
        if request.query_params.get("order", "desc") != "asc":
            items.reverse()
        ids = [item["id"] for item in items]
        after = request.query_params.get("after")
        if after in ids:
            items = items[ids.index(after) + 1 :]
        limit = number_in(request, "limit", 20, most=MAX_ITEMS)
        data = items[:limit]
        return JSONResponse(
            {
                "object": "list",
                "data": data,
                "first_id": data[0]["id"] if data else "",
                "last_id": data[-1]["id"] if data else "",
                "has_more": len(items) > limit,
            }
        )

    async def _find(self, request: Request, response: str) -> Part:
        """The part of a run that a stored response shows. Raises NotFoundError."""
        if not response.startswith(PREFIX):
            raise NotFoundError(f"there is no response '{response[:200]}'")
        run_id, last = place_of(response.removeprefix(PREFIX))
        run = await self._runs.find(caller_of(request), run_id)
        if not _echo(run).get("store", True):
            raise NotFoundError(f"the response '{response[:200]}' was not stored")
        return Part(run, frozenset({last} if last else ()), last)

    async def _head(self, request: Request, response: str, body: ResponseRequest) -> Head:
        """The place in the conversation after an earlier response.

        Raises NotFoundError, ConflictError, and BadRequestError if it ended with calls: only their results continue it.
        """
        part = await self._find(request, response)
        run = part.run
        if calls := await _calls_of(part):
            given = [] if isinstance(body.input, str) else [item.get("call_id") for item in body.input]
            missing = [call for call in calls if call not in given]
            text = "input: the results of calls have to be its last items; send messages after the response to them"
            if missing:
                text = f"No tool output found for function call {', '.join(missing)}."
            raise BadRequestError(text, param="input")
        if await run.is_open():
            text = "the run of the previous response has not ended"
            raise ConflictError(text, param="previous_response_id")
        status = await run.result()
        head = status.responses[0].head if status.responses else None
        if head is None:
            raise ConflictError("the previous response has no message to continue from", param="previous_response_id")
        return head

    async def _stream(self, part: Part, after: int) -> Response:
        writer = await _writer(part, after)

        async def encoded() -> AsyncGenerator[bytes, None]:
            number: JsonValue = after
            try:
                async for event in _events(part, writer, wait=True, live=True):
                    if isinstance(event, str):
                        yield comment(event)
                    else:
                        number = event["sequence_number"]
                        yield encode(json.dumps(event), event=str(event["type"]))
            except Exception as error:
                translated = as_gateway_error(error)
                if translated is None:
                    raise
                fields = error_body(translated)["error"]
                yield encode(json.dumps({**fields, "type": "error", "sequence_number": number}), event="error")

        return EventStream(encoded(), headers=_headers(part.run))

    def _answer(self, run: Run, writer: ResponseWriter) -> Response:
        return JSONResponse(writer.final or writer.so_far(), headers=_headers(run))


def _echo(run: Run) -> dict[str, Any]:
    """The fields of the request that a response repeats; those of a run of another protocol are unknown."""
    text = run.memo.get(ECHO)
    echo: dict[str, Any] = json.loads(text) if isinstance(text, str) else {}
    return echo


async def _calls_of(part: Part) -> list[str]:
    """The ids of the calls with which a response has ended."""
    spec = await part.run.spec()
    if not (spec and spec.client and spec.client.tools):
        return []
    items = (await _read(part, wait=False)).output
    return [str(item["call_id"]) for item in items if item["type"] == "function_call"]


def _result_item(run: Run, decision: str, output: str) -> JsonObject:
    """The result of a call of the client's tools as an input item."""
    return {
        "id": f"fco_{decision}",
        "type": "function_call_output",
        "status": "completed",
        "call_id": call_id(run, decision),
        "output": output,
    }


def _headers(run: Run) -> dict[str, str]:
    return {RUN_HEADER: run.id, **ignored_headers(_echo(run).get("ignored", ()))}


def _allows_instructions(target: ServedTarget) -> bool:
    """Whether instructions are a setting of the agent; else they are a message of the system."""
    agent = target.manifest
    return isinstance(agent, Agent) and "instructions" in agent.client_access.allowed_settings


async def _writer(part: Part, after: int = -1) -> ResponseWriter:
    echo = _echo(part.run)
    spec = await part.run.spec()
    return ResponseWriter(
        f"{PREFIX}{part.id}",
        echo,
        tools=spec.client.tools if spec and spec.client else (),
        after=after,
        answer_only=echo.get("turns") == "none",
    )


async def _events(part: Part, writer: ResponseWriter, *, wait: bool, live: bool) -> AsyncIterator[JsonObject | str]:
    """The events of a response, and comments about what its run waits for."""
    run = part.run
    async with contextlib.aclosing(part.updates(wait=wait, live=live)) as updates:
        async for update in updates:
            writer.id = f"{PREFIX}{part.id}"
            if isinstance(update, CallsWait):
                for event in writer.call(update, part.usage):
                    yield event
                return
            if isinstance(update, Over):
                for event in writer.end(update.event, await run.result()):
                    yield event
                return
            if isinstance(update, Waits):
                yield wait_text(run.id, update.event)
            for event in writer.feed(update):
                yield event


async def _read(part: Part, *, wait: bool) -> ResponseWriter:
    """The writer of a response after all its events, or with ``wait`` false those that exist."""
    writer = await _writer(part)
    async for _ in _events(part, writer, wait=wait, live=False):
        pass
    return writer
