"""The runs that the gateway starts and shows: durable queries, each owned by the caller that has started it."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.decisions import ApproveRequest, GiveResultRequest, PendingDecision, ReplyRequest
from ...contracts.message import Head, PersonDecision
from ...contracts.settings import SettingsError
from ...contracts.status import Status
from ...resources.agent import Agent
from ...resources.base import API_VERSION, JsonModel, JsonObject
from ...resources.client import ClientRequest, ClientSettings, ClientTool
from ...resources.manifest import Metadata
from ...resources.problems import explain_errors
from ...resources.query import Query, QuerySpec
from ...temporal.executions import delete_execution, memo_of, run_tree
from ..history.events import Event, RunEndedEvent, WaitEndedEvent, WaitStartedEvent
from ..history.status import current_status
from ..history.stream import stream_events
from ..runs import control
from ..runs.decisions import (
    NotDecided,
    all_pending_decisions,
    decide,
    give_result,
    has_taken,
    pending_decisions,
    reply,
)
from ..runs.listing import ListedRun, recent_runs
from ..runs.runs import NotServedError, RunHandle, closed_status, final_status
from ..runs.start import inline_start, manifest_of_run, original_input, start_run
from .access import LOCAL, Caller
from .errors import BadRequestError, ConflictError, NotFoundError
from .targets import ServedTarget, Targets

CALLER = "caller"
"""The memo entry of a run with the name of the caller that has started it."""

ACCOUNT = "account"
"""The memo entry with the caller's ServiceAccount. Both together are the owner."""

PROTOCOL = "protocol"
"""The memo entry with the protocol by which it was started, such as ``responses``."""

REQUEST = "request"
"""The memo entry with the digest of the request, by which a repeated one is told from another with the same key."""

ID_BYTES = 18
"""Random bytes in the id of a run that has no idempotency key."""

DELETION_SECONDS = 20.0
"""Seconds for which a deletion waits until Temporal has carried it out, which it does a moment later."""

POLL_SECONDS = 0.1

MAX_CONVERSATION = 255
"""Characters of the id of a conversation."""

MAX_KEY = 255
"""Characters of an idempotency key."""


OWN_WAITS = frozenset({"circuit", "outage", "pause"})
"""The kinds of waits that end without a decision."""

LISTED_ATTEMPTS = 20
LISTED_INTERVAL = 0.1
"""How often, and after how many seconds each, a wait is looked for in the status of a run, whose events have it."""


class TargetQuestion(JsonModel):
    """What a target is asked; the fields are those of a Query's ``spec``, with ``type: messages`` for a list.

    ``after`` is the exact place in an earlier run's conversation that the question follows. ``session`` are initial
    values of the run's session. ``tools`` are executed by the client: see ``Run.give_result``. ``settings`` are those
    that it chooses for the agent, as in ``ClientSettings``; null stands for none.
    """

    input: str | list[JsonObject]
    parameters: dict[str, str] = {}
    conversation: str | None = None
    timeout: str | None = None
    budget: JsonObject | None = None
    session: JsonObject = {}
    after: Head | None = None
    tools: list[ClientTool] = []
    settings: JsonObject = {}

    @property
    def digest(self) -> str:
        """The SHA-256 of the question."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def query(self, target: ServedTarget, caller: Caller) -> Query:
        """The query that asks a target with the rights of a caller. Raises BadRequestError."""
        fields: dict[str, Any] = {
            "type": "user" if isinstance(self.input, str) else "messages",
            "input": self.input,
            "targets": [{"type": target.kind, "name": target.name}],
            "serviceAccount": {"name": caller.account.name, "namespace": caller.account.namespace},
            "parameters": [{"name": name, "value": value} for name, value in self.parameters.items()],
            "conversationId": conversation_of(caller, self.conversation) if self.conversation else None,
            "timeout": self.timeout,
            "budget": self.budget,
            "client": self._client,
        }
        given = {name: value for name, value in fields.items() if value not in (None, [])}
        try:
            spec = QuerySpec.model_validate(given)
        except ValidationError as error:
            path, reason = next(explain_errors(error, QuerySpec))
            place = _place_of_client(path[1:]) if path[:1] == ("client",) else ".".join(map(str, path))
            raise BadRequestError(f"{place}: {reason}", param=place) from None
        if spec.client:
            self._check_client(spec.client, target)
        metadata = Metadata(name=target.name, namespace=target.namespace)
        return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=spec)

    @property
    def _client(self) -> JsonObject | None:
        """What the caller brings, as a Query has it; None if that is nothing. Raises BadRequestError."""
        settings: JsonObject = {name: value for name, value in self.settings.items() if value is not None}
        known = {field.alias or name for name, field in ClientSettings.model_fields.items()}
        if unknown := next((name for name in settings if to_camel(name) not in known), None):
            raise BadRequestError(f"{unknown}: this setting is not known here", param=unknown)
        if not self.tools and not settings:
            return None
        return {"tools": [tool.model_dump(mode="json") for tool in self.tools], "settings": settings}

    def _check_client(self, client: ClientRequest, target: ServedTarget) -> None:
        """Raises BadRequestError for what the target does not allow, as the start of the run would."""
        agent = target.manifest
        if not isinstance(agent, Agent):
            if client.offered_tools or client.settings.chosen_of_agent:
                raise BadRequestError(f"{target.id} is a team: only agents take tools and settings", param="model")
            return
        for path, reason in [*agent.refusals(client), *agent.colliding_tools(client)]:
            place = _place_of_client(path)
            raise BadRequestError(f"{place}: {reason}", param=place)


def _place_of_client(path: Sequence[str | int]) -> str:
    """The place in a question of what its caller brings, such as ``top_p`` or ``tools.0.name``."""
    parts = path[1:] if path[:1] == ("settings",) else path
    return ".".join(to_snake(str(part)) for part in parts)


@dataclass(frozen=True)
class Started:
    """A started run; ``is_new`` is False if an earlier request with the same key has started it."""

    run: "Run"
    is_new: bool


@dataclass(frozen=True)
class RunWaits:
    """A run waits for people, or for its client: for ``decisions``, all that is undecided in it, the oldest first."""

    decisions: Sequence[PendingDecision]


class Run:
    """A run that the caller may see and control."""

    def __init__(
        self, client: Client, handle: RunHandle, memo: Mapping[str, object], caller: Caller, environ: Mapping[str, str]
    ) -> None:
        self._client = client
        self._caller = caller
        self._environ = environ
        self.handle = handle
        self.memo = memo

    @property
    def id(self) -> str:
        """The id of the run: that of its workflow."""
        return self.handle.id

    async def manifest(self) -> JsonObject:
        """The manifest of its query, without a status."""
        run_id = (await self.describe()).run_id
        return await manifest_of_run(self._client, self.handle.id, run_id)

    async def delete(self) -> None:
        """Cancels the run if it is open, waits for its end, and deletes it in Temporal, with its child runs.

        What the journal has of it is deleted by the next ``baton prune``. Notifications are delivered nevertheless.
        """
        await self.cancel("deleted")
        await self.result()
        run_id = (await self.describe()).run_id
        for execution in reversed(await run_tree(self._client, self.id, run_id)):
            if execution.type != "notify":
                await delete_execution(self._client, execution)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DELETION_SECONDS):
                while await self._exists():
                    await asyncio.sleep(POLL_SECONDS)

    async def _exists(self) -> bool:
        try:
            await self.describe()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            return False
        return True

    async def describe(self) -> WorkflowExecutionDescription:
        """Temporal's description of the run."""
        return await self.handle.describe()

    async def is_open(self) -> bool:
        """Whether the run has not ended."""
        return (await self.describe()).status in (None, WorkflowExecutionStatus.RUNNING)

    async def status(self) -> Status:
        """The current status, or the final one. Raises NotServedError if no worker can tell."""
        if await self.is_open():
            return await current_status(self._client, self.handle)
        return await self.result()

    async def result(self) -> Status:
        """Waits for the end of the run and returns its final status."""
        try:
            return await final_status(self._client, self.handle)
        except NotServedError:
            return await closed_status(self.handle)

    def events(
        self, after: str | None = None, *, wait: bool = True, live: bool = True, depth_first: bool = False
    ) -> AsyncGenerator[Event, None]:
        """The events of the run after a cursor, as ``stream_events`` yields them."""
        return stream_events(
            self._client,
            self.handle,
            after,
            wait=wait,
            live=live,
            depth_first=depth_first,
            environment=self._environ,
        )

    async def question(self) -> str | list[JsonObject]:
        """The input with which the run was started."""
        run_id = self.handle.run_id or (await self.describe()).run_id
        _, run_input = await original_input(self._client, self.id, run_id)
        spec = run_input.get("spec")
        asked = spec.get("input") if isinstance(spec, dict) else None
        return [item for item in asked if isinstance(item, dict)] if isinstance(asked, list) else str(asked or "")

    async def has_taken(self, request: str) -> bool:
        """Whether the run, or one below it, has carried out the message, decision or reply with that ``request`` id."""
        return await has_taken(self._client, self.handle, request)

    async def pending(self) -> list[PendingDecision]:
        """What the run waits for people to decide, and calls of the client's tools, the oldest first."""
        return await pending_decisions(self._client, self.id, self.handle.run_id)

    async def undecided(self, waits: Collection[str] = ()) -> list[PendingDecision]:
        """What nobody has decided yet, once one of ``waits`` is among it, or else after a moment.

        A child run may have told its events that it waits, but not the run above.
        """
        for _ in range(LISTED_ATTEMPTS):
            undecided = [decision for decision in await self.pending() if decision.decision is None]
            if not waits or any(decision.id in waits for decision in undecided):
                break
            await asyncio.sleep(LISTED_INTERVAL)
        return undecided

    async def events_until_waiting(
        self, after: str | None = None, *, live: bool = True
    ) -> "AsyncGenerator[Event | RunWaits, None]":
        """The events of the run after a cursor, to its end, or until it waits for people: then RunWaits is the last."""
        waits: set[str] = set()
        place = after
        async with contextlib.aclosing(self.events(after, wait=False, live=False)) as existing:
            async for event in existing:  # from them it is known which waits have ended
                place = event.cursor or place
                _note_wait(waits, event)
                yield event
                if isinstance(event, RunEndedEvent) and event.run == self.id:
                    return
        may_wait = waits or (after is not None and await self.is_open())
        if may_wait and (undecided := await self.undecided(waits)):
            yield RunWaits(undecided)
            return
        async with contextlib.aclosing(self.events(place, live=live)) as following:
            async for event in following:
                _note_wait(waits, event)
                yield event
                is_wait = isinstance(event, WaitStartedEvent) and event.wait in waits
                if is_wait and (undecided := await self.undecided(waits)):
                    yield RunWaits(undecided)
                    return

    async def steer(self, text: str, *, request: str | None = None) -> None:
        """Sends the caller's message into the discussion, once for a ``request`` id. Raises ConflictError."""
        with _refusals():
            await control.steer(self._client, self.handle, text, self._caller.name, request)

    async def pause(self) -> None:
        """Pauses the run. Raises ConflictError."""
        with _refusals():
            await control.pause(self.handle, self._caller.name)

    async def resume(self) -> None:
        """Resumes the run. Raises ConflictError."""
        with _refusals():
            await control.resume(self.handle, self._caller.name)

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run after the current turn, or ``now``; does nothing if it has ended."""
        await _unless_ended(control.terminate(self.handle, reason, now=now, by=self._caller.name))

    async def cancel(self, reason: str = "") -> None:
        """Cancels the run; does nothing if it has ended."""
        await _unless_ended(control.cancel(self.handle, reason, by=self._caller.name))

    async def input(self) -> QuerySpec:
        """What the run was asked."""
        run_id = self.handle.run_id or (await self.describe()).run_id
        _, run_input = await original_input(self._client, self.id, run_id)
        return QuerySpec.model_validate(run_input.get("spec"))

    async def decide(
        self,
        call: str,
        *,
        approved: bool,
        arguments: JsonObject | None = None,
        reason: str = "",
        remember: bool = False,
        request: str | None = None,
    ) -> PersonDecision:
        """Approves or rejects a call; the same decision of the same caller again has no further effect.

        ``request`` is an id by which ``has_taken`` knows it. Raises ConflictError if the call is not pending, or was
        decided otherwise.
        """
        approval = ApproveRequest(
            call=call,
            approved=approved,
            arguments=arguments,
            reason=reason,
            remember=remember,
            by=self._caller.name,
        )
        try:
            return await decide(self._client, self.handle, approval, request)
        except (NotDecided, NotServedError) as error:
            outcome = "approved" if approved else "rejected"
            return await self._decided_before(call, outcome, None if approved else reason, error)

    async def reply(
        self, text: str, to: str | None = None, *, declines: bool = False, request: str | None = None
    ) -> PersonDecision:
        """Replies to the question ``to``, or to the only one, or declines it; the same again has no further effect.

        ``request`` is an id by which ``has_taken`` knows it. Raises ConflictError if the question is not pending, was
        answered otherwise, or the reply is invalid.
        """
        sent = ReplyRequest(text=text, to=to, by=self._caller.name, declines=declines)
        try:
            return await reply(self._client, self.handle, sent, request)
        except (NotDecided, NotServedError) as error:
            if to is None:
                raise ConflictError(str(error)) from None
            return await self._decided_before(to, "declined" if declines else "replied", text, error)

    async def give_result(self, call: str, output: str) -> PersonDecision:
        """Gives what the caller's tool has returned for a call; the same result again has no further effect.

        Raises ConflictError if the call does not wait for it, or has got another result, or if the result is too large.
        """
        request = GiveResultRequest(call=call, output=output, by=self._caller.name)
        try:
            return await give_result(self._client, self.handle, request)
        except (NotDecided, NotServedError) as error:
            async for event in self.events(wait=False, live=False):
                if isinstance(event, WaitEndedEvent) and event.wait == call and event.digest == request.digest:
                    return request.decision(event.at).to_remember()
            raise ConflictError(str(error)) from None

    async def _decided_before(self, decision: str, outcome: str, text: str | None, error: Exception) -> PersonDecision:
        """The caller's own earlier decision, if it is the same: its response may have been lost."""
        async for event in self.events(wait=False, live=False):
            if isinstance(event, WaitEndedEvent) and event.wait == decision:
                said = event.text if outcome == "replied" else event.reason
                same = event.outcome == outcome and event.by == self._caller.name
                if same and (text or None) in (None, said):
                    return PersonDecision(
                        approved=outcome in ("approved", "replied"), at=event.at, by=event.by, reason=event.reason or ""
                    )
        raise ConflictError(str(error)) from None


def prompt_of(decision: PendingDecision) -> str:
    """What a person is asked who decides."""
    if decision.kind == "approval":
        return f"May {decision.speaker} call {decision.tool} with {decision.arguments}?"
    if decision.kind == "budget":
        return f"May the budget of {decision.speaker} be raised by {decision.arguments}?"
    return decision.question or f"What does {decision.speaker} reply?"


def _note_wait(waits: set[str], event: Event) -> None:
    """Adds a wait for a person that has started to the open ones, or removes one that has ended."""
    if isinstance(event, WaitStartedEvent) and event.kind not in OWN_WAITS:
        waits.add(event.wait)
    elif isinstance(event, WaitEndedEvent):
        waits.discard(event.wait)


class _refusals:  # noqa: N801  # a context manager
    """Raises ConflictError for a request that a run rejects."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, control.RunEndedError | control.RejectedError | NotServedError):
            raise ConflictError(str(error)) from None


async def _unless_ended(request: Any) -> None:
    try:
        await request
    except control.RunEndedError:
        return


class Runs:
    """Starts and finds runs for callers."""

    def __init__(self, client: Client, targets: Targets, environ: Mapping[str, str] = os.environ) -> None:
        self._client = client
        self._targets = targets
        self._queue = environ.get("BATON_TASK_QUEUE")
        self._environ = environ

    async def start(
        self,
        caller: Caller,
        target: ServedTarget,
        question: TargetQuestion,
        *,
        protocol: str,
        key: str | None = None,
        memo: Mapping[str, str] | None = None,
    ) -> Started:
        """Starts a run. With an idempotency ``key``, the run of an earlier request with that key is returned.

        ``memo`` are entries of the protocol in the run's memo. The run is durable before this returns. Raises
        BadRequestError, ConflictError if the key was used with another
        request, and RPCError.
        """
        if key is not None and not 0 < len(key) <= MAX_KEY:
            raise BadRequestError(f"an idempotency key has 1 to {MAX_KEY} characters")
        query = question.query(target, caller)
        start = inline_start(query, question.session)
        if question.after:
            start = start.after(question.after)
        digest = hashlib.sha256(f"{protocol}\n{target.id}\n{question.digest}".encode()).hexdigest()[:32]
        own = {
            **(memo or {}),
            CALLER: caller.name,
            ACCOUNT: str(caller.account),
            PROTOCOL: protocol,
            REQUEST: digest,
        }
        run_id = self.id_of(caller, target, key)
        try:
            handle = await start_run(self._client, start.with_memo(own), run_id, task_queue=self._queue, once=True)
        except WorkflowAlreadyStartedError:  # it has ended
            handle = self._client.get_workflow_handle(run_id)
        stored = own if key is None else await memo_of(await handle.describe())
        if stored.get(REQUEST) != digest:
            raise ConflictError("this idempotency key was used with another request")
        return Started(Run(self._client, handle, stored, caller, self._environ), is_new=True)

    async def create(self, caller: Caller, query: Query, *, protocol: str) -> Run:
        """Starts the run of a query that a client has named. The run is durable before this returns.

        Raises ConflictError if the caller has a query of that name in its namespace, and RPCError.
        """
        own = {CALLER: caller.name, ACCOUNT: str(caller.account), PROTOCOL: protocol}
        start = inline_start(query).with_memo(own)
        run_id = named_id(caller, query.namespace, query.name)
        try:
            handle = await start_run(self._client, start, run_id, task_queue=self._queue, joins=False, once=True)
        except WorkflowAlreadyStartedError:
            raise ConflictError(f"query '{query.name}' already exists in namespace {query.namespace}") from None
        return Run(self._client, handle, start.memo, caller, self._environ)

    async def find_named(self, caller: Caller, namespace: str, name: str) -> Run:
        """The run of the query that the caller has named so. Raises NotFoundError."""
        try:
            return await self.find(caller, named_id(caller, namespace, name))
        except NotFoundError:
            text = f"query '{name[:200]}' not found in namespace {namespace[:200]}"
            raise NotFoundError(text) from None

    def id_of(self, caller: Caller, target: ServedTarget, key: str | None) -> str:
        """The id of a run: random, or derived from an idempotency key of the caller. It can't be guessed."""
        if key is None:
            return f"{target.name}-{secrets.token_hex(ID_BYTES)}"
        text = f"{caller.account}\n{caller.name}\n{key}"
        return f"{target.name}-{hashlib.sha256(text.encode()).hexdigest()[: 2 * ID_BYTES]}"

    async def find(self, caller: Caller, run_id: str) -> Run:
        """The root run with that id. Raises NotFoundError, also if the caller may not see it."""
        handle = self._client.get_workflow_handle(run_id)
        try:
            description = await handle.describe()
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise _no_run(run_id) from None
        try:
            memo = await memo_of(description)
        except SettingsError:
            raise _no_run(run_id) from None
        if not await self._may_see(caller, memo):
            raise _no_run(run_id)
        return Run(self._client, handle, memo, caller, self._environ)

    async def conversation(self, caller: Caller, name: str) -> str:
        """The id of a caller's conversation, of which the id of the run that has begun it is a name, too."""
        try:
            return (await self.find(caller, name)).id
        except NotFoundError:
            return conversation_of(caller, name)

    async def newest(
        self, caller: Caller, limit: int, matches: Callable[[Mapping[str, object]], bool] = lambda _: True
    ) -> Sequence[ListedRun]:
        """The newest runs that the caller may see, whose memo ``matches``."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            return matches(memo) and await self._may_see(caller, memo)

        return await recent_runs(self._client, None, limit, self._queue, visible=is_visible)

    async def newest_named(self, caller: Caller, namespace: str, protocol: str, limit: int) -> Sequence[ListedRun]:
        """The newest runs of queries in a namespace that the caller has named, by a protocol."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            return is_owner(caller, memo) and memo.get(PROTOCOL) == protocol

        return await recent_runs(self._client, namespace, limit, self._queue, visible=is_visible)

    async def inbox(self, caller: Caller) -> list[tuple[str, PendingDecision]]:
        """All that waits for people in runs that the caller may see, with the ids of these runs."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            return await self._may_see(caller, memo)

        waiting = await all_pending_decisions(self._client, queue=self._queue, visible=is_visible)
        return [(run, decision) for run, decision in waiting.decisions if decision.kind != "client_tool"]

    async def _may_see(self, caller: Caller, memo: Mapping[str, object]) -> bool:
        if caller.sees_all or is_owner(caller, memo):
            return True
        namespace = memo.get("namespace")
        return isinstance(namespace, str) and caller.may_see_all_of(await self._targets.catalog(), namespace)


def named_id(caller: Caller, namespace: str, name: str) -> str:
    """The id of the run of a query that a caller has named: another caller may use the same name."""
    text = f"{caller.account}\n{caller.name}\n{namespace}/{name}"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[: 2 * ID_BYTES]}"


def conversation_of(caller: Caller, name: str) -> str:
    """The id of a caller's conversation: whoever knows the name of another's conversation must not read it.

    That of this machine's own caller is the name itself, as for the command line.
    """
    own = f"{caller.account}/{caller.name}/"
    if caller == LOCAL or name.startswith(own):
        return name
    scoped = f"{own}{name}"
    return scoped if len(scoped) <= MAX_CONVERSATION else hashlib.sha256(scoped.encode()).hexdigest()


def is_owner(caller: Caller, memo: Mapping[str, object]) -> bool:
    """Whether a caller has started the run with that memo."""
    return memo.get(CALLER) == caller.name and memo.get(ACCOUNT) == str(caller.account)


def _no_run(run_id: str) -> NotFoundError:
    return NotFoundError(f"there is no run '{run_id[:200]}', or you may not see it")
