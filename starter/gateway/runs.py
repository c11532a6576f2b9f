"""The runs that the gateway starts and shows: durable queries, each owned by the caller that has started it."""

import hashlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.decisions import ApproveRequest, PendingDecision, ReplyRequest
from ...contracts.message import Head, PersonDecision
from ...contracts.settings import SettingsError
from ...contracts.status import Status
from ...resources.base import API_VERSION, JsonModel, JsonObject
from ...resources.manifest import Metadata
from ...resources.query import Query, QuerySpec
from ...temporal.executions import delete_execution, memo_of, run_tree
from ..history.events import Event, WaitEndedEvent
from ..history.status import current_status
from ..history.stream import stream_events
from ..runs import control
from ..runs.decisions import NotDecided, all_pending_decisions, decide, pending_decisions, reply
from ..runs.listing import ListedRun, recent_runs
from ..runs.runs import NotServedError, RunHandle, closed_status, final_status
from ..runs.start import inline_start, original_input, start_run
from .access import Caller
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

MAX_KEY = 255
"""Characters of an idempotency key."""


class Question(JsonModel):
    """What a target is asked; the fields are those of a Query's ``spec``, with ``type: messages`` for a list.

    ``after`` is the exact place in an earlier run's conversation that the question follows. ``session`` are initial
    values of the run's session.
    """

    input: str | list[JsonObject]
    parameters: dict[str, str] = {}
    conversation: str | None = None
    timeout: str | None = None
    budget: JsonObject | None = None
    session: JsonObject = {}
    after: Head | None = None

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
            "conversationId": self.conversation,
            "timeout": self.timeout,
            "budget": self.budget,
        }
        given = {name: value for name, value in fields.items() if value not in (None, [])}
        try:
            spec = QuerySpec.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            reason = first["msg"].removeprefix("Value error, ")
            raise BadRequestError(f"{place}: {reason}", param=place) from None
        metadata = Metadata(name=target.name, namespace=target.namespace)
        return Query(api_version=API_VERSION, kind="Query", metadata=metadata, spec=spec)


@dataclass(frozen=True)
class Started:
    """A started run; ``is_new`` is False if an earlier request with the same key has started it."""

    run: "Run"
    is_new: bool


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

    async def pending(self) -> list[PendingDecision]:
        """What the run waits for people to decide, the oldest first."""
        return await pending_decisions(self._client, self.id, self.handle.run_id)

    async def steer(self, text: str) -> None:
        """Sends the caller's message into the discussion. Raises ConflictError."""
        with _refusals():
            await control.steer(self._client, self.handle, text, self._caller.name)

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

    async def delete(self) -> None:
        """Deletes the ended run and its child runs from Temporal. Raises ConflictError if the run is open.

        ``baton prune`` deletes the rows of its conversation in the journal, unless another run continues it.
        """
        description = await self.describe()
        if description.status in (None, WorkflowExecutionStatus.RUNNING):
            raise ConflictError(f"{self.id} has not ended: cancel it first")
        # The root comes last: until all are deleted, the same request finds the rest.
        for execution in reversed(await run_tree(self._client, self.id, description.run_id)):
            await delete_execution(self._client, execution)

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
    ) -> PersonDecision:
        """Approves or rejects a call; the same decision of the same caller again has no further effect.

        Raises ConflictError if the call is not pending, or was decided otherwise.
        """
        request = ApproveRequest(
            call=call,
            approved=approved,
            arguments=arguments,
            reason=reason,
            remember=remember,
            by=self._caller.name,
        )
        try:
            return await decide(self._client, self.handle, request)
        except (NotDecided, NotServedError) as error:
            outcome = "approved" if approved else "rejected"
            return await self._decided_before(call, outcome, None if approved else reason, error)

    async def reply(self, text: str, to: str | None = None, *, declines: bool = False) -> PersonDecision:
        """Replies to the question ``to``, or to the only one, or declines it; the same again has no further effect.

        Raises ConflictError if the question is not pending, was answered otherwise, or the reply is invalid.
        """
        request = ReplyRequest(text=text, to=to, by=self._caller.name, declines=declines)
        try:
            return await reply(self._client, self.handle, request)
        except (NotDecided, NotServedError) as error:
            if to is None:
                raise ConflictError(str(error)) from None
            return await self._decided_before(to, "declined" if declines else "replied", text, error)

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
        question: Question,
        *,
        protocol: str,
        key: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> Started:
        """Starts a run. With an idempotency ``key``, the run of an earlier request with that key is returned.

        ``more`` are more entries of the run's memo: what its protocol has to know when the run is found again.

        The run is durable before this returns. Raises BadRequestError, ConflictError if the key was used with another
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
            **(more or {}),
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
        memo = own if key is None else await memo_of(await handle.describe())
        if memo.get(REQUEST) != digest:
            raise ConflictError("this idempotency key was used with another request")
        return Started(Run(self._client, handle, memo, caller, self._environ), is_new=True)

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

    async def newest(self, caller: Caller, limit: int) -> Sequence[ListedRun]:
        """The newest runs that the caller may see."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            return await self._may_see(caller, memo)

        return await recent_runs(self._client, None, limit, self._queue, visible=is_visible)

    async def inbox(self, caller: Caller) -> list[tuple[str, PendingDecision]]:
        """All that waits for people in runs that the caller may see, with the ids of these runs."""

        async def is_visible(memo: Mapping[str, object]) -> bool:
            return await self._may_see(caller, memo)

        return (await all_pending_decisions(self._client, queue=self._queue, visible=is_visible)).decisions

    async def _may_see(self, caller: Caller, memo: Mapping[str, object]) -> bool:
        if caller.sees_all or is_owner(caller, memo):
            return True
        namespace = memo.get("namespace")
        return isinstance(namespace, str) and caller.may_see_all_of(await self._targets.catalog(), namespace)


def is_owner(caller: Caller, memo: Mapping[str, object]) -> bool:
    """Whether a caller has started the run with that memo."""
    return memo.get(CALLER) == caller.name and memo.get(ACCOUNT) == str(caller.account)


def _no_run(run_id: str) -> NotFoundError:
    return NotFoundError(f"there is no run '{run_id[:200]}', or you may not see it")
