"""A run of the gateway, as the caller who may see it reads and controls it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from ...contracts.decisions import ApproveRequest, GiveResultRequest, PendingDecision, ReplyRequest
from ...contracts.identity import Identity, IdentityKeys
from ...contracts.message import PersonDecision
from ...contracts.status import Status
from ...contracts.text import full_length
from ...observability.run_log import Fields, log_event
from ...resources.base import JsonObject
from ...resources.catalog import Catalog
from ...resources.query import QuerySpec
from ...temporal.executions import delete_execution, delete_pushes, run_tree
from ..history.difference import Difference, MayRead, compare_runs
from ..history.events import Event, RunEndedEvent, RunStartedEvent, WaitEndedEvent, WaitStartedEvent
from ..history.pages import Page, first_runs, page_after, page_before, page_from
from ..history.status import current_status
from ..history.stream import stream_events
from ..runs import control
from ..runs.decisions import NotDecided, decide, earlier_decision, give_result, has_taken, pending_decisions, reply
from ..runs.runs import NotServedError, RunHandle, final_status, result_status
from ..runs.start import manifest_of_run, original_input, readable_manifests_of_run
from .access import Caller
from .errors import ConflictError, NotFoundError, UnavailableError
from .owners import signed_act

DELETION_SECONDS = 20.0
"""Seconds for which a deletion waits for the end of an open run, and then for Temporal to carry the deletion out."""

DELETE_AGAIN_SECONDS = 5
"""Seconds after which a client may repeat a deletion that is not finished."""

POLL_SECONDS = 0.1

OWN_WAITS = frozenset({"circuit", "outage", "pause", "quota"})
"""The kinds of waits that end without a decision."""

MAX_PAIRS = 1_000
"""The most pairs of steps in the difference between two runs."""

CONCURRENT_QUERIES = 10
"""The number of runs below one that are asked at once what they wait for."""

LISTED_ATTEMPTS = 20
LISTED_INTERVAL = 0.1
"""How often, and after how many seconds each, a run is asked for a wait that its events have already."""


@dataclass(frozen=True)
class RunWaits:
    """A run waits for people, or for its client: for ``decisions``, all that is undecided in it, the oldest first."""

    decisions: Sequence[PendingDecision]


class Run:
    """A run that the caller may see and control."""

    def __init__(
        self,
        client: Client,
        handle: RunHandle,
        memo: Mapping[str, object],
        caller: Caller,
        environ: Mapping[str, str],
        spec: QuerySpec | None = None,
    ) -> None:
        self._client = client
        self._caller = caller
        self._environ = environ
        self._spec = spec
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

    async def inline_manifests(self) -> Catalog:
        """The manifests with which it was started; of a fork, also those of the forked runs."""
        run_id = self.handle.run_id or (await self.describe()).run_id
        return await readable_manifests_of_run(self._client, self.id, run_id)

    async def delete(self) -> None:
        """Cancels the run if it is open, waits for its end, and deletes it in Temporal, with its child runs.

        What the journal has of it is deleted by the next ``baton prune``. Notifications are delivered nevertheless.

        Raises UnavailableError if it is not finished in time, as without a worker that ends the run: the same again
        finishes it. Nothing is deleted before the run has ended.
        """
        await self.cancel("deleted")
        try:
            async with asyncio.timeout(DELETION_SECONDS):
                await self._end()
        except TimeoutError:
            text = f"the run {self.id} is canceled but has not ended yet: delete it again once a worker has ended it"
            raise UnavailableError(text, retry_after=DELETE_AGAIN_SECONDS) from None
        run_id = (await self.describe()).run_id
        for execution in reversed(await run_tree(self._client, self.id, run_id)):
            if execution.type != "notify":
                await delete_execution(self._client, execution.workflow_id, execution.run_id)
        await delete_pushes(self._client, self.id)
        try:
            async with asyncio.timeout(DELETION_SECONDS):
                while await self._exists():
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            text = f"Temporal has accepted the deletion of the run {self.id}, but not carried it out yet"
            raise UnavailableError(text, retry_after=DELETE_AGAIN_SECONDS) from None

    async def _end(self) -> None:
        """Waits for the end of the run, whatever its result is."""
        with contextlib.suppress(WorkflowFailureError):
            await self.handle.result()

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
        return await final_status(self._client, self.handle)

    async def stored_status(self) -> Status | None:
        """The final status as Temporal has it, for which no worker is needed; None while the run is open."""
        return None if await self.is_open() else await result_status(self.handle)

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

    async def page(
        self,
        count: int,
        *,
        before: str | None = None,
        after: str | None = None,
        turn: int | None = None,
        round_: int | None = None,
    ) -> Page:
        """At most ``count`` events: before or after a cursor, or from a turn or a round on; without any, the newest.

        Raises CursorError.
        """
        if after is not None:
            return await page_after(self._client, self.handle, count, after)
        if turn is not None or round_ is not None:
            return await page_from(self._client, self.handle, count, turn=turn, round_=round_)
        return await page_before(self._client, self.handle, count, before)

    async def starts(self) -> list[RunStartedEvent]:
        """The start of the run, and of its first child run if it has started: that of the team which it asks."""
        return await first_runs(self._client, self.handle)

    async def difference(self, other: "Run", may_read: MayRead) -> Difference:
        """Where this run (``a``) and another one (``b``) part, as far as they have come.

        ``may_read`` says which of the runs that they fork are compared as well.
        """
        return await compare_runs(self._client, self.handle, other.handle, MAX_PAIRS, may_read)

    async def question(self) -> str | list[JsonObject]:
        """The input with which the run was started."""
        run_id = self.handle.run_id or (await self.describe()).run_id
        _, run_input = await original_input(self._client, self.id, run_id)
        spec = run_input.get("spec")
        asked = spec.get("input") if isinstance(spec, dict) else run_input.get("input")
        return [item for item in asked if isinstance(item, dict)] if isinstance(asked, list) else str(asked or "")

    async def spec(self) -> QuerySpec | None:
        """What the run was asked; None if it is not of a query, or of one that the workers know by its name."""
        if self._spec is None:
            run_id = self.handle.run_id or (await self.describe()).run_id
            _, run_input = await original_input(self._client, self.id, run_id)
            self._spec = QuerySpec.model_validate(run_input["spec"]) if run_input.get("spec") else None
        return self._spec

    async def has_taken(self, request: str) -> bool:
        """Whether the run, or one below it, has carried out the message, decision or reply with that ``request`` id."""
        return await has_taken(self._client, self.handle, request)

    async def pending(self) -> list[PendingDecision]:
        """What the run waits for people to decide, and calls of the client's tools, the oldest first."""
        return await pending_decisions(self._client, self.id, self.handle.run_id)

    async def decision(self, decision_id: str) -> PendingDecision:
        """What waits for a decision under that id, with all its arguments: a status shares its room among many.

        Raises NotFoundError.
        """
        found = next((decision for decision in await self.pending() if decision.id == decision_id), None)
        if found is None:
            raise NotFoundError(f"'{decision_id[:100]}' does not wait for a decision in this run")
        if found.arguments is None or full_length(found.arguments) == len(found.arguments):
            return found
        async for event in self.events(wait=False, live=False):
            if isinstance(event, WaitStartedEvent) and event.wait == decision_id and event.text:
                return found.model_copy(update={"arguments": event.text})
        return found

    async def undecided(self, waits: Mapping[str, str] | None = None) -> list[PendingDecision]:
        """What nobody has decided yet, the oldest first.

        ``waits`` are decisions that wait as the events say, with the runs in which they do. A run above may not know
        yet that one below it waits: then the one below is asked, and the run above gets a moment to learn of it.
        """
        late: list[PendingDecision] = []
        for _ in range(LISTED_ATTEMPTS):
            undecided = [decision for decision in await self.pending() if decision.decision is None]
            listed = {decision.id for decision in undecided}
            below = {run for id_, run in (waits or {}).items() if id_ not in listed} - {self.id}
            late = [decision for decision in await self._pending_in(below) if decision.id not in listed]
            if not late:
                break
            await asyncio.sleep(LISTED_INTERVAL)
        return sorted([*undecided, *late], key=lambda decision: decision.since)

    async def undecided_with(self, answered: Collection[str]) -> list[PendingDecision]:
        """What nobody has decided yet, the oldest first, when answers for some decisions have come.

        If the run does not know one of those, its events say whether that waits in a run below.
        """
        undecided = await self.undecided()
        unknown = {*answered} - {decision.id for decision in undecided}
        if not unknown:
            return undecided
        waits: dict[str, str] = {}
        async with contextlib.aclosing(self.events(wait=False, live=False)) as events:
            async for event in events:
                _note_wait(waits, event)
        waiting = {decision: run for decision, run in waits.items() if decision in unknown}
        return await self.undecided(waiting) if waiting else undecided

    async def _pending_in(self, runs: Collection[str]) -> Sequence[PendingDecision]:
        """What nobody has decided in runs below, and below them, as these say themselves."""
        limit = asyncio.Semaphore(CONCURRENT_QUERIES)

        async def pending_in(run: str) -> list[PendingDecision]:
            async with limit:
                return await pending_decisions(self._client, run)

        found = await asyncio.gather(*map(pending_in, runs))
        return [*{each.id: each for of_run in found for each in of_run if each.decision is None}.values()]

    async def events_until_waiting(
        self, after: str | None = None, *, live: bool = True
    ) -> "AsyncGenerator[Event | RunWaits, None]":
        """The events of the run after a cursor, to its end, or until it waits for people: then RunWaits is the last."""
        waits: dict[str, str] = {}
        place = after
        earlier = set[str]()
        may_wait: bool | None = None  # since before the cursor
        while True:
            async with contextlib.aclosing(self.events(place, wait=False, live=False)) as existing:
                async for event in existing:  # from them it is known which waits have ended
                    place = event.cursor or place
                    _note_wait(waits, event)
                    yield event
                    if self._ends_with(event):
                        return
            if may_wait is None:
                may_wait = after is not None and await self.is_open()
            undecided = await self.undecided(waits) if waits or may_wait else []
            if new := {decision.id for decision in undecided} - waits.keys() - earlier:
                # They have begun to wait since the events were read, and those up to them come first; or earlier, if
                # the next events don't have them either.
                earlier |= new
                continue
            if undecided:
                yield RunWaits(undecided)
                return
            async with contextlib.aclosing(self.events(place, live=live)) as following:
                async for event in following:
                    place = event.cursor or place
                    _note_wait(waits, event)
                    yield event
                    if isinstance(event, WaitStartedEvent) and event.wait in waits:
                        break
                else:
                    return

    def _ends_with(self, event: Event) -> bool:
        return isinstance(event, RunEndedEvent) and event.run == self.id

    def _tell(self, request: str, decision: str | None = None) -> None:
        """Logs what the caller has done with the run: unlike a worker, the gateway knows who that is."""
        caller = self._caller
        fields: Fields = {"run": self.id, "request": request, "decision": decision, "by": caller.name}
        log_event("control message", {**fields, "account": str(caller.account), "verified": caller.is_verified})

    async def steer(self, text: str, *, request: str | None = None) -> None:
        """Sends the caller's message into the discussion, once for a ``request`` id. Raises ConflictError."""
        with _refusals():
            await control.steer(self._client, self.handle, text, self._caller.name, request, self._acts("steer"))
        self._tell("steer")

    async def pause(self) -> None:
        """Pauses the run. Raises ConflictError."""
        with _refusals():
            await control.pause(self.handle, self._caller.name, self._acts("pause"))
        self._tell("pause")

    async def resume(self) -> None:
        """Resumes the run. Raises ConflictError."""
        with _refusals():
            await control.resume(self.handle, self._caller.name, self._acts("resume"))
        self._tell("resume")

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run after the current turn, or ``now``; does nothing if it has ended."""
        identity = self._acts("terminate_team")
        await _unless_ended(control.terminate(self.handle, reason, now=now, by=self._caller.name, identity=identity))
        self._tell("terminate_team")

    async def cancel(self, reason: str = "") -> None:
        """Cancels the run; does nothing if it has ended."""
        identity = self._acts("cancel")
        await _unless_ended(control.cancel(self.handle, reason, by=self._caller.name, identity=identity))
        self._tell("cancel")

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
            decision = await decide(self._client, self.handle, approval, request, self._signed)
        except (NotDecided, NotServedError) as error:
            return await self._decided_before("approve", approval, error)
        self._tell("approve", call)
        return decision

    async def reply(
        self, text: str, to: str | None = None, *, declines: bool = False, request: str | None = None
    ) -> PersonDecision:
        """Replies to the question ``to``, or to the only one, or declines it; the same again has no further effect.

        ``request`` is an id by which ``has_taken`` knows it. Raises ConflictError if the question is not pending, was
        answered otherwise, or the reply is invalid.
        """
        sent = ReplyRequest(text=text, to=to, by=self._caller.name, declines=declines)
        try:
            decision = await reply(self._client, self.handle, sent, request, self._signed)
        except (NotDecided, NotServedError) as error:
            if to is None:
                raise _refusal(error) from None
            return await self._decided_before("reply", sent, error)
        self._tell("reply", to)
        return decision

    def refusal(self, pending: PendingDecision, request: ApproveRequest | ReplyRequest) -> str | None:
        """Why the caller may not decide so; None if it may, as far as is known before the run is asked."""
        is_signed = self._caller.is_verified and bool(IdentityKeys.of(self._environ).keys)
        if is_signed and any(approval.by == self._caller.name for approval in pending.approvals):
            return None  # it may be the same decision again, which has no further effect
        return pending.refusal(request.signed(self._caller.identity if is_signed else None))

    def _acts(self, act: str) -> Identity | None:
        return signed_act(self._environ, self._caller, self._client.namespace, self.id, act)

    def _signed(
        self, pending: PendingDecision, request: ApproveRequest | ReplyRequest
    ) -> ApproveRequest | ReplyRequest:
        """The request with who sends it, signed. Without keys the caller of a gateway is nobody in particular."""
        if not self._caller.is_verified:
            return request
        place = pending.place(self._client.namespace, request)
        return request.signed(IdentityKeys.of(self._environ).sign_decision(self._caller.identity, place))

    async def give_result(self, call: str, output: str, request: str | None = None) -> PersonDecision:
        """Gives what the caller's tool has returned for a call; the same result again has no further effect.

        ``request`` is an id by which ``has_taken`` knows it. Raises ConflictError if the call does not wait for it, or
        has got another result, or if the result is too large.
        """
        given = GiveResultRequest(call=call, output=output, by=self._caller.name)
        if given.problem:
            raise ConflictError(given.problem)
        refusal: Exception = NotDecided()
        for _ in range(LISTED_ATTEMPTS):
            try:
                return await give_result(self._client, self.handle, given, request)
            except (NotDecided, NotServedError) as error:
                refusal = error
            wait = await self._wait(call)
            if isinstance(wait, WaitEndedEvent) and wait.digest == given.digest:
                return given.decision(wait.at).to_remember()
            if not isinstance(wait, WaitStartedEvent) or isinstance(refusal, NotServedError):
                break
            await asyncio.sleep(LISTED_INTERVAL)  # the events have the wait, and the run has it in a moment
        raise _refusal(refusal) from None

    async def _wait(self, wait: str) -> WaitStartedEvent | WaitEndedEvent | None:
        """The latest event of a wait; None if the run has no such wait."""
        latest: WaitStartedEvent | WaitEndedEvent | None = None
        async with contextlib.aclosing(self.events(wait=False, live=False)) as events:
            async for event in events:
                if isinstance(event, WaitStartedEvent | WaitEndedEvent) and event.wait == wait:
                    latest = event
        return latest

    async def _decided_before(
        self, update: str, request: ApproveRequest | ReplyRequest, error: Exception
    ) -> PersonDecision:
        """The caller's own earlier decision, if it is the same: its response may have been lost."""
        if decided := await earlier_decision(self._client, self.handle, update, request):
            return decided
        raise _refusal(error) from None


def prompt_of(decision: PendingDecision) -> str:
    """What a person is asked who decides."""
    if decision.kind == "approval":
        return f"May {decision.speaker} call {decision.tool} with {decision.arguments}?"
    if decision.kind == "budget":
        return f"May the budget of {decision.speaker} be raised by {decision.arguments}?"
    return decision.question or f"What does {decision.speaker} reply?"


def _note_wait(waits: dict[str, str], event: Event) -> None:
    """Adds a wait for a person that has started, with its run, to the open ones, or removes one that has ended."""
    if isinstance(event, WaitStartedEvent) and event.kind not in OWN_WAITS:
        waits[event.wait] = event.run
    elif isinstance(event, WaitEndedEvent):
        waits.pop(event.wait, None)


def _refusal(error: Exception) -> Exception:
    """What is raised for a decision that was not taken: without a worker the client has to send it again."""
    return error if isinstance(error, NotServedError) else ConflictError(str(error))


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raises ConflictError for a request that a run rejects."""
    try:
        yield
    except (control.RunEndedError, control.RejectedError) as error:
        raise ConflictError(str(error)) from None


async def _unless_ended(request: Awaitable[object]) -> None:
    with contextlib.suppress(control.RunEndedError):
        await request
