"""Finds a run by its id or by the name of its Query."""

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...conversation.settings_error import SettingsError
from ...conversation.temporal.execution_chain import first_run_id
from .newest_runs import newest_runs
from .run_handle import RunHandle

SEARCH_LIMIT = 1_000
"""The number of runs, of the open ones and of the others, among which the run of a Query is searched."""


class NoSuchRunError(Exception):
    """There is no run of that name or id."""


async def find_run(client: Client, name: str, namespace: str) -> RunHandle:
    """The run with that id, or else the newest run of the Query with that name.

    Raises:
        NoSuchRunError: if there is none.
        SettingsError: if a run's memo is encrypted and the key is missing, so that it might be the one.
    """
    handle = client.get_workflow_handle(name)
    try:
        await handle.describe()
        return handle
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
    if found := await _newest_of_query(client, name, namespace):
        return found
    raise NoSuchRunError(f"there is no run '{name}', neither by that id nor of a Query of that name in {namespace}")


async def _newest_of_query(client: Client, name: str, namespace: str) -> RunHandle | None:
    """The newest run of a Query: its name and namespace are in the run's memo."""
    missing_key: SettingsError | None = None

    async def matches(run: WorkflowExecution) -> bool:
        nonlocal missing_key
        try:
            memo = await run.memo()
        except SettingsError as error:
            missing_key = error
            return False
        return (memo.get("query"), memo.get("namespace")) == (name, namespace)

    queries, of_name = "WorkflowType = 'query'", f"WorkflowId STARTS_WITH '{_escape(name)}-'"  # as most ids begin
    found = await newest_runs(client, f"{queries} AND {of_name}", 1, matches, SEARCH_LIMIT)
    since = f" AND StartTime > '{found[0][0].isoformat()}'" if found else ""
    if found := [*found, *await newest_runs(client, f"{queries}{since}", 1, matches, SEARCH_LIMIT)]:
        _, run = max(found, key=lambda each: each[0])
        return await _latest_execution(client, run.id, run.run_id)
    if missing_key:
        raise missing_key
    return None


async def _latest_execution(client: Client, run: str, run_id: str | None) -> RunHandle:
    """A handle without a run id, which follows continue-as-new, unless the id was used again for another run."""
    found, latest = client.get_workflow_handle(run, run_id=run_id), client.get_workflow_handle(run)
    return latest if await first_run_id(latest) == await first_run_id(found) else found


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
