"""OpenAI's chat completions: ``/v1/chat/completions``. A completion is a run."""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...contracts.message import TokenUsage
from ...contracts.status import Status
from ...contracts.text import truncate
from ...resources.base import JsonObject
from ...resources.team import Team
from .errors import BadRequestError, GatewayError, as_gateway_error
from .openai_common import (
    CONTENT_FILTER,
    RUN_HEADER,
    check_format,
    check_tools,
    error_body,
    failed_run,
    has_schema,
    is_incomplete,
    turns_shown,
    wait_text,
)
from .openai_input import ChatRequest, chat_messages
from .protocol import IDEMPOTENCY_KEY, caller_of, read_body, unless_disconnected
from .runs import Run, Runs, TargetQuestion
from .speeches import Begun, Over, Retracted, Said, Speech, Spoken, Update, Waits, read_speeches
from .sse import comment, encode, event_stream
from .targets import ServedTarget, Targets

TURNS = ("reasoning", "none")
"""What ``turns`` may be: whether what members say before the answer is reasoning."""

DONE = encode("[DONE]")


class RestartedError(GatewayError):
    """A model has begun its answer anew, and what was streamed of it can't be taken back."""

    code = "answer_restarted"


@dataclass
class ChatWriter:
    """Divides what is said in a run into the answer (``content``) and what comes before it (``reasoning_content``).

    A client can't take anything back. So text is the content while it is being sent only if it is the answer for sure:
    what an agent says, or in a ``sequential`` team the last member. In other teams the answer comes at the end.
    """

    target: ServedTarget
    run: str
    with_reasoning: bool = True
    content: str = ""
    reasoning: str = ""
    created: int = 0
    _sent: int = 0
    _speech: str = ""
    _last: str = ""
    """The last speech that is a part of the content."""

    def feed(self, update: Update) -> Iterator[JsonObject]:
        """The pieces of a message that an update brings. Raises RestartedError."""
        match update:
            case Begun(event=event):
                self.created = int(event.at.timestamp())
                yield {"role": "assistant", "content": ""}
            case Said(speech=speech):
                yield from self._said(speech)
            case Retracted(speech=speech):
                yield from self._retracted(speech)
            case Spoken(speech=speech) if self._is_answer(speech) and speech.text:
                self._last = speech.text
            case Waits(event=wait):
                self._speech = ""
                yield from self._more("reasoning_content", f"{self._gap}({wait_text(self.run, wait)})")

    @property
    def _gap(self) -> str:
        return "\n\n" if self.reasoning else ""

    def _said(self, speech: Speech) -> Iterator[JsonObject]:
        is_answer = self._is_answer(speech)
        text = speech.text
        if self._speech != speech.id:
            self._speech = speech.id
            self._sent = 0
            if is_answer:
                yield from self._more("content", "\n\n" if self.content else "")
            else:
                name = f"{speech.speaker}: " if self.target.kind == "team" else ""
                yield from self._more("reasoning_content", self._gap + name)
        rest = text[self._sent :]
        self._sent = len(text)
        yield from self._more("content" if is_answer else "reasoning_content", rest)

    def _retracted(self, speech: Speech) -> Iterator[JsonObject]:
        if self._is_answer(speech):
            raise RestartedError(
                "the model's answer broke off and begins anew; with the same Idempotency-Key you get all of it"
            )
        self._speech = ""
        yield from self._more("reasoning_content", f"{self._gap}(this broke off)")

    def end(self, status: Status) -> Iterator[JsonObject]:
        """The rest of the message at the end of the run."""
        answer = status.message if status.phase == "Completed" else ""
        if answer and answer not in (self._last, truncate(self._last)):
            yield from self._more("content", ("\n\n" if self.content else "") + answer)

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
        if has_schema(self.target):  # an answer that does not fit is asked for again
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
        """Asks a target. The run is durable before the response begins."""
        body = await read_body(request, ChatRequest)
        caller = caller_of(request)
        if body.n not in (None, 1):
            raise BadRequestError("n: one completion is made", param="n")
        target = await self._targets.find(caller, body.model)
        check_tools(body.tools)
        check_format(target, body.response_format, "response_format")
        turns = turns_shown(request, TURNS)
        question = TargetQuestion(input=chat_messages(body.messages))
        key = request.headers.get(IDEMPOTENCY_KEY)
        started = await self._runs.start(caller, target, question, protocol="chat", key=key)
        run = started.run
        writer = ChatWriter(target, run.id, turns == "reasoning")
        if body.stream:
            include_usage = bool(body.stream_options and body.stream_options.include_usage)
            return _stream(run, writer, include_usage=include_usage)
        status = await unless_disconnected(request, _read(run, writer))
        finish, error = _finish(status)
        if error is not None:
            return failed_run(run.id, error)
        message: dict[str, Any] = {"role": "assistant", "content": writer.content, "refusal": None}
        if writer.reasoning:
            message["reasoning_content"] = writer.reasoning
        completion = {
            **_head(run, writer, "chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
            "usage": usage_of(status.token_usage),
        }
        return JSONResponse(completion, headers={RUN_HEADER: run.id})


def _stream(run: Run, writer: ChatWriter, *, include_usage: bool) -> Response:
    def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
        more: JsonObject = {"usage": None} if include_usage else {}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode(json.dumps({**_head(run, writer, "chat.completion.chunk"), "choices": [choice], **more}))

    async def encoded() -> AsyncGenerator[bytes, None]:
        try:
            yield comment(f"run {run.id}")
            async for update in _deltas(run, writer, live=True):
                if not isinstance(update, Status):
                    yield chunk(update)
                    continue
                finish, error = _finish(update)
                if error is not None:
                    yield encode(json.dumps(error_body(RunFailedError(error))))
                    return
                yield chunk({}, finish)
                if include_usage:
                    usage = {"choices": [], "usage": usage_of(update.token_usage)}
                    yield encode(json.dumps({**_head(run, writer, "chat.completion.chunk"), **usage}))
                yield DONE
        except Exception as error:
            translated = as_gateway_error(error)
            if translated is None:
                raise
            yield encode(json.dumps(error_body(translated)))

    return event_stream(encoded(), headers={RUN_HEADER: run.id})


class RunFailedError(GatewayError):
    """The run has failed."""

    status = 500
    code = "run_failed"


async def _deltas(run: Run, writer: ChatWriter, *, live: bool) -> AsyncIterator[JsonObject | Status]:
    """The deltas of a message, and at last the run's status."""
    async with contextlib.aclosing(run.events(live=live, depth_first=True)) as events:
        async for update in read_speeches(run.id, events):
            for delta in writer.feed(update):
                yield delta
            if isinstance(update, Over):
                status = await run.result()
                for delta in writer.end(status):
                    yield delta
                yield status


async def _read(run: Run, writer: ChatWriter) -> Status:
    """Waits for the end of a run; the writer has the message then."""
    status: Status | None = None
    async for update in _deltas(run, writer, live=False):
        if isinstance(update, Status):
            status = update
    return status or await run.result()


def _finish(status: Status) -> tuple[str, str | None]:
    """The finish reason, and the error of a run that has failed or was canceled."""
    if reason := is_incomplete(status):
        return (reason if reason == CONTENT_FILTER else "length"), None
    if status.phase in ("Failed", "Canceled"):
        return "stop", status.error or f"the run was {status.phase.lower()}"
    return "stop", None


def _head(run: Run, writer: ChatWriter, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-{run.id}", "object": kind, "created": writer.created, "model": writer.target.id}


def usage_of(usage: TokenUsage) -> JsonObject:
    """The token usage of a run in the form of a completion."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
