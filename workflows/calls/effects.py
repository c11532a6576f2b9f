"""What does a workflow ask of the world? The effects, with every name, timeout, retry and summary of theirs."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from ...conversation.contracts.panel_requests import BriefRequest, ConcludeRequest, Performed, PerformRequest
from ...conversation.contracts.requests import (
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
from ...conversation.messages.message import Head
from ...conversation.messages.turn import Thread
from ..state.continue_as_new import portions
from .execute_activity import Failed, NotAtOnce, Options, Reply, call, call_at_once
from .task_queues import route

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


HEARTBEAT = timedelta(seconds=2.5)
"""After this long without a sign of life an effect is tried again: its worker has died."""

SOON = timedelta(seconds=1)
"""How long an effect may hold up a workflow task, of which a worker does only some at a time."""

JOURNAL = Options(
    start_to_close_timeout=timedelta(seconds=30),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30)),
)
CALL = Options(
    start_to_close_timeout=timedelta(minutes=5),
    schedule_to_close_timeout=timedelta(minutes=30),
    heartbeat_timeout=HEARTBEAT,
    retry_policy=RetryPolicy(
        initial_interval=timedelta(seconds=0.5), maximum_interval=timedelta(seconds=30), maximum_attempts=4
    ),
)


async def pin(request: PinRequest) -> Pinned:
    """Resolves what the run needs and finds its place in the conversation, within the workflow task where it can.

    A child run takes an activity for it, in which its parent's signals reach it before it asks anybody.
    """
    summary = "resolve and pin the manifests"
    if not request.thread and workflow.patched("pin-at-once"):
        with contextlib.suppress(NotAtOnce):
            return await call_at_once("pin", request, Pinned, SOON, summary)
    return await call("pin", request, Pinned, JOURNAL, summary)


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
    options: Options = {**CALL, "retry_policy": replace(CALL["retry_policy"], maximum_attempts=attempts + MISSED)}
    return await call(name, request, reply, options, f"{summary} · {model}", route().of_model(model))


async def use_tool(request: UseRequest, tool: str, seconds: float | None = None) -> Used:
    """Carries out a tool call, ``seconds`` long at most. Which failures are tried again, the tool decides."""
    speaker = request.speaker.rpartition("/")[2]
    return await call("use_tool", request, Used, _tool_options(seconds), f"{speaker} uses {tool}", route().tools)


def _tool_options(seconds: float | None) -> Options:
    """Long enough for a tool that says by itself when it has waited enough."""
    once = max(CALL["start_to_close_timeout"], timedelta(seconds=(seconds or 0) + 10))
    return {**CALL, "start_to_close_timeout": once, "schedule_to_close_timeout": 6 * once}


async def evaluate(request: EvaluateRequest) -> Evaluated:
    """Judges a team's conditions after a turn."""
    return await call("evaluate", request, Evaluated, JOURNAL, f"conditions after turn {request.turn}")


async def brief(request: BriefRequest, member: str) -> Thread:
    """Puts down what a team is told in a panel."""
    return await call("brief", request, Thread, JOURNAL, f"round {request.brief.round} · what {member} is told")


async def perform(request: PerformRequest) -> Performed:
    """Lets a registered function speak."""
    summary = f"round {request.brief.round} · {request.name} · {request.function}"
    return await call("perform", request, Performed, CALL, summary, route().tools)


async def conclude(request: ConcludeRequest) -> Asked:
    """Puts down what a panel has come to."""
    return await call("conclude", request, Asked, JOURNAL, f"after {request.brief.round} rounds")


async def append(head: Head, items: tuple[Item, ...], bookmark: Bookmark | None = None) -> Head:
    """Puts what joins the conversation on top of a head, in as many requests as that takes; moves a bookmark there."""
    for portion in portions(items) or [()]:
        request = AppendRequest(head=head, items=portion)
        if bookmark:
            request = request.model_copy(update={"bookmark": bookmark})
        head = await call("append", request, Head, JOURNAL, f"{len(portion)} more")
    return head
