"""Gives odd input to the loader, to runs, to models and to tools.

``python -m tests.chaos.fuzz [--examples 100] [--seconds 60]``. Odd manifests are read by the loader and passed to runs;
models answer with odd replies and tool calls; tools give odd responses. Every run has to end, without a failed workflow
task and with no error but Baton's own. If atheris is installed (``pip install atheris``), it feeds the loader with
inputs that lead to new code.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHistory
from temporalio.common import RawValue

from baton.contracts import errors
from baton.resources.loader import load_files
from baton.resources.problems import ManifestError
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.server.state_dir import StateDir
from baton.testing import Reply, Request
from tests.chaos import coverage_guided, odd_values
from tests.chaos.report import Report, arguments
from tests.harness.environment import Environment, Handle, Json, agent, manifest
from tests.harness.ports import own_ports
from tests.harness.tool_server import Answer, ToolServer

OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type)} | {"CancelledError", "TimeoutError"}
"""The errors that a run may end with."""

AT_ONCE = 8
"""How many odd replies are tried in one run."""

RUN_TIMEOUT = 120.0
"""Seconds after which a run counts as stuck."""


def read(folder: Path, documents: Sequence[Json]) -> None:
    """Loads manifests as every command does; raises unless they are accepted or refused with printable messages."""
    file = folder / "m.yaml"
    file.write_text(json.dumps(documents[0]) if len(documents) == 1 else yaml.safe_dump_all(documents))
    try:
        loaded = load_files([file])
        said = [str(each) for each in (*loaded.notices(), *loaded.unresolved(), *loaded.default_members())]
    except ManifestError as error:
        said = str(error).splitlines()
    assert all(line.isprintable() for text in said for line in text.splitlines()), said


async def run_with_manifests(env: Environment, documents: Sequence[Json]) -> None:
    """Starts a run with manifests in its input, which it may refuse; raises if it gets stuck."""
    env.answer = lambda _: Reply(text="Well.")
    name = next((each["metadata"]["name"] for each in documents if _is_team(each)), "team")
    given = json.dumps({"team": name, "input": "Why?", "resources": [*documents]}).encode()
    await ended(await env.start("round-robin", RawValue(Payload(metadata={"encoding": b"json/plain"}, data=given))))


def _is_team(document: Json) -> bool:
    named = isinstance(document.get("metadata"), dict) and isinstance(document["metadata"].get("name"), str)
    return named and document.get("kind") == "Team"


async def run_with_odd_replies(
    env: Environment, tool_server: ToolServer, replies: Sequence[Reply], answers: Sequence[Answer]
) -> None:
    """Runs agents whose model gives one odd reply each and whose tool responds oddly; raises if one gets stuck."""
    names = [f"a{number}" for number in range(len(replies))]
    left = dict(zip(names, replies, strict=True))
    tool_server.answer = lambda number: answers[number % len(answers)]

    def answer(request: Request) -> Reply:
        name = str(request["messages"][0]["content"]).removeprefix("You are ").removesuffix(".")
        return left.pop(name, Reply(text="Done."))

    env.answer = answer
    schema = {"type": "object", "properties": {"id": {}}}
    http = {"url": f"{tool_server.url}/{{id}}", "method": "POST"}
    order = manifest("Tool", "order", {"type": "http", "http": http, "inputSchema": schema})
    tools = ("calculator", "noop", "terminate", "order", "format-text")
    targets = [f"agent/{name}" for name in names]
    await ended(await env.start_query([order, *(agent(name, *tools) for name in names)], *targets))
    assert not left, "everybody was asked"
    async for handle in env.closed_runs():
        check_history(await handle.fetch_history())


async def ended(handle: Handle) -> None:
    """Waits for the end of a run and checks its history."""
    try:
        await asyncio.wait_for(handle.result(), RUN_TIMEOUT)
    except WorkflowFailureError:
        pass
    finally:
        check_history(await handle.fetch_history())


def check_history(history: WorkflowHistory) -> None:
    """Raises if a workflow task has failed, or if an error is not one of Baton's."""
    for event in history.events:
        name = EventType.Name(event.event_type)
        assert event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, event
        if name.endswith("_FAILED"):
            failure = _attributes(event).failure
            kinds = [each.application_failure_info.type for each in _causes(failure)]
            assert all(kind in OURS for kind in kinds if kind), event
            assert "Traceback" not in str(failure.message)


def _attributes(event: Any) -> Any:
    return getattr(event, event.WhichOneof("attributes"))


def _causes(failure: Any) -> list[Any]:
    return [failure, *(_causes(failure.cause) if failure.HasField("cause") else [])]


@asynccontextmanager
async def running_environment() -> AsyncIterator[Environment]:
    """A test environment with a server of its own."""
    with tempfile.TemporaryDirectory() as name, StateDir(Path(name)).lock("dev") as lock:
        assert lock
        server = EmbeddedServer(Path(name), lock, *own_ports())
        client = await server.start()
        try:
            async with Environment.running(client, Path(name)) as env:
                yield env
        finally:
            await server.stop()


def first_failure(check: Callable[..., None], examples: int, **given_: st.SearchStrategy[Any]) -> str | None:
    """Checks so many examples; the first failure with its example, or None.

    They are new ones each time, or always the same ones where Hypothesis is set so, as in the tests.
    """
    checked = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[*HealthCheck],
    )(given(**given_)(check))
    try:
        checked()
    except Exception as error:  # whatever it is, that is what was looked for
        return f"{type(error).__name__}: {error}"[:2_000] + "".join(getattr(error, "__notes__", ()))[:2_000]
    return None


DOCUMENTS = st.lists(odd_values.manifests(), min_size=1, max_size=3)
REPLIES = st.lists(odd_values.REPLIES, min_size=AT_ONCE, max_size=AT_ONCE)
ANSWERS = st.lists(odd_values.RESPONSES, min_size=1, max_size=AT_ONCE)


def within(loop: asyncio.AbstractEventLoop, check: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes an asynchronous check synchronous, so that Hypothesis can call it from a thread while the loop runs it."""

    def checked(**values: Any) -> None:
        asyncio.run_coroutine_threadsafe(check(**values), loop).result()

    return checked


async def main() -> None:
    """Runs all checks and writes the results."""
    options = arguments(__doc__, examples=100, seconds=60)
    examples, report, loop = options["examples"], Report("fuzz", options), asyncio.get_running_loop()

    async def checked(what: str, check: Callable[..., None], count: int, **values: st.SearchStrategy[Any]) -> None:
        begun = time.monotonic()
        wrong = await asyncio.to_thread(first_failure, check, count, **values)
        report.row({"what": what, "examples": count, "s": round(time.monotonic() - begun), "wrong": wrong})

    async with running_environment() as env:
        with ToolServer().serving() as tool_server:
            await checked("manifests, read", lambda docs: read(env.folder, docs), examples * 20, docs=DOCUMENTS)
            bring = within(loop, lambda docs: run_with_manifests(env, docs))
            await checked("manifests, brought by runs", bring, examples, docs=DOCUMENTS)
            answer = within(loop, lambda replies, answers: run_with_odd_replies(env, tool_server, replies, answers))
            odd = {"replies": REPLIES, "answers": ANSWERS}
            await checked(f"{AT_ONCE} answers of a model, and of a tool", answer, examples, **odd)
    guided = {"what": "manifests, read, guided by coverage"}
    report.row(guided | coverage_guided.row("loader", options["seconds"]))
    report.write()


if __name__ == "__main__":
    asyncio.run(main())
