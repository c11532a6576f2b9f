"""Replays recordings of runs, in an environment for tests: models, tools, remote agents and people are recorded."""

import asyncio
import atexit
import contextlib
import functools
import logging
import os
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from ..activities.context.lookup import find_executor
from ..activities.context.outside import BLOCK, Live, OutsideCall, RecordedState
from ..activities.context.value_resolver import ValueResolver
from ..activities.forks import changed_manifests as changed_manifests_of
from ..activities.forks import field_of
from ..activities.tool.mcp.pinned_tools import ListedTool, with_listed_tools
from ..activities.tool.openapi import with_recorded_operations
from ..contracts.decisions import ApproveRequest, GiveResultRequest, PendingDecision, ReplyRequest
from ..contracts.errors import InvalidInput, NotRecorded
from ..contracts.identity import IDENTITY_KEY, REQUESTER, START, Identity, IdentityKeys
from ..contracts.inputs import Fork, ForkedRun, ForkRequest
from ..contracts.message import Message
from ..contracts.status import Status
from ..journal.accounts import Amount
from ..resources.agent import Agent
from ..resources.base import JsonObject
from ..resources.catalog import Catalog
from ..resources.documents import Document
from ..resources.functions import Function
from ..resources.loader import load_documents
from ..resources.mcp_server import MCPServer
from ..resources.run_catalog import RunCatalog
from ..resources.tool import Tool
from ..starter.api.definitions import Source, load_sources, unique_functions
from ..starter.api.handle import Handle, RunFailed, messages_in
from ..starter.errors import UsageError
from ..starter.operations.record import decision_request, record_run
from ..starter.operations.recording import (
    RecordedAnswers,
    RecordedRequest,
    Recording,
    RequestDifference,
    changed_manifests,
    described,
    json_object,
    key_of,
    manifest_checksums,
    place_of,
    shown_pair,
    wrapped,
)
from ..starter.runs import control
from ..starter.runs.decisions import NotDecided, decide, give_result, pending_decisions, reply
from ..starter.runs.runs import RunHandle, find_run
from ..starter.scripted_model import unexpected
from ..starter.server.connection import use_server
from ..temporal.threads import COMPUTING
from .environments import Environment, server

AnswerSource = Literal["recorded", "live"]
"""``recorded``: a call without a recording fails the run. ``live``: it is made, and nothing else is called."""

log = logging.getLogger("baton")

POLL = 0.05
"""Seconds between two looks at what a run waits for."""

CANCEL_SECONDS = 10
"""How long a run that has no more time may take to end by itself."""


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    ``answer`` is the run's answer, and ``messages`` are its latest messages. ``differences`` are the calls that differ
    from the recording, in order: a call that has no recording, or a recorded call that was not made.
    ``changed_manifests`` says which manifests have changed since then, which may be why. ``live_calls`` counts the
    calls that were made, and ``seconds`` is how long it took. ``updated``: the file was rewritten.
    """

    path: Path
    recording: Recording
    status: Status
    differences: tuple[RequestDifference, ...]
    changed_manifests: tuple[str, ...]
    live_calls: int
    seconds: float
    updated: bool = False

    @property
    def answer(self) -> str:
        """The answer of the run, or the reason why it has failed."""
        return self.status.message

    @property
    def messages(self) -> tuple[Message, ...]:
        """The latest messages of the run, target by target."""
        return messages_in(self.status)

    @property
    def calls_unchanged(self) -> bool:
        """Whether the run has made all recorded calls, and no others."""
        return not self.differences and not self.live_calls

    @property
    def unchanged(self) -> bool:
        """Whether also its phase and its answer are the recorded ones."""
        same = self.answer == self.recording.answer and self.status.phase == self.recording.phase
        return self.calls_unchanged and same

    @property
    def report(self) -> str:
        """What differs, for people; empty if nothing does."""
        if self.unchanged:
            return ""
        lines = [str(difference) for difference in self.differences]
        if self.live_calls:
            calls = "1 call was" if self.live_calls == 1 else f"{self.live_calls} calls were"
            lines.append(f"{calls} made that the recording does not have")
        if self.calls_unchanged:
            phases = f"the run is {self.recording.phase} in the recording, and now {self.status.phase}"
            lines.append(phases if self.recording.phase != self.status.phase else "the answer of the run has changed")
            lines += shown_pair(self.recording.answer, self.answer)
        if self.changed_manifests:
            lines.append(wrapped(f"since the recording: {'; '.join(self.changed_manifests)}"))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Replay({str(self.path)!r}, calls_unchanged={self.calls_unchanged})"


def replay(
    path: str | Path,
    manifests: Source | Sequence[Source],
    *,
    models: AnswerSource = "recorded",
    tools: AnswerSource = "recorded",
    functions: Sequence[Function] = (),
    settings: Mapping[str, str] | None = None,
    update: bool = False,
    timeout: float = 60,
    recursive: bool = False,
) -> Replay:
    """Replays the recording in a file with other manifests, or the same ones.

    Models, tools, remote agents and people answer as in the recording; nothing is sent. With ``models="live"`` a model
    or a remote agent is called for a request that has no recording, and with ``tools="live"`` a tool or a function;
    then keys are those of the process, and Secrets those of the manifests. ``update`` rewrites the file with the calls
    of this run, unless it has failed and the recorded one has not. ``functions`` are the conditions and instructions of
    the manifests, which are part of the team, and called. The run has ``timeout`` seconds.

    What differs is logged as a warning, which pytest shows for a test that fails. A Temporal server is started for the
    first replay of a process. Raises ManifestError, SettingsError, and UsageError
    if the file is no recording.
    """
    result = play(
        Path(path),
        manifests,
        models=models,
        tools=tools,
        functions=functions,
        settings=settings,
        update=update,
        seconds=timeout,
        recursive=recursive,
    )
    if result.report:
        log.warning("%s: %s", path, result.report)
    return result


def own_settings() -> dict[str, str]:
    """The settings of this process that decide what a run does, for replays that have no others."""
    return {name: os.environ[name] for name in ("BATON_FUNCTIONS", "BATON_DIALECT") if name in os.environ}


def play(
    path: Path,
    manifests: Source | Sequence[Source],
    *,
    models: AnswerSource,
    tools: AnswerSource,
    functions: Sequence[Function] = (),
    settings: Mapping[str, str] | None = None,
    update: bool = False,
    seconds: float = 60,
    recursive: bool = False,
) -> Replay:
    """The same as ``replay``, for a command: it logs nothing."""
    recording = Recording.read(path)
    sources = _as_sources(manifests)
    began = time.monotonic()
    player = Player(recording, models, tools, IdentityKeys((secrets.token_hex(32),)))
    with _environment(recording, sources, player, functions, settings or {}, recursive=recursive) as env:
        status, new = env.wait(_replayed(env, recording, player, seconds, update=update))
    differences = (*player.differences, *(() if player.differences else player.answers.unused()))
    result = Replay(
        path=path,
        recording=recording,
        status=status,
        differences=differences,
        changed_manifests=tuple(changed_manifests(recording.manifests, player.manifests)),
        live_calls=player.live_calls,
        seconds=time.monotonic() - began,
    )
    if new is None or (result.unchanged and not result.changed_manifests):
        return result
    new.write(path)
    return replace(result, updated=True)


@functools.cache
def _server() -> str:
    """The address of the server of all replays of this process."""
    stack = contextlib.ExitStack()
    address = stack.enter_context(server())
    atexit.register(stack.close)
    return address


def _environment(
    recording: Recording,
    sources: Sequence[Source],
    player: "Player",
    functions: Sequence[Function],
    settings: Mapping[str, str],
    *,
    recursive: bool,
) -> Environment:
    own, of_definitions = load_sources(sources, recursive=recursive)
    if changed := _changed_by_fork(recording, own.catalog):
        documents = [Document("", manifest, {}) for manifest in changed]
        own = replace(own, catalog=load_documents(documents).catalog.overlaid_on(own.catalog))
    if recording.query:  # the recorded question, also if a file has a query of that name
        query = load_documents([Document("", recording.query, {})])
        own = replace(own, catalog=query.catalog.overlaid_on(own.catalog))
    return Environment(
        own=own,
        functions=unique_functions([*of_definitions, *functions]),
        answer=lambda request: unexpected(request, "a replay has no scripted model"),
        settings={**settings, IDENTITY_KEY: player.keys.keys[0]},
        server=_server(),
        outside=player,
    )


def _changed_by_fork(recording: Recording, catalog: Catalog) -> Sequence[JsonObject]:
    """The manifests that a recorded fork has changed, unless somebody else has changed the same field meanwhile."""
    if recording.fork is None:
        return ()
    changes = {
        place: change.after
        for place, change in recording.fork.changes.items()
        if change.before == field_of(catalog, place) and change.before != change.after
    }
    try:
        return changed_manifests_of(catalog, changes)
    except InvalidInput:  # there is no such manifest any more
        return ()


async def _replayed(
    env: Environment, recording: Recording, player: "Player", seconds: float, *, update: bool
) -> tuple[Status, Recording | None]:
    """The status of the replayed run, and its recording if the file is to be updated."""
    run_input = dict(recording.input)
    if recording.query:
        metadata = recording.query["metadata"]
        assert isinstance(metadata, dict)
        run_input |= {"name": metadata["name"], "namespace": metadata.get("namespace", "default")}
        if recording.before and not recording.fork:
            head = await env.append_to_journal(recording.before, recording.attachments)
            run_input["after"] = head.model_dump()
    if recording.fork:
        await env.restore_in_journal(recording.fork)
        source = Fork(run=recording.run, run_id=str(uuid.uuid4()))  # of no run: the state is in the recording
        request = ForkRequest(fork=source, at=recording.fork.at, pins_anew=True)
        run_input["forks"] = request.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    run_id = f"replay-{uuid.uuid4().hex[:12]}"
    run = await env.client.start_workflow(
        recording.workflow,
        run_input,
        id=run_id,
        task_queue=env.task_queue,
        memo=player.memo(run_id, env.client.namespace),
    )
    handle = Handle[object](env.client, run)
    await player.begin(env.client, handle)
    ended = asyncio.Event()
    people = asyncio.create_task(player.answer_for_people(env, handle, ended))
    try:
        async with asyncio.timeout(seconds):
            status = await _status_of(handle)
    except TimeoutError:
        player.differences.append(RequestDifference("the run", f"it has not ended within {seconds:g} s"))
        with contextlib.suppress(control.RunEndedError):
            await control.cancel(run, "the replay has no more time")
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                status = await _status_of(handle)
        except TimeoutError:
            await run.terminate("the replay has no more time")
            raise UsageError(
                f"the replay of {recording.run} can't end: its workflow tasks fail, as the log says"
            ) from None
    finally:
        ended.set()
        with contextlib.suppress(RPCError):  # a run whose workflow tasks fail doesn't answer
            await people
    if status.phase == "Failed" != recording.phase and not player.differences:
        player.differences.append(RequestDifference("the run", f"it has failed: {status.error}"))
    if update and not player.differences:
        player.differences += player.unsent
    new = None
    if update and not player.differences:
        # The run has begun where the recorded one has, under the same names.
        kept = {"run": recording.run, "fork": recording.fork}
        new = (await env.recording_of(handle)).model_copy(update=kept)
    return status, new


async def _status_of(handle: Handle[Any]) -> Status:
    try:
        return (await handle.result()).status
    except RunFailed as failed:
        return failed.status


class BlockedModelRequests:
    """Models are blocked until its block ends; without ``with``, until the process ends."""

    def __init__(self) -> None:
        self._before = os.environ.get(BLOCK)
        os.environ[BLOCK] = "1"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            os.environ.pop(BLOCK, None)
        else:
            os.environ[BLOCK] = self._before


def block_model_requests() -> BlockedModelRequests:
    """Makes every request to a language model, an A2AServer or an ExecutionEngine fail, before anything is sent.

    It is for all workers in this process and in those that it starts: in a conftest.py for all tests, or in a test as
    ``with block_model_requests():``. The scripted model of an environment and recordings still answer. A run that
    would call a model fails with NotCarriedOut.
    """
    return BlockedModelRequests()


def record(
    run: str,
    path: str | Path,
    *,
    manifests: Source | Sequence[Source] = (),
    functions: Sequence[Function] = (),
    namespace: str = "default",
) -> None:
    """Records a run that has ended in a file, as ``baton record`` does: by its id, or by the name of its Query.

    The server and the journal are those of the environment variables. The values of Secrets in ``manifests`` are
    redacted. ``functions`` are those that the run has used. For a run of an environment, use its method ``record``.
    Raises NoSuchRunError, UsageError for a run that can't be replayed, and JournalLost.
    """
    own, of_definitions = load_sources(_as_sources(manifests))

    async def read() -> Recording:
        with use_server(log.info, start=False, own_settings=False) as location:
            client = await location.connect()
            handle = await find_run(client, run, namespace)
            return await record_run(client, handle, os.environ, own, [*of_definitions, *functions])

    with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
        thread.submit(asyncio.run, read()).result().write(Path(path))


def _as_sources(manifests: Source | Sequence[Source]) -> Sequence[Source]:
    if isinstance(manifests, str | Path) or not isinstance(manifests, Sequence):
        return [manifests]
    return manifests


_CallId = tuple[str, str, str]
"""What identifies a call in all attempts of its activity: the run's id, the activity's id, and the request."""


def _call_id(call: OutsideCall) -> _CallId:
    info = activity.info()
    return info.workflow_run_id or "", info.activity_id, key_of(call.kind, call.caller, call.purpose, call.request)


class Player:
    """What answers in place of models, tools, remote agents and people: an ``Outside``."""

    def __init__(self, recording: Recording, models: AnswerSource, tools: AnswerSource, keys: IdentityKeys) -> None:
        self.keys = keys
        self.answers = RecordedAnswers(recording.calls)
        self.differences: list[RequestDifference] = []
        self.manifests: dict[str, str] = {}
        self._recording = recording
        self._models = models
        self._tools = tools
        self._client: Client | None = None
        self._handle: Handle[object] | None = None
        self._begun = asyncio.Event()
        self._sent = set[int]()
        self._live = set[_CallId]()
        self._taken: dict[_CallId, tuple[int, JsonObject]] = {}

    @property
    def live_calls(self) -> int:
        """The number of calls that were made, each counted once."""
        return len(self._live)

    @property
    def hides_secrets(self) -> bool:
        """Whether nothing is called."""
        return self._models == self._tools == "recorded"

    def memo(self, run: str, namespace: str) -> dict[str, str]:
        """The memo of the run: who has started it, as a gateway with the key of this replay would sign it."""
        if self._recording.requester is None:
            return {}
        signed = self.keys.sign_act(Identity(name=self._recording.requester), namespace, run, START)
        assert signed
        return {REQUESTER: signed.model_dump_json()}

    async def begin(self, client: Client, handle: Handle[object]) -> None:
        """The run has started. Sends the requests that it had received before its first call."""
        self._client = client
        self._handle = handle
        await self._send_requests(0)
        self._begun.set()

    async def answer(self, call: OutsideCall, live: Live | None) -> JsonObject:
        """The recorded answer; without one that of the call if it may be made. Raises NotRecorded otherwise."""
        await self._begun.wait()
        place = self._place(call.run)
        made = _call_id(call)
        taken = self._taken.get(made) if activity.info().attempt > 1 else None  # the first attempt has lost its answer
        if found := taken or self.answers.take(call, place):
            self._taken[made] = found
            number, answer = found
            await self._send_requests(number)
            if "interrupted" in answer:  # by a request of a client, which is sent now
                await asyncio.Event().wait()
            return answer
        source = self._models if call.kind in ("model", "agent") else self._tools
        if source == "live" and live:
            if made not in self._live:  # Temporal may repeat a call that has failed
                self._live.add(made)
                if replaced := self.answers.replaced_by(call, place):
                    await self._send_requests(replaced)
            return await live()
        difference = await COMPUTING.run(self.answers.missing, call, place)
        self.differences.append(difference)
        raise NotRecorded(str(difference))

    async def note(self, call: OutsideCall, answer: JsonObject) -> None:
        """Does nothing: the call was answered in an earlier attempt."""

    async def pin(self, values: ValueResolver, live: Callable[[], Awaitable[RunCatalog]]) -> RunCatalog:
        """The catalog with the recorded tools and descriptions of servers."""
        catalog = await live() if self._tools == "live" else await self._with_recorded(values.catalog)
        self.manifests = manifest_checksums(catalog)
        return catalog

    def forked(self, run: str) -> RecordedState:
        """The recorded state of a run; a run that had not begun at the place of the fork has none."""
        place = place_of(run, self._recording.run)
        fork = self._recording.fork
        if fork is None or place not in fork.states:
            return RecordedState(forked=ForkedRun(), spent={})
        spent = {owner: Amount(**amounts) for owner, amounts in fork.spent.get(place, {}).items()}
        return RecordedState(forked=fork.states[place], spent=spent)

    async def _with_recorded(self, catalog: RunCatalog) -> RunCatalog:
        recording = self._recording
        servers = [manifest for manifest in catalog.manifests if isinstance(manifest, MCPServer)]
        for mcp_server in servers:
            if mcp_server.id not in recording.mcp_tools:
                difference = RequestDifference(mcp_server.id, "there is no recording of its tools")
                self.differences.append(difference)
                raise NotRecorded(str(difference))
        if servers:
            listed = {name: [_listed(tool) for tool in tools] for name, tools in recording.mcp_tools.items() if tools}
            catalog = await COMPUTING.run(with_listed_tools, catalog, listed)
        operations = {
            source: {name: Tool.model_validate(tool) for name, tool in tools.items()}
            for source, tools in recording.operations.items()
        }
        catalog = with_recorded_operations(catalog, operations)
        return catalog.with_manifests(
            manifest.described(recording.descriptions[manifest.id])
            if isinstance(manifest, Agent)
            and not manifest.spec.description
            and manifest.id in recording.descriptions
            and find_executor(manifest, catalog)
            else manifest
            for manifest in catalog.manifests
        )

    async def answer_for_people(self, env: Environment, handle: Handle[object], ended: asyncio.Event) -> None:
        """Sends the recorded decisions of people when the run waits for them. Cancels a run that waits for others."""
        given = set[str]()
        while not ended.is_set():
            for pending in await pending_decisions(env.client, handle.id):
                if pending.id not in given and pending.decision is None:
                    given.add(pending.id)
                    await self._decide(env, handle, pending)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await ended.wait()

    async def _decide(self, env: Environment, handle: Handle[object], pending: PendingDecision) -> None:
        text = pending.question if pending.kind == "question" else pending.arguments
        call = OutsideCall(
            kind="person",
            caller=pending.speaker,
            purpose=pending.kind,
            run=pending.run,
            request=decision_request(pending.kind, pending.tool, text),
        )
        place = self._place(pending.run)
        run = env.client.get_workflow_handle(handle.id)
        found = self.answers.take(call, place)
        if found is None:
            await self._refuse(run, self.answers.missing(call, place))
            return
        _, decision = found
        name = described(call.kind, call.caller, call.purpose, call.request)
        if decision.get("how") == "timeout":
            if pending.until is None:
                await self._refuse(
                    run, RequestDifference(name, "nobody has decided in time, and now there is no limit")
                )
                return
            await self._skip_to(env, pending, pending.until)
            return
        try:
            earlier = decision.get("earlier")
            for given in earlier if isinstance(earlier, list) else []:
                if isinstance(given, dict):
                    await self._send_decision(env.client, run, pending, {"approved": True, **given})
            await self._send_decision(env.client, run, pending, decision)
        except NotDecided as refused:
            waits = await pending_decisions(env.client, handle.id)
            if pending.id in {waiting.id for waiting in waits}:  # else it has ended meanwhile
                await self._refuse(run, RequestDifference(name, f"the recorded decision is refused: {refused}"))

    async def _refuse(self, run: RunHandle, difference: RequestDifference) -> None:
        """Cancels a run that waits for what is not recorded."""
        self.differences.append(difference)
        with contextlib.suppress(control.RunEndedError):
            await control.cancel(run, str(difference)[:1_000])

    async def _send_decision(
        self, client: Client, run: RunHandle, pending: PendingDecision, decision: JsonObject
    ) -> None:
        """Sends a decision; one of a person whom a gateway had verified is signed with the key of this replay."""
        by = str(decision["by"]) if decision.get("by") else None
        text = str(decision.get("text") or "")
        reason = str(decision.get("reason") or "")
        approved = decision.get("approved") is True
        groups = decision.get("groups")

        def sign(pending: PendingDecision, request: ApproveRequest | ReplyRequest) -> ApproveRequest | ReplyRequest:
            if not (by and decision.get("verified")):
                return request
            identity = Identity(name=by, groups=tuple(map(str, groups if isinstance(groups, list) else ())))
            return request.signed(self.keys.sign_decision(identity, pending.place(client.namespace, request)))

        if pending.kind == "question":
            declines = not approved
            reply_ = ReplyRequest(text=reason if declines else text, to=pending.id, by=by, declines=declines)
            await reply(client, run, reply_, sign=sign)
        elif pending.kind == "client_tool":
            await give_result(client, run, GiveResultRequest(call=pending.id, output=text, by=by))
        else:
            changed = decision.get("arguments")
            request = ApproveRequest(
                call=pending.id,
                approved=approved,
                arguments=json_object(changed) if isinstance(changed, str) else None,
                reason=reason,
                remember=decision.get("remember") is True,
                by=by,
            )
            await decide(client, run, request, sign=sign)

    async def _skip_to(self, env: Environment, pending: PendingDecision, until: datetime) -> None:
        """Advances the clock of a run to the end of its wait."""
        waiting = Handle[object](env.client, env.client.get_workflow_handle(pending.run))
        with contextlib.suppress(RPCError):
            await env.skip_time(waiting, until - datetime.now(UTC))

    @property
    def unsent(self) -> Sequence[RequestDifference]:
        """The requests of clients that were not sent, as no call of this run is at their places."""
        return [
            RequestDifference(
                f"a client's request ({request.kind}) during call {request.during} of the recording",
                "it was not sent, as no call was made instead of that one",
            )
            for request in self._recording.requests
            if request.during not in self._sent
        ]

    async def _send_requests(self, during: int) -> None:
        if during in self._sent:
            return
        self._sent.add(during)
        for request in self._recording.requests:
            if request.during == during:
                await self._send(request)

    async def _send(self, request: RecordedRequest) -> None:
        assert self._client and self._handle
        run = self._client.get_workflow_handle(self._handle.id)
        reason = str(request.data.get("reason") or "")
        with contextlib.suppress(control.RunEndedError, control.RejectedError):
            match request.kind:
                case "steer":
                    await control.steer(self._client, run, str(request.data.get("text")), request.by or "user")
                case "session":
                    changes = request.data.get("changes")
                    await control.change_session(self._client, run, changes if isinstance(changes, dict) else {})
                case "terminate_team":
                    await control.terminate(run, reason, now=request.data.get("now") is True)
                case "cancel":
                    await control.cancel(run, reason)

    def _place(self, run: str) -> str:
        return place_of(run, self._handle.id) if self._handle else ""


def _listed(tool: JsonObject) -> ListedTool:
    schema, annotations, description = tool.get("inputSchema"), tool.get("annotations"), tool.get("description")
    return ListedTool(
        name=str(tool["name"]),
        description=description if isinstance(description, str) else None,
        input_schema=schema if isinstance(schema, dict) else {},
        annotations=annotations if isinstance(annotations, dict) else None,
    )
