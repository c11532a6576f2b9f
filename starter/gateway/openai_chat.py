"""OpenAI's chat completions: ``/v1/chat/completions``. A completion is a run."""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.message import TokenUsage
from ...contracts.status import Status
from ...contracts.text import is_cut_from
from ...resources.base import JsonObject
from ...resources.team import Team
from .errors import BadRequestError, GatewayError, as_gateway_error
from .openai_calls import CallsWait, Part, give_results
from .openai_common import (
    CONTENT_FILTER,
    RUN_HEADER,
    RunFailedError,
    error_body,
    failed_run,
    is_incomplete,
    turns_shown,
    wait_text,
)
from .openai_input import ChatRequest, chat_messages, chat_results
from .openai_options import chat_choices
from .protocol import IDEMPOTENCY_KEY, caller_of, read_body, unless_disconnected
from .question import TargetQuestion
from .runs import Runs
from .speeches import Begun, Over, Retracted, Said, Speech, Spoken, Update, Waits
from .sse import EventStream, comment, encode
from .targets import ServedTarget, Targets

TURNS = ("reasoning", "none")
"""What ``turns`` may be: whether what members say before the answer is reasoning."""

DONE = encode("[DONE]")


class RestartedError(GatewayError):
    """A model has begun its answer anew, and what was streamed of it can't be taken back."""

    code = "answer_restarted"


def _restarted() -> RestartedError:
    return RestartedError(
        "the model's answer was interrupted and is starting over; "
        "ask again with the same Idempotency-Key to get all of it"
    )


@dataclass
class ChatWriter:
    """Divides what is said in a run into the answer (``content``) and what comes before it (``reasoning_content``).

    A client can't take anything back. So text is the content while it is being sent only if it is the answer for sure:
    what an agent says, or in a ``sequential`` team the last member. In other teams the answer comes at the end.
    """

    target: ServedTarget
    run: str
    with_reasoning: bool = True
    has_schema: bool = False
    """Whether the answer has to match a JSON Schema: one that does not is asked for again."""

    content: str = ""
    reasoning: str = ""
    created: int = 0
    calls: list[JsonValue] = field(default_factory=list)
    """The calls for which the run waits."""

    _sent: int = 0
    _speech: str = ""
    _is_interrupted: bool = False
    """Whether the run has waited within the current speech."""

    _last: str = ""
    """The last speech that is a part of the content."""

    _taken_back: str = ""
    """The end of the content that an attempt has said which then failed: the next one has to begin with it."""

    def feed(self, update: Update) -> Iterator[JsonObject]:
        """The pieces of a message that an update brings. Raises RestartedError."""
        match update:
            case Begun(event=event):
                self.created = int(event.at.timestamp())
                yield {"role": "assistant", "content": ""}
            case Said(speech=speech):
                yield from self._said(speech)
            case Retracted(speech=speech, text=text):
                yield from self._retracted(speech, text)
            case Spoken(speech=speech) if self._is_answer(speech) and speech.text:
                self._go_on(speech)
                self._last = speech.text
            case Waits(event=wait):
                self._is_interrupted = True
                yield from self._more("reasoning_content", f"{self._gap}({wait_text(self.run, wait)})")

    @property
    def _gap(self) -> str:
        return "\n\n" if self.reasoning else ""

    def _said(self, speech: Speech) -> Iterator[JsonObject]:
        is_answer = self._is_answer(speech)
        text = speech.text
        if is_answer and not self._go_on(speech):
            return
        if self._speech != speech.id:
            self._speech = speech.id
            self._sent = 0
            self._is_interrupted = False
            if is_answer:
                yield from self._more("content", "\n\n" if self.content else "")
            else:
                name = f"{speech.speaker}: " if self.target.kind == "team" or speech.from_person else ""
                yield from self._more("reasoning_content", self._gap + name)
        rest = text[self._sent :]
        self._sent = len(text)
        if self._is_interrupted and rest and not is_answer:
            self._is_interrupted = False
            rest = self._gap + rest
        yield from self._more("content" if is_answer else "reasoning_content", rest)

    def _retracted(self, speech: Speech, text: str) -> Iterator[JsonObject]:
        self._speech = ""
        if self._is_answer(speech):
            self._taken_back = self._taken_back or text
        else:
            yield from self._more("reasoning_content", f"{self._gap}(this broke off)")

    def _go_on(self, speech: Speech) -> bool:
        """Whether an answer has reached what the client has of an attempt that failed. Raises RestartedError.

        After missed heartbeats a new attempt joins the same call: then nothing was lost.
        """
        has = self._taken_back
        if not has:
            return True
        if speech.text.startswith(has):
            self._taken_back = ""
            self._speech = speech.id
            self._sent = len(has)
            return True
        if speech.has_ended or not has.startswith(speech.text):
            raise _restarted()
        return False

    def end(self, status: Status) -> Iterator[JsonObject]:
        """The rest of the message at the end of the run."""
        answer = status.message if status.phase == "Completed" else ""
        if answer and self._taken_back:
            raise _restarted()
        if answer and answer != self._last and not is_cut_from(answer, self._last):
            yield from self._more("content", ("\n\n" if self.content else "") + answer)

    def call(self, waiting: CallsWait) -> Iterator[JsonObject]:
        """The calls for which the run waits."""
        for index, call in enumerate(waiting.calls):
            function: JsonObject = {"name": call.tool, "arguments": call.arguments}
            described: JsonObject = {"id": call.id, "type": "function", "function": function}
            self.calls.append(described)
            yield {"tool_calls": [{"index": index, **described}]}

    def _more(self, kind: str, text: str) -> Iterator[JsonObject]:
        if not text:
            return
        if kind == "content":
            self.content += text
        elif self.with_reasoning:
            self.reasoning += text
        else:
            return
        yield {kind: text}

    def _is_answer(self, speech: Speech) -> bool:
        """Whether a speech is a part of the answer for sure."""
        if self.has_schema or speech.from_person:
            return False
        manifest = self.target.manifest
        if not isinstance(manifest, Team):
            return speech.run == self.run
        is_last = speech.turn == len(manifest.spec.members) and speech.run == f"{self.run}/target-1/{manifest.name}"
        return manifest.spec.strategy == "sequential" and not getattr(manifest.spec, "loops", None) and is_last


class Chat:
    """The operation of chat completions."""

    def __init__(self, targets: Targets, runs: Runs) -> None:
        self._targets = targets
        self._runs = runs

    @property
    def routes(self) -> list[Route]:
        """Its route."""
        return [Route("/v1/chat/completions", self.create, methods=["POST"])]

    async def create(self, request: Request) -> Response:
        """Asks a target, or gives the results of calls to a run. It is durable before the response begins."""
        body = await read_body(request, ChatRequest)
        caller = caller_of(request)
        if body.n not in (None, 1):
            raise BadRequestError("n must be 1: only one completion is supported", param="n")
        target = await self._targets.find(caller, body.model)
        turns = turns_shown(request, TURNS)
        headers: dict[str, str] = {}
        if results := chat_results(body.messages):
            part = await give_results(self._runs, caller, target, results, "messages")
        else:
            choices = chat_choices(body, target, await self._targets.catalog())
            headers = choices.headers
            question = TargetQuestion(
                input=chat_messages(body.messages), tools=choices.tools, settings=choices.settings
            )
            key = request.headers.get(IDEMPOTENCY_KEY)
            try:
                part = Part(await self._runs.start(caller, target, question, protocol="chat", key=key))
            except BadRequestError as error:
                is_input = (error.param or "").partition(".")[0] == "input"
                exactly = len(question.input) == len(body.messages)
                raise (error.named("messages", exactly=exactly) if is_input else error) from None
        run = part.run
        headers[RUN_HEADER] = run.id
        spec = await run.spec()
        writer = ChatWriter(
            target,
            run.id,
            with_reasoning=turns == "reasoning",
            has_schema=bool(target.output_schema or (spec and spec.client and spec.client.settings.output_schema)),
        )
        if body.stream:
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            return EventStream(_encoded(part, writer, include_usage=include_usage), headers=headers)
        finish = await unless_disconnected(request, _read(part, writer))
        if finish.error is not None:
            return failed_run(run.id, finish.error)
        message: dict[str, Any] = {"role": "assistant", "content": writer.content, "refusal": None}
        if writer.calls:
            message["content"] = writer.content or None
            message["tool_calls"] = writer.calls
        if writer.reasoning:
            message["reasoning_content"] = writer.reasoning
        completion = {
            **_head(part, writer, "chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish.reason}],
            "usage": usage_of(finish.usage),
        }
        return JSONResponse(completion, headers=headers)


@dataclass(frozen=True)
class Finish:
    """The end of a completion: its finish reason, its token usage, and the error of a run that has failed."""

    reason: str
    usage: TokenUsage
    error: str | None = None


async def _encoded(part: Part, writer: ChatWriter, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The chunks of a completion as server-sent events."""

    def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        more: JsonObject = {"usage": None} if include_usage else {}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode(json.dumps({**_head(part, writer, "chat.completion.chunk"), "choices": [choice], **more}))

    try:
        yield comment(f"run {part.run.id}")
        async for update in _deltas(part, writer, live=True):
            if not isinstance(update, Finish):
                yield chunk(update)
                continue
            if update.error is not None:
                yield encode(json.dumps(error_body(RunFailedError(update.error))))
                return
            yield chunk({}, update.reason)
            if include_usage:
                usage = {"choices": [], "usage": usage_of(update.usage)}
                yield encode(json.dumps({**_head(part, writer, "chat.completion.chunk"), **usage}))
            yield DONE
    except Exception as error:
        translated = as_gateway_error(error)
        if translated is None:
            raise
        yield encode(json.dumps(error_body(translated)))


async def _deltas(part: Part, writer: ChatWriter, *, live: bool) -> AsyncIterator[JsonObject | Finish]:
    """The deltas of a message, and at last how it has ended."""
    async with contextlib.aclosing(part.updates(live=live)) as updates:
        async for update in updates:
            if isinstance(update, CallsWait):
                for delta in writer.call(update):
                    yield delta
                yield Finish("tool_calls", part.usage)
                return
            for delta in writer.feed(update):
                yield delta
            if isinstance(update, Over):
                status = await part.run.result()
                for delta in writer.end(status):
                    yield delta
                yield _finish(status, part.usage if part.last else status.token_usage)


async def _read(part: Part, writer: ChatWriter) -> Finish:
    """Waits for the end of a part of a run; the writer has the message then."""
    async for update in _deltas(part, writer, live=False):
        if isinstance(update, Finish):
            return update
    status = await part.run.result()
    return _finish(status, status.token_usage)


def _finish(status: Status, usage: TokenUsage) -> Finish:
    if reason := is_incomplete(status):
        return Finish(reason if reason == CONTENT_FILTER else "length", usage)
    if status.phase in ("Failed", "Canceled"):
        return Finish("stop", usage, status.error or f"the run was {status.phase.lower()}")
    return Finish("stop", usage)


def _head(part: Part, writer: ChatWriter, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{part.id}", "object": kind, "created": writer.created, "model": writer.target.id}


def usage_of(usage: TokenUsage) -> JsonObject:
    """The token usage of a run in the form of a completion."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
