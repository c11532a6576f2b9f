"""What does a workflow ask of the world? The effects, with every name, timeout, retry and summary of theirs."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TypedDict, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.exceptions import TimeoutError as ActivityTimeout

from conversation.briefs import BriefRequest, ConcludeRequest, Performed, PerformRequest
from conversation.errors import CallTimeout
from conversation.failure import BatonError, Failure
from conversation.message import Head
from conversation.requests import (
    MISSED,
    AppendRequest,
    Asked,
    AskRequest,
    Bookmark,
    Evaluated,
    EvaluateRequest,
    Item,
    Pinned,
    PinRequest,
    Selected,
    SelectRequest,
    Used,
    UseRequest,
)
from conversation.turn import Thread
from resources.base import Plain
from workflows.carrying import portions
from workflows.route import priority, route

Reply = TypeVar("Reply", bound=Plain)


class Interrupted(Exception):
    """An effect was given up because its run is to stop."""


class Failed(Exception):
    """An effect failed for good."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.message)

    @classmethod
    def by(cls, error: BatonError) -> "Failed":
        """A failure that the workflow itself has found."""
        return cls(error.as_failure())


FALLS_BACK = ("ModelError", "AuthenticationError", "TimeoutError")
"""The families of failures of a model after which the next one is asked."""


async def first_answer(models: tuple[str, ...], ask: Callable[[int], Awaitable[Reply]]) -> Reply:
    """Asks a model, and where it fails for good the next one; ``ask`` gets a model's place."""
    for fallback in range(len(models)):
        try:
            return await ask(fallback)
        except Failed as failed:
            if fallback == len(models) - 1 or failed.failure.family not in FALLS_BACK:
                raise
    raise AssertionError("there is always a model")


class _Options(TypedDict, total=False):
    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy


HEARTBEAT = timedelta(seconds=2.5)
"""After this long without a sign of life an effect is tried again: its worker has died."""

JOURNAL = _Options(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
CALL = _Options(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)


async def pin(request: PinRequest) -> Pinned:
    """Resolves what the run needs and finds its place in the conversation."""
    return await _effect("pin", request, Pinned, JOURNAL, "resolve and pin the manifests")


async def ask_model(request: AskRequest, models: tuple[str, ...]) -> Asked:
    """Lets an agent's model speak, or the fallback that the request names."""
    speaker, brief = request.speaker.rpartition("/")[2], request.brief
    place = f"round {brief.round}" if brief else f"turn {request.turn}"
    return await _ask("ask_model", request, Asked, models, f"{place} · {speaker}")


async def select(request: SelectRequest, models: tuple[str, ...]) -> Selected:
    """Lets a team's selector choose who speaks next."""
    summary = f"who takes turn {request.turn}? · {request.team.rpartition('/')[2]}"
    return await _ask("select", request, Selected, models, summary)


async def _ask(
    name: str, request: AskRequest | SelectRequest, reply: type[Reply], models: tuple[str, ...], summary: str
) -> Reply:
    """Asks a model: where no other is left, for a minute and a half at least; else 15 seconds are enough."""
    model, attempts = models[request.fallback], 10 if request.fallback == len(models) - 1 else 6
    options: _Options = {**CALL, "retry_policy": replace(CALL["retry_policy"], maximum_attempts=attempts + MISSED)}
    return await _effect(name, request, reply, options, f"{summary} · {model}", route().of_model(model))


async def use_tool(request: UseRequest, tool: str, seconds: float | None = None) -> Used:
    """Carries out a tool call, ``seconds`` long at most. Which failures are tried again, the tool decides."""
    speaker = request.speaker.rpartition("/")[2]
    return await _effect("use_tool", request, Used, _tool_options(seconds), f"{speaker} uses {tool}", route().tools)


def _tool_options(seconds: float | None) -> _Options:
    """Long enough for a tool that says by itself when it has waited enough."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))
    return {**CALL, "start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}


async def evaluate(request: EvaluateRequest) -> Evaluated:
    """Judges a team's conditions after a turn."""
    return await _effect("evaluate", request, Evaluated, JOURNAL, f"conditions after turn {request.turn}")


async def brief(request: BriefRequest, member: str) -> Thread:
    """Puts down what a team is told in a panel."""
    return await _effect("brief", request, Thread, JOURNAL, f"round {request.brief.round} · what {member} is told")


async def perform(request: PerformRequest) -> Performed:
    """Lets a registered function speak."""
    summary = f"round {request.brief.round} · {request.name} · {request.function}"
    return await _effect("perform", request, Performed, CALL, summary, route().tools)


async def conclude(request: ConcludeRequest) -> Asked:
    """Puts down what a panel has come to."""
    return await _effect("conclude", request, Asked, JOURNAL, f"after {request.brief.round} rounds")


async def append(head: Head, items: tuple[Item, ...], bookmark: Bookmark | None = None) -> Head:
    """Puts what joins the conversation on top of a head, in as many requests as that takes; moves a bookmark there."""
    for portion in portions(items) or [()]:
        request = AppendRequest(head=head, items=portion)
        if bookmark:
            request = request.model_copy(update={"bookmark": bookmark})
        head = await _effect("append", request, Head, JOURNAL, f"{len(portion)} more")
    return head


async def _effect(
    name: str, request: Plain, reply: type[Reply], options: _Options, summary: str, queue: str | None = None
) -> Reply:
    """Has an activity done, on a task queue of its own or on the run's."""
    try:
        async with workflow.instance().free:
            result: Reply = await workflow.execute_activity(
                name, request, result_type=reply, summary=summary, task_queue=queue, priority=priority(), **options
            )
            return result
    except ActivityError as error:
        raise _meaning(error, name) from None


def _meaning(error: ActivityError, name: str) -> Interrupted | Failed:
    cause = error.cause
    if isinstance(cause, CancelledError):
        return Interrupted()
    if isinstance(cause, ActivityTimeout):
        return Failed.by(CallTimeout(f"{name} took too long: {cause.message}"))
    if isinstance(cause, ApplicationError) and cause.type:
        family = str(cause.details[0]) if cause.details else _FAMILY[name]
        return Failed(Failure(family=family, type=cause.type, message=cause.message))
    return Failed(Failure(family=_FAMILY[name], type="ActivityError", message=str(cause or error)))


_FAMILY = {"pin": "MemoryError", "ask_model": "ModelError", "use_tool": "ToolError", "append": "MemoryError"}
_FAMILY |= {"select": "ModelError", "evaluate": "ValidationError", "brief": "MemoryError", "conclude": "MemoryError"}
_FAMILY["perform"] = "ToolError"
