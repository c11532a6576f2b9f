"""The status of a query in ARK's current dialect (ARK: today's dialect)."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from pydantic import Field

from ..resources.base import Dialect, JsonModel, JsonObject
from .message import Message, latest_within, openai_form
from .status import ARK_PHASES, ArkPhase, Status

MAX_RAW = 60_000
"""Bytes of messages in ``raw``, which duplicates Baton's own fields."""

_COMPLETED: dict[ArkPhase, tuple[Literal["True", "False"], str, str]] = {
    "running": ("False", "QueryRunning", "Query is running"),
    "input-required": ("False", "QueryInputRequired", "Query waits for a person"),
    "done": ("True", "QuerySucceeded", "Query completed successfully"),
    "error": ("True", "QueryErrored", "Query completed with error"),
    "canceled": ("True", "QueryCanceled", "Query canceled"),
}
"""The condition ``Completed`` in each phase: its status, its reason and its message."""


_ENDED: dict[str, ArkPhase] = {"Success": "done", "Failed": "error", "Canceled": "canceled"}
"""The phases of ended responses."""


class ArkTarget(JsonModel):
    """The target of a response."""

    type: str
    name: str


class ArkRemote(JsonModel):
    """The ids of the conversation and the task of an agent of an A2AServer."""

    context_id: str | None = None
    task_id: str | None = None


class ArkResponse(JsonModel):
    """The answer of a target. ``raw`` is JSON: its latest messages in OpenAI's form, and an error at their end."""

    target: ArkTarget | None = None
    content: str = ""
    raw: str = "[]"
    phase: ArkPhase
    a2a: ArkRemote | None = Field(None, alias="a2a")


class Condition(JsonModel):
    """A condition, in the form of Kubernetes."""

    type: Literal["Completed"] = "Completed"
    status: Literal["True", "False"]
    reason: str
    message: str
    last_transition_time: str


class ArkTokenUsage(JsonModel):
    """Tokens of all models."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int


class ArkStatus(JsonModel):
    """ARK's ``status`` of a Query: ``responses`` of all targets, and ``response`` if there is only one."""

    phase: ArkPhase
    conditions: tuple[Condition, ...]
    response: ArkResponse | None = None
    responses: tuple[ArkResponse, ...] | None = None
    token_usage: ArkTokenUsage
    conversation_id: str | None = None
    duration: str | None = None


def ark_status(status: Status, target: ArkTarget | None = None) -> ArkStatus:
    """A status in ARK's format; ``target`` is that of a run whose status has no ``responses``, such as a team."""
    phase = ARK_PHASES[status.phase]
    usage = status.token_usage
    answers = [*_answers(status, target)]
    only = answers[0] if len(answers) == 1 else None
    return ArkStatus(
        phase=phase,
        conditions=(_completed(status, phase),),
        response=only if only and (only.content or not status.is_open) else None,
        responses=tuple(answers) if status.responses else None,
        token_usage=ArkTokenUsage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.total_tokens,
            cached_tokens=usage.cached_tokens,
        ),
        conversation_id=status.conversation_id,
        duration=_duration(status),
    )


def in_dialect(status: Status, dialect: Dialect | None, target: ArkTarget | None = None) -> Status | JsonObject:
    """A status for plain Temporal clients: in ARK's dialect, ARK's fields and all other fields of Baton."""
    if dialect != "ark":
        return status
    ark = ark_status(status, target).model_dump(mode="json")
    merged: JsonObject = {**ark, **status.model_dump(mode="json"), "phase": ark["phase"]}
    if isinstance(baton_responses := merged.get("responses"), list) and isinstance(
        ark_responses := ark.get("responses"), list
    ):
        pairs = zip(ark_responses, baton_responses, strict=True)
        merged["responses"] = [{**a, **b} for a, b in pairs if isinstance(a, dict) and isinstance(b, dict)]
    return merged


def _answers(status: Status, target: ArkTarget | None) -> Iterator[ArkResponse]:
    """The answer of every target, or the run's own if it has no targets or failed before any was started."""
    room = MAX_RAW // max(1, len(status.responses))
    if not status.responses:
        yield _answer(target, ARK_PHASES[status.phase], status.message, status.error, status.messages, room)
    for response in status.responses:
        phase = ARK_PHASES[status.phase] if response.status == "Running" else _ENDED[response.status]
        ark_target = ArkTarget(type=response.target.type, name=response.target.name)
        yield _answer(ark_target, phase, response.message, response.error, response.messages, room)


def _answer(
    target: ArkTarget | None, phase: ArkPhase, text: str, error: str | None, messages: Sequence[Message], room: int
) -> ArkResponse:
    raw = [openai_form(message) for message in latest_within(messages, room)] if messages else []
    if error and phase == "error":
        text = error
        raw.append({"error": "target_execution_error", "message": error})
    remote = next((message.remote for message in reversed(messages) if message.remote), None)
    a2a = ArkRemote(context_id=remote.context, task_id=remote.task) if remote else None
    return ArkResponse(target=target, content=text, raw=json.dumps(raw, ensure_ascii=False), phase=phase, a2a=a2a)


def _completed(status: Status, phase: ArkPhase) -> Condition:
    holds, reason, text = _COMPLETED[phase]
    message = status.error or text if phase == "error" else text
    since = status.completion_time or status.start_time
    return Condition(status=holds, reason=reason, message=message, last_transition_time=since)


def _duration(status: Status) -> str | None:
    """The duration of a closed run in whole seconds, in Go's format: ``1m5s``."""
    if not status.completion_time:
        return None
    taken = datetime.fromisoformat(status.completion_time) - datetime.fromisoformat(status.start_time)
    minutes, seconds = divmod(int(taken.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{seconds}s"
