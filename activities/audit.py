"""The activity ``audit``: writes into the audit log what clients have done to a run, by its history."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError
from temporalio import activity
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from ..contracts.decisions import ApproveRequest
from ..contracts.errors import BatonError
from ..contracts.identity import IDENTITY_KEY, REQUESTER, START, Actor, IdentityKeys
from ..contracts.message import PersonDecision
from ..contracts.requests import AuditRequest, AuditResult
from ..contracts.scope import CALLER
from ..journal.audit import AuditAction, AuditEntry, AuditLog
from ..journal.journal import Journal
from ..temporal.activity import own_client
from ..temporal.executions import memo_of
from .runtime.secrets import SecretStore

SIGNALS: Mapping[str, AuditAction] = {
    "terminate_team": "terminate",
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    "session": "session",
    "steer": "steer",
}
UPDATES: Mapping[str, AuditAction] = {
    "approve": "approve",
    "reply": "reply",
    "give_result": "result",
    "session": "session",
    "steer": "steer",
}
"""What clients do by signals and updates; other signals are those of other runs."""


class _Update(NamedTuple):
    """An accepted update: its action, its arguments, and the identity that its client gives itself."""

    action: AuditAction
    arguments: Payloads
    client: str


class _Run(NamedTuple):
    """The run whose history is read, with what names it in the log."""

    client: Client
    keys: IdentityKeys
    id: str
    run_id: str

    @property
    def key(self) -> tuple[str, str, str]:
        return "run", self.client.namespace, self.id

    def at_first(self, started: HistoryEvent) -> "_Run":
        """The run, or the one that was reset: its events are the first ones of this history."""
        original = started.workflow_execution_started_event_attributes.original_execution_run_id
        return self._replace(run_id=original or self.run_id)

    def after(self, event: HistoryEvent) -> "_Run":
        """The run of the events after this one: after a reset, another one."""
        return self._replace(run_id=event.workflow_task_failed_event_attributes.new_run_id or self.run_id)

    def entry(self, actor: Actor, event: object, action: AuditAction, at: datetime, **more: Any) -> AuditEntry:
        """What an event of the history says; once for each event."""
        at_ms = round(at.timestamp() * 1000)
        return AuditEntry.by(actor, [self.run_id, str(event)], action, self.key, at=at_ms, **more)

    def sender(self, value: object, act: str, at: datetime, client: str) -> Actor:
        """Who has sent a request: verified if a gateway has signed it, or else by the name in it."""
        fields = _fields(value, act)
        verified = self.keys.who_acts(fields.get("identity"), self.client.namespace, self.id, act, at)
        if verified:
            return Actor(verified, "gateway", verified=True, client=client)
        named = fields.get("name") or fields.get("by")
        return Actor(named if isinstance(named, str) else client, "temporal", client=client)


def _fields(value: object, act: str) -> dict[str, object]:
    """The fields of a request. The values of a session are contents, whatever their names, and are not logged."""
    return value if isinstance(value, dict) and act != "session" else {}


class AuditActivities:
    """The activity of the audit log."""

    def __init__(self, journal: Journal, secrets: SecretStore) -> None:
        self._log = AuditLog(journal.database)
        self._secrets = secrets

    @activity.defn(name="audit")
    async def audit(self, request: AuditRequest) -> AuditResult:
        """Adds what the log does not have: how the run began and ended, and what clients have sent to it."""
        info = activity.info()
        keys = IdentityKeys.of({IDENTITY_KEY: self._secrets.environment(IDENTITY_KEY) or ""})
        run = _Run(own_client(), keys, info.workflow_id or "", info.workflow_run_id or "")
        entries = [await _beginning(run, request.began)] if request.began else []
        entries += [entry async for entry in _requests(run)]
        if request.ended:
            now = info.current_attempt_scheduled_time
            outcome = "failure" if request.ended == "Failed" else "success"
            worker = Actor("baton", "temporal")
            entries.append(run.entry(worker, "end", "end", now, outcome=outcome, detail=request.ended))
        await self._log.append(entries)
        return AuditResult()


async def _beginning(run: _Run, began: AuditAction) -> AuditEntry:
    """Who has started the run, by its memo; a retry has the memo of the failed run, whoever retries it."""
    handle = run.client.get_workflow_handle(run.id, run_id=run.run_id)
    description = await handle.describe()
    at = description.start_time
    memo = await memo_of(description)
    client = ""
    async for event in handle.fetch_history_events(page_size=1):
        client = event.workflow_execution_started_event_attributes.identity
        run = run.at_first(event)
        break
    if began == "retry":
        actor = Actor(client, "temporal", client=client)
    elif name := run.keys.who_acts(memo.get(REQUESTER), run.client.namespace, run.id, START, at):
        actor = Actor(name, "gateway", verified=True, client=client)
    else:
        actor = Actor(str(memo.get(CALLER) or client), "temporal", client=client)
    return run.entry(actor, "start", began, at, detail=description.workflow_type)


async def _requests(run: _Run) -> AsyncIterator[AuditEntry]:
    """What clients have sent to the run, without what other runs have, and without updates that are not done."""
    updates: dict[int, _Update] = {}
    handle = run.client.get_workflow_handle(run.id, run_id=run.run_id)
    async for event in handle.fetch_history_events():
        run = run.at_first(event) if event.event_id == 1 else run.after(event)
        at = event.event_time.ToDatetime(UTC)
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signal = event.workflow_execution_signaled_event_attributes
                action = SIGNALS.get(signal.signal_name)
                if action and not signal.external_workflow_execution.workflow_id:
                    value = await _value(run.client, signal.input)
                    sender = run.sender(value, signal.signal_name, at, signal.identity)
                    yield run.entry(sender, event.event_id, action, at)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
                canceled = event.workflow_execution_cancel_requested_event_attributes
                if not canceled.external_workflow_execution.workflow_id:
                    actor = Actor(canceled.identity, "temporal", client=canceled.identity)
                    yield run.entry(actor, event.event_id, "cancel", at)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                accepted = event.workflow_execution_update_accepted_event_attributes.accepted_request
                if known := UPDATES.get(accepted.input.name):
                    updates[event.event_id] = _Update(known, accepted.input.args, accepted.meta.identity)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
                ended = event.workflow_execution_update_completed_event_attributes
                if update := updates.get(ended.accepted_event_id):
                    yield await _done(run, update, ended.outcome, event.event_id, at)


async def _done(run: _Run, update: _Update, outcome: Any, event: int, at: datetime) -> AuditEntry:
    """What an update has done, or that it was refused by its handler."""
    value = await _value(run.client, update.arguments)
    fields = _fields(value, update.action)
    detail = str(fields.get("call") or fields.get("to") or "")
    actor = run.sender(value, update.action, at, update.client)
    action = update.action
    if action == "approve" and isinstance(value, dict):
        with contextlib.suppress(ValidationError):
            action = "approve" if ApproveRequest.model_validate(value).approved else "deny"
    if not outcome.HasField("success"):
        return run.entry(actor, event, action, at, outcome="failure", detail=detail)
    decided = await _value(run.client, outcome.success)
    with contextlib.suppress(ValidationError):
        decision = PersonDecision.model_validate(decided)
        if decision.verified:
            actor = Actor(decision.by or "", "gateway", verified=True, client=update.client)
    return run.entry(actor, event, action, at, detail=detail)


async def _value(client: Client, payloads: Payloads) -> object:
    """The first value; None if there is none or it can't be read, as for the run itself."""
    if not payloads.payloads:
        return None
    try:
        values: list[object] = await client.data_converter.decode(payloads.payloads[:1])
    except (ApplicationError, BatonError, KeyError, RuntimeError, ValueError):
        return None
    return values[0]
