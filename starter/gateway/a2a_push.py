"""Push notifications of A2A: a small workflow for each, which the gateways execute, posts what happens to a task.

The workflow survives the gateway, and any replica goes on where another one has stopped. A notification is posted at
least once, with an id by which its receiver knows a repeated one.
"""

import asyncio
import contextlib
import hashlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
from a2a.compat.v0_3 import conversions
from a2a.server.context import ServerCallContext
from a2a.types import TaskPushNotificationConfig
from a2a.utils.constants import PROTOCOL_VERSION_0_3, VERSION_HEADER
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from temporalio import activity, workflow
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import (
    Priority,
    RetryPolicy,
    TypedSearchAttributes,
    WorkerDeploymentVersion,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from ...activities.runtime.outbound import BodyLimits, Destination, Outbound
from ...contracts.errors import BatonError
from ...resources.base import JsonModel, JsonObject
from ...resources.provenance import Provenance
from ...resources.rights import AccountName
from ...temporal.client import task_queue
from ...temporal.executions import PUSH_WORKFLOW, delete_execution, memo_of, push_id, pushes_of
from ...temporal.histories import decode_payload
from ...temporal.search_attributes import CALLER
from ..runs.listing import LAST
from .a2a_tasks import TaskView, Update
from .access import Caller
from .errors import NotFoundError
from .runs import Runs

CONFIG = "a2a.push"
"""The memo entry of the workflow with the configuration, without its secrets."""

NOTIFICATION_ID = "X-A2A-Notification-Id"
TOKEN = "X-A2A-Notification-Token"

ATTEMPTS = 300
"""How often the delivery is tried: for a day, as there are 5 minutes between most attempts."""

HEARTBEAT = timedelta(seconds=30)
MAX_POST_SECONDS = 60.0
"""Seconds for a notification and its answer."""

POST_SECONDS = 10.0
MAX_CONFIGS = 20
"""Configurations of one task."""

MAX_CONFIGS_OF_CALLER = 1_000
"""Configurations that one caller may have for tasks that have not ended: each is an open workflow."""

MAX_DELIVERIES = 1_000
"""Configurations to which a gateway delivers at once; further ones wait for a turn."""

QUIET_SECONDS = 60.0
"""Seconds without a notification after which a configuration gives its turn to another, if all turns are taken."""

LIMITS = BodyLimits(size=1_000_000, objects=10_000)

GONE = 410


class Push(JsonModel):
    """The input of the workflow: who is told what happens to a run after a ``cursor``, and the rights that it needs.

    ``version`` is that of the protocol: 1.0 posts the events of a stream, and 0.3 the task.
    """

    run: str
    url: str
    token: str = ""
    scheme: str = ""
    credentials: str = ""
    version: str
    caller: str
    namespace: str
    service_account: str
    sees_all: bool = False
    cursor: str | None = None


@workflow.defn(name=PUSH_WORKFLOW, sandboxed=False)
class PushWorkflow:
    """Posts what happens to a task until it has ended."""

    @workflow.run
    async def run(self, push: Push) -> None:
        """Makes one activity after the other until all is posted; each is tried again if it fails."""
        while True:
            cursor: str | None = await workflow.execute_activity(
                "a2a-notify",
                push,
                result_type=str,
                start_to_close_timeout=timedelta(days=365),
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(seconds=1),
                    maximum_interval=timedelta(minutes=5),
                    maximum_attempts=ATTEMPTS,
                ),
            )
            if cursor is None:
                return
            push = push.model_copy(update={"cursor": cursor})
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(push)


class PushNotifications:
    """The configurations of push notifications, and what delivers them. A configuration is an open workflow."""

    def __init__(self, client: Client, runs: Runs, environ: Mapping[str, str], *, private: bool) -> None:
        self._client = client
        self._runs = runs
        self._queue = f"{environ.get('BATON_TASK_QUEUE') or task_queue()}-a2a"
        self._deliveries = 0
        self._private = private

    async def create(
        self, config: TaskPushNotificationConfig, view: TaskView, caller: Caller, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Creates or replaces a configuration: what happens after the state of ``view`` is posted.

        One of the same id that posts still keeps its place, also if other fields replace it: what it has not posted yet
        is not lost. Raises InvalidParamsError for an address that is not public, or that is not https, and for too many
        configurations.
        """
        await self._check(config)
        config_id = _id_of(config)
        known = {each.id for each in await self.list(view.run.id)}
        if config_id not in known:
            if len(known) >= MAX_CONFIGS:
                raise InvalidParamsError(f"a task has at most {MAX_CONFIGS} push notification configurations")
            await self._check_number(caller)
        headers = {name.lower(): value for name, value in context.state["headers"].items()}
        push = Push(
            run=view.run.id,
            url=config.url,
            token=config.token,
            scheme=config.authentication.scheme,
            credentials=config.authentication.credentials,
            version=headers.get(VERSION_HEADER.lower()) or PROTOCOL_VERSION_0_3,
            caller=caller.name,
            namespace=caller.account.namespace,
            service_account=caller.account.name,
            sees_all=caller.sees_all,
            cursor=view.cursor,
        )
        shown: JsonObject = {"url": config.url, "scheme": config.authentication.scheme}
        if earlier := await self._delivery(view.run.id, config_id):
            push = push.model_copy(update={"cursor": earlier.cursor})
            if push == earlier:
                return _config(view.run.id, config_id, shown)

        async def start(attributes: TypedSearchAttributes) -> None:
            await self._client.start_workflow(
                PUSH_WORKFLOW,
                push,
                id=push_id(view.run.id, config_id),
                task_queue=self._queue,
                memo={CONFIG: shown},
                search_attributes=attributes,
                priority=Priority(fairness_key=caller.digest),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
            )

        await self._runs.attributed(caller, start)
        return _config(view.run.id, config_id, shown)

    async def keep(
        self, config: TaskPushNotificationConfig, view: TaskView, caller: Caller, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """The configuration of that id as the task has it; it is created if there is none.

        Replacing it would lose what it has not posted yet.
        """
        try:
            return await self.get(view.run.id, _id_of(config))
        except NotFoundError:
            return await self.create(config, view, caller, context)

    async def check(self, config: TaskPushNotificationConfig, caller: Caller) -> None:
        """Raises InvalidParamsError if the configuration would be rejected for any task that is yet to be started."""
        await self._check(config)
        await self._check_number(caller)

    async def _check(self, config: TaskPushNotificationConfig) -> None:
        if len(config.id) > 64 or "/" in config.id:
            raise InvalidParamsError("the id of a configuration has at most 64 characters, and no slash")
        await self._check_url(config.url)

    async def get(self, run: str, config_id: str) -> TaskPushNotificationConfig:
        """A configuration, without its secrets. Raises NotFoundError."""
        described = await self._describe(run, config_id)
        memo = await memo_of(described)
        return _config(run, config_id, memo.get(CONFIG))

    async def list(self, run: str) -> list[TaskPushNotificationConfig]:
        """The configurations of a task, without their secrets, by id."""
        prefix = push_id(run, "")
        newest: dict[str, WorkflowExecution] = {}
        async for execution in self._client.list_workflows(f"{LAST} AND {pushes_of(run)}"):
            known = newest.setdefault(execution.id, execution)
            if known.start_time < execution.start_time:
                newest[execution.id] = execution
        return [
            _config(run, workflow_id.removeprefix(prefix), (await memo_of(execution)).get(CONFIG))
            for workflow_id, execution in sorted(newest.items())
            if execution.status != WorkflowExecutionStatus.TERMINATED
        ]

    async def delete(self, run: str, config_id: str) -> None:
        """Deletes a configuration. Raises NotFoundError."""
        described = await self._describe(run, config_id)
        try:
            await self._handle(run, config_id).terminate("the configuration was deleted")
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        else:
            return
        # It has ended with its task, and so may have earlier ones with this id.
        executions = self._client.list_workflows(pushes_of(run))
        earlier = {execution.run_id async for execution in executions if execution.id == described.id}
        for run_id in {described.run_id, *earlier}:
            await delete_execution(self._client, described.id, run_id)

    @contextlib.asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """Takes part in the delivery while the block runs."""
        async with Worker(
            self._client,
            task_queue=self._queue,
            workflows=[PushWorkflow],
            activities=[self.notify],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=MAX_DELIVERIES,
            # Several gateways of one process, as in tests, are several workers for Temporal only if this differs.
            deployment_config=WorkerDeploymentConfig(
                version=WorkerDeploymentVersion(deployment_name=PUSH_WORKFLOW, build_id=uuid.uuid4().hex),
                use_worker_versioning=False,
            ),
        ):
            yield

    @activity.defn(name="a2a-notify")
    async def notify(self, push: Push) -> str | None:
        """Posts what happens to a task after the cursor of the last heartbeat, to its end.

        If nothing happens for QUIET_SECONDS while all turns of this gateway are taken, it ends with the cursor after
        which the next one goes on.
        """
        cursor = push.cursor
        for noted in activity.info().heartbeat_details[:1]:
            cursor = str(noted) if noted else cursor
        self._deliveries += 1
        try:
            return await self._notify(push, cursor)
        finally:
            self._deliveries -= 1

    async def _notify(self, push: Push, cursor: str | None) -> str | None:
        caller = Caller(push.caller, AccountName(push.namespace, push.service_account), push.sees_all)
        try:
            view = await TaskView.read(await self._runs.find(caller, push.run), cursor)
        except NotFoundError as error:  # it was deleted, or the caller has lost its rights
            self._runs.check_known()  # raises an error that is retried while it is not known whether it has them
            raise ApplicationError(error.message, non_retryable=True) from None
        posted = _Posted(view.cursor, time.monotonic())
        posting = asyncio.create_task(self._post_all(push, view, posted))
        try:
            while not posting.done():
                activity.heartbeat(posted.cursor)  # also while the receiver is slow
                await asyncio.wait([posting], timeout=min(HEARTBEAT.total_seconds() / 3, QUIET_SECONDS))
                is_quiet = time.monotonic() - posted.at >= QUIET_SECONDS
                if is_quiet and posted.cursor and self._deliveries >= MAX_DELIVERIES and not posting.done():
                    return posted.cursor
            await posting
            return None
        finally:
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)

    async def _post_all(self, push: Push, view: TaskView, posted: "_Posted") -> None:
        outbound = Outbound(LIMITS, destination=self._destination(push.url), checks_lease=False)
        async with (
            outbound.open(httpx.AsyncClient, timeout=POST_SECONDS) as http,
            contextlib.aclosing(view.events()) as events,
        ):
            async for event, updates in events:
                for number, update in enumerate(updates):
                    posted.at = math.inf  # giving up the turn now would post it again
                    await self._post(http, push, _body(push, view, update), f"{event.id}/{number}")
                posted.cursor = view.cursor
                if updates:
                    posted.at = time.monotonic()
                activity.heartbeat(view.cursor)

    async def _post(self, http: httpx.AsyncClient, push: Push, body: JsonObject, number: str) -> None:
        headers = {NOTIFICATION_ID: number}
        if push.token:
            headers[TOKEN] = push.token
        if push.scheme and push.credentials:
            headers["authorization"] = f"{push.scheme} {push.credentials}"
        try:
            async with asyncio.timeout(MAX_POST_SECONDS):
                response = await http.post(push.url, json=body, headers=headers)
        except (httpx.HTTPError, BatonError, TimeoutError) as error:
            raise ApplicationError(f"the receiver can't be reached: {type(error).__name__}") from None
        if response.status_code == GONE:
            raise ApplicationError("the receiver wants no more notifications: HTTP 410", non_retryable=True)
        if not response.is_success:
            raise ApplicationError(f"the receiver answered HTTP {response.status_code}")

    def _destination(self, url: str) -> Destination:
        return Destination(url, Provenance.SERVER, self._private)

    async def _check_number(self, caller: Caller) -> None:
        if not await self._runs.finds_callers():
            return
        own = f"{CALLER.name} = '{caller.digest}'"
        query = f"WorkflowType = '{PUSH_WORKFLOW}' AND ExecutionStatus = 'Running' AND {own}"
        if (await self._client.count_workflows(query)).count >= MAX_CONFIGS_OF_CALLER:
            raise InvalidParamsError(
                f"a caller has at most {MAX_CONFIGS_OF_CALLER} push notification configurations of tasks that have "
                "not ended: delete some, or wait until their tasks have ended"
            )

    async def _check_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidParamsError("the URL for push notifications is not a URL") from None
        if not parts.hostname or parts.scheme not in ("https", "http" if self._private else "https"):
            raise InvalidParamsError("push notifications are sent to https:// URLs")
        if self._private:
            return
        try:
            await Outbound(LIMITS, destination=None).public_address(parts.hostname, port or 443)
        except BatonError:
            raise InvalidParamsError("push notifications are sent to public addresses") from None

    async def _delivery(self, run: str, config_id: str) -> Push | None:
        """The open delivery of a configuration, with the cursor to which it has come; None if there is none."""
        try:
            described = await self._describe(run, config_id)
        except NotFoundError:
            return None
        if described.status != WorkflowExecutionStatus.RUNNING:
            return None
        converter = self._client.data_converter
        delivery: Push | None = None
        async for event in self._handle(run, config_id, described.run_id).fetch_history_events():
            if event.HasField("workflow_execution_started_event_attributes"):
                given = event.workflow_execution_started_event_attributes.input
            elif event.HasField("activity_task_scheduled_event_attributes"):
                given = event.activity_task_scheduled_event_attributes.input
            else:
                continue
            delivery = await decode_payload(converter, given, Push)
        for activity_ in described.raw_description.pending_activities:
            if delivery and activity_.heartbeat_details.payloads:
                noted = await decode_payload(converter, activity_.heartbeat_details, str)
                delivery = delivery.model_copy(update={"cursor": noted or delivery.cursor})
        return delivery

    async def _describe(self, run: str, config_id: str) -> WorkflowExecutionDescription:
        missing = NotFoundError(f"the task has no push notification configuration '{config_id[:100]}'")
        try:
            described = await self._handle(run, config_id).describe()
        except RPCError as error:
            if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise
            raise missing from None
        if described.status == WorkflowExecutionStatus.TERMINATED:
            raise missing
        return described

    def _handle(self, run: str, config_id: str, execution: str | None = None) -> WorkflowHandle[object, object]:
        return self._client.get_workflow_handle(push_id(run, config_id), run_id=execution)


@dataclass
class _Posted:
    """How far notifications were posted, and the time ``at`` which the last one was, in seconds of a clock.

    It is infinite while one is being posted.
    """

    cursor: str | None
    at: float


def _body(push: Push, view: TaskView, update: Update) -> JsonObject:
    if push.version.startswith("0."):
        task: JsonObject = conversions.to_compat_task(view.task).model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        return task
    event: JsonObject = MessageToDict(to_stream_response(update))
    return event


def _id_of(config: TaskPushNotificationConfig) -> str:
    return config.id or hashlib.sha256(config.url.encode()).hexdigest()[:16]


def _config(run: str, config_id: str, shown: object) -> TaskPushNotificationConfig:
    fields = shown if isinstance(shown, dict) else {}
    config = TaskPushNotificationConfig(task_id=run, id=config_id, url=str(fields.get("url") or ""))
    if scheme := fields.get("scheme"):
        config.authentication.scheme = str(scheme)
    return config
