"""Asks teams and agents from the workflows of an application, as child workflows.

    @workflow.defn
    class Claim:
        @workflow.run
        async def run(self, text: str) -> str:
            decision = await baton.workflow.run_team("claims", text, output=Decision)
            ...

The child is a run of Baton, of the type ``query``: it is listed, steered and approved like any other. It is executed by
workers of the parent's task queue, or of ``task_queue``. Works in the SDK's sandbox, and with any data converter.
"""

import asyncio
import contextlib
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.workflow import ChildWorkflowCancellationType, ChildWorkflowHandle, ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

    from . import installation  # noqa: F401  # raises ImportError if another distribution shares the folder

T = TypeVar("T")

Input = str | Mapping[str, JsonValue] | BaseModel
"""A text, or a value that is sent as JSON."""


class ChildOptions(TypedDict, total=False):
    """Options of a run that is a child workflow.

    ``id`` is its workflow id; the default has the parent's id and the target's name. ``task_queue`` is that of Baton's
    workers, by default the parent's. ``parent_close_policy`` and ``cancellation_type`` are Temporal's; by default the
    run is canceled when its parent closes before it, and a canceled parent that awaits it waits until it has ended.
    ``summary`` is shown in Temporal's UI.

    ``namespace`` is that of the manifests, ``parameters`` are values for templates, ``session`` the initial values of
    the run's session, ``timeout`` the time limit of the run, ``budget`` its limits, such as ``{"tokens": 20_000}``,
    ``conversation`` the id of the conversation that it continues, ``service_account`` the account whose rights it has,
    and ``resources`` are inline manifests.
    """

    id: str
    task_queue: str
    parent_close_policy: ParentClosePolicy
    cancellation_type: ChildWorkflowCancellationType
    summary: str
    namespace: str
    parameters: Mapping[str, str]
    session: Mapping[str, JsonValue]
    timeout: timedelta
    budget: Mapping[str, JsonValue]
    conversation: str
    service_account: str
    resources: Sequence[Mapping[str, Any]]


RUNS_OF_1_1 = "baton-runs-1.1"
"""The patch with which ids of runs have twelve random digits, and a run is canceled by its id.

Before 1.1 they had six, and Temporal was left to cancel the run: it cancels its first execution alone. Histories of
applications have this patch.
"""


class ChildRun(Generic[T]):
    """A run that the workflow has started. ``await run`` waits for its answer."""

    def __init__(
        self,
        handle: ChildWorkflowHandle[Any, dict[str, Any]],
        output: type[T],
        cancel_by_id: ChildWorkflowCancellationType = ChildWorkflowCancellationType.ABANDON,
    ) -> None:
        """``cancel_by_id`` is how a canceled parent cancels the run by its id; with ABANDON, it does not."""
        self.handle = handle
        self._output = output
        self._cancel_by_id = cancel_by_id
        self._canceling: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The workflow id."""
        return self.handle.id

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()

    async def result(self) -> T:
        """The answer, of the type ``output``.

        Raises:
            ChildWorkflowError: the run failed or was canceled; the details of its cause are the run's status.
            ApplicationError: of the type ``InvalidOutput``: the answer is not of the type ``output``, for example as
                the run was terminated before it had one. Its details are the run's status, too.
        """
        status = await self.status()
        answer = status.get("message", "")
        if self._output is str:
            return answer  # type: ignore[no-any-return]  # a str
        try:
            return TypeAdapter(self._output).validate_json(answer)
        except ValidationError as error:
            reason = status.get("stopReason")
            what = f"the answer of {self.id}, which ended as '{reason}', is not a valid {self._output.__name__}"
            problems = f"{error.error_count()} problems, first: {error.errors()[0]['msg']}"
            raise ApplicationError(f"{what}: {problems}", status, type="InvalidOutput", non_retryable=True) from None

    async def status(self) -> dict[str, Any]:
        """The status at the end, as described in docs/reference.md. Raises ChildWorkflowError."""
        while self._cancel_by_id != ChildWorkflowCancellationType.ABANDON and not self.handle.done():
            try:
                await workflow.wait([self.handle])
            except asyncio.CancelledError:
                if self._canceling is None:
                    self._canceling = asyncio.create_task(self._cancel())
                if self._cancel_by_id != ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED:
                    self.handle.cancel()
                    break
        return await self.handle

    async def _cancel(self) -> None:
        """Cancels the run, whichever of its executions is open."""
        with contextlib.suppress(ApplicationError):  # it may have ended by now
            await workflow.get_external_workflow_handle(self.id).cancel()

    async def terminate(self, reason: str = "", *, now: bool = False) -> None:
        """Ends the run after its current turn or, with ``now``, at once. It completes with what was said."""
        await self.handle.signal("terminate_team", {"reason": reason, "now": now})

    async def pause(self, name: str = "") -> None:
        """Pauses the run before its next call; its status shows the ``name``."""
        await self.handle.signal("pause", {"name": name} if name else {})

    async def resume(self) -> None:
        """Resumes the run."""
        await self.handle.signal("resume", {})

    async def steer(self, text: str, name: str = "user") -> None:
        """Sends a message to the next speaker."""
        await self.handle.signal("steer", {"text": text, "name": name})


@overload
async def start_team(team: str, input: Input, **options: Unpack[ChildOptions]) -> ChildRun[str]: ...
@overload
async def start_team(team: str, input: Input, *, output: type[T], **options: Unpack[ChildOptions]) -> ChildRun[T]: ...
async def start_team(
    team: str, input: Input, *, output: type[Any] = str, **options: Unpack[ChildOptions]
) -> ChildRun[Any]:
    """Starts a run of a team. ``output`` is the type of the answer: text, or what JSON is parsed into."""
    return await _start("team", team, input, output, options)


@overload
async def run_team(team: str, input: Input, **options: Unpack[ChildOptions]) -> str: ...
@overload
async def run_team(team: str, input: Input, *, output: type[T], **options: Unpack[ChildOptions]) -> T: ...
async def run_team(team: str, input: Input, *, output: type[Any] = str, **options: Unpack[ChildOptions]) -> Any:
    """Runs a team to its end; its answer, of the type ``output``. Raises what ``ChildRun.result`` raises."""
    return await (await _start("team", team, input, output, options))


@overload
async def start_agent(agent: str, input: Input, **options: Unpack[ChildOptions]) -> ChildRun[str]: ...
@overload
async def start_agent(agent: str, input: Input, *, output: type[T], **options: Unpack[ChildOptions]) -> ChildRun[T]: ...
async def start_agent(
    agent: str, input: Input, *, output: type[Any] = str, **options: Unpack[ChildOptions]
) -> ChildRun[Any]:
    """Starts a run of an agent. ``output`` is the type of the answer: text, or what JSON is parsed into."""
    return await _start("agent", agent, input, output, options)


@overload
async def run_agent(agent: str, input: Input, **options: Unpack[ChildOptions]) -> str: ...
@overload
async def run_agent(agent: str, input: Input, *, output: type[T], **options: Unpack[ChildOptions]) -> T: ...
async def run_agent(agent: str, input: Input, *, output: type[Any] = str, **options: Unpack[ChildOptions]) -> Any:
    """Runs an agent to its end; its answer, of the type ``output``. Raises what ``ChildRun.result`` raises."""
    return await (await _start("agent", agent, input, output, options))


async def _start(kind: str, name: str, value: Input, output: type[T], options: ChildOptions) -> ChildRun[T]:
    if unknown := sorted(options.keys() - ChildOptions.__annotations__.keys()):
        known = ", ".join(sorted(ChildOptions.__annotations__))
        raise TypeError(f"there is no option '{unknown[0]}'; known: {known}")
    is_new = workflow.patched(RUNS_OF_1_1)
    cancellation_type = options.get("cancellation_type", ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED)
    digits = workflow.uuid4().hex[: 12 if is_new else 6] if not options.get("id") else ""
    handle = await workflow.start_child_workflow(
        "query",
        _query(kind, name, value, options),
        id=options.get("id") or f"{workflow.info().workflow_id}/{name}-{digits}",
        task_queue=options.get("task_queue"),
        result_type=dict[str, Any],
        parent_close_policy=options.get("parent_close_policy", ParentClosePolicy.REQUEST_CANCEL),
        cancellation_type=cancellation_type,
        static_summary=options.get("summary") or f"{kind} {name}",
    )
    return ChildRun(handle, output, cancellation_type if is_new else ChildWorkflowCancellationType.ABANDON)


def _query(kind: str, name: str, value: Input, options: ChildOptions) -> dict[str, Any]:
    """The input of the workflow type ``query``."""
    timeout = options.get("timeout")
    parameters = options.get("parameters") or {}
    spec = {
        "input": value if isinstance(value, str) else TypeAdapter(Any).dump_json(value).decode(),
        "targets": [{"type": kind, "name": name}],
        "parameters": [{"name": key, "value": text} for key, text in parameters.items()],
        "timeout": f"{round(timeout / timedelta(milliseconds=1))}ms" if timeout else None,
        "budget": options.get("budget"),
        "conversationId": options.get("conversation"),
        "serviceAccount": options.get("service_account"),
    }
    query = {
        "name": name,
        "namespace": options.get("namespace"),
        "spec": {key: part for key, part in spec.items() if part},
        "session": options.get("session"),
        "resources": options.get("resources"),
    }
    return {key: part for key, part in query.items() if part}
