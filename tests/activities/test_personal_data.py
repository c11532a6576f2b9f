"""The hook of BATON_REDACT: personal data is stored nowhere."""

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

import baton
from baton import worker
from baton.contracts.errors import NotRedacted
from baton.contracts.message import Message, PersonDecision, SecretPlaceholder, ToolCall
from baton.contracts.settings import SettingsError
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.query import Query
from baton.resources.schedule import Schedule
from baton.starter.runs.control import steer, terminate
from baton.starter.runs.schedules import apply_schedule, schedule_handle
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.client import connect
from baton.temporal.personal_data import PersonalData, personal_data_of, redact_setting
from baton.testing import Reply, Request
from tests.harness import redactions
from tests.harness.environment import Environment, Handle, agent, manifest, team
from tests.harness.trace_collector import TraceCollector
from tests.starter.test_encryption import stored_data

MARK = "zq4711@example.com"
"""What must be found nowhere."""

PATTERNS = {"email": r"[\w.-]+@[\w-]+\.[a-z]+", "phone": r"\b0\d{9}\b"}

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def hook_of(setting: Mapping[str, str]) -> PersonalData:
    hook = personal_data_of(setting)
    assert hook
    return hook


BY_PATTERNS = redact_setting(PATTERNS)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceCollector]:
    """A collector of the spans of ``redacting_env``, which have contents of messages."""
    collector = TraceCollector()
    with collector.serve():
        for name, value in {**collector.environment, CONTENT: "true"}.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest_asyncio.fixture(loop_scope="session")
async def redacting_env(
    server: EmbeddedServer, tmp_path: Path, collector: TraceCollector
) -> AsyncIterator[Environment]:
    """An environment whose worker and client redact by patterns."""
    client = await connect(server.address, BY_PATTERNS)
    async with Environment.running(client, tmp_path, variables=BY_PATTERNS) as env:
        yield env


def answer(request: Request) -> Reply:
    """The model's replies, full of personal data."""
    system, last = request["messages"][0]["content"], request["messages"][-1]
    if "broken" in system:
        return Reply(status=400, text=f"{MARK} is wrong")
    if last["role"] == "tool":
        return Reply(text=f"Write to {MARK} again.", pause=0.01)
    calls = [{"name": "calculator", "arguments": {"expression": MARK}}]
    return Reply.model_validate({"text": f"I ask {MARK}.", "calls": calls})


def query(*targets: str, **spec: object) -> dict[str, object]:
    refs = [dict(zip(("type", "name"), target.split("/"), strict=True)) for target in targets]
    manifests = [agent("one", "calculator"), agent("broken"), team("team", "one", "broken", strategy="sequential")]
    return {"name": "q", "spec": {"input": f"Ask {MARK}.", "targets": refs, **spec}, "resources": manifests}


async def kept(env: Environment, client: Client, run: Handle) -> bytes:
    """All that the journal, the files of spans and Temporal have of a run."""
    files = list[bytes]()
    for file in env.folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # files of spans go when they are exported
            files.append(file.read_bytes())
    return b"".join(files) + await stored_data(client, run)


@pytest.mark.full
async def test_personal_data_is_neither_in_the_journal_nor_in_histories_logs_and_traces(
    redacting_env: Environment, client: Client, collector: TraceCollector, caplog: pytest.LogCaptureFixture
) -> None:
    env = redacting_env
    env.answer = answer
    caplog.set_level(logging.INFO)
    parameters = [{"name": "who", "value": MARK}]
    given = query("team/team", input=f"Ask {MARK} or {{{{.who}}}}, 0123456789.", parameters=parameters)
    run = await env.start("query", given, static_summary=f"Ask {MARK}")
    status = await env.status(run)
    assert "[email] is wrong" in (status.error or "")
    asked = json.dumps([request.body for request in env.model.requests])
    assert "Ask [email] or [email], [phone]." in asked and "I ask [email]." in asked and MARK not in asked
    found = await kept(env, client, run)
    assert b"Write to [email] again." in found and b"Ask [email]" in found
    assert MARK.encode() not in found and b"0123456789" not in found
    while not any(b"[email]" in body for body in collector.bodies):
        await asyncio.sleep(0.05)
    assert MARK.encode() not in b"".join(collector.bodies)
    assert MARK not in caplog.text


@pytest.mark.full
async def test_words_of_people_are_redacted(redacting_env: Environment, client: Client) -> None:
    env = redacting_env
    env.answer = answer
    person = {"name": "ann", "type": "human"}
    manifests = [manifest("Team", "team", {"strategy": "sequential", "members": [person]})]
    run = await env.start_team(manifests, question=f"Ask {MARK}")
    while not (waiting := (await run.query("status")).get("pendingDecisions")):
        await asyncio.sleep(0.05)
    await steer(env.client, run, f"Also {MARK}.", "bea")
    await run.signal("session", {"mail": MARK, "n": 123456789})
    assert waiting[0]["question"].endswith("Ask [email]")
    await run.execute_update("reply", {"text": f"I am {MARK}", "by": "ann"})
    await env.turn_result(run)
    found = await kept(env, client, run)
    assert b"I am [email]" in found and b"Also [email]." in found
    assert MARK.encode() not in found
    env.answer = lambda _: Reply(text="Slowly.", pause=60)
    open_run = await env.start_team([agent("one"), team("team", "one", maxTurns=1)])
    await env.wait_for_calls(1)
    await terminate(open_run, f"{MARK} said so", now=True)
    assert (await env.turn_result(open_run)).note == "[email] said so"
    assert MARK.encode() not in await kept(env, client, open_run)


@pytest.mark.full
async def test_of_a_client_without_the_hook_only_the_history_has_what_it_has_sent_and_the_run_says_so(
    redacting_env: Environment, client: Client
) -> None:
    env = redacting_env
    env.answer = answer
    assert not (await env.status(await env.start("query", query("agent/one")))).notices
    there = dataclasses.replace(env, client=client)
    run = await there.start("query", query("agent/one"))
    status = await there.status(run)
    assert status.message == "Write to [email] again."
    (notice,) = status.notices or ()
    assert "does not redact personal data: the history has its input as it was sent; set BATON_REDACT" in notice
    assert MARK.encode() in await stored_data(client, run)
    assert MARK.encode() not in env.journal_bytes and b"Ask [email]." in env.journal_bytes


async def test_a_worker_without_the_hook_refuses_the_runs_of_a_client_that_redacts(
    client: Client, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Environment.running(client, tmp_path) as env:
        env.answer = answer
        there = dataclasses.replace(env, client=await connect(server.address, BY_PATTERNS))
        turn = {"agent": "one", "input": f"Ask {MARK}.", "resources": [agent("one")]}
        for run in (await there.start("query", query("agent/one")), await there.start("agent", turn)):
            status = await there.status(run)
            assert status.phase == "Failed"
            said = status.error or ""
            assert "nothing was stored: the client redacts personal data, and the worker" in said
            assert "does not: set BATON_REDACT for all workers of its task queue" in said
            assert MARK.encode() not in await kept(env, client, run)
        assert not env.model.requests
        assert (await env.status(await env.start("query", query("agent/one")))).phase == "Completed"


@pytest.mark.full
async def test_a_run_that_began_with_the_hook_waits_while_no_worker_has_it(client: Client, tmp_path: Path) -> None:
    async with Environment.running(client, tmp_path) as env:
        env.answer = answer
        other = dataclasses.replace(env, task_queue=f"{env.task_queue}-other")
        person = {"name": "ann", "type": "human"}
        members = [person, {"name": "one", "type": "agent"}]
        manifests = [agent("one"), manifest("Team", "team", {"strategy": "sequential", "members": members})]
        async with worker.run_worker(client, env.catalog, {**other.worker_env, **BY_PATTERNS}):
            run = await other.start_team(manifests, question="Ask!")
            while not (await run.query("status")).get("pendingDecisions"):
                await asyncio.sleep(0.05)
        async with worker.run_worker(client, env.catalog, other.worker_env):
            await run.execute_update("reply", {"text": "Hello", "by": "ann"})
            while "does not redact personal data" not in await last_failures(run):
                await asyncio.sleep(0.05)
        assert not env.model.requests
        async with worker.run_worker(client, env.catalog, {**other.worker_env, **BY_PATTERNS}):
            assert (await env.turn_result(run)).message == "Write to [email] again."
            assert MARK.encode() not in await kept(env, client, run)


async def last_failures(run: Handle) -> str:
    """The last failures of the activities that a run waits for."""
    pending = (await run.describe()).raw_description.pending_activities
    return " ".join(each.last_failure.message for each in pending)


@pytest.mark.parametrize("hook", ["failing", pytest.param("slow", marks=pytest.mark.full)])
async def test_nothing_is_stored_if_the_hook_fails_or_takes_too_long(
    hook: str, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setting = redact_setting(getattr(redactions, hook))
    async with Environment.running(client, tmp_path, variables=setting) as env:
        env.answer = lambda _: Reply(text=f"It is {MARK}.")
        run = await env.start_query([agent("one")], "agent/one")
        status = await env.status(run)
        said = "failed with RuntimeError" if hook == "failing" else "took longer than 10 s"
        assert f"nothing was stored: BATON_REDACT {said}" in (status.error or "")
        assert MARK.encode() not in await kept(env, client, run)
        assert MARK not in caplog.text
        env.answer = lambda _: Reply(text="It is harmless.")
        assert (await env.status(await env.start_query([agent("one")], "agent/one"))).message == "It is harmless."


async def test_the_event_loop_goes_on_while_the_hook_is_slow() -> None:
    hook = hook_of(redact_setting(redactions.slow))
    slow = asyncio.create_task(hook.text(MARK))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not slow.done(), "in the event loop it would be the first to end"
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await hook.close()


@pytest.mark.full
async def test_a_worker_with_a_hook_that_cannot_be_loaded_does_not_start(client: Client, tmp_path: Path) -> None:
    (tmp_path / "patterns.yaml").write_text("email: '['")
    for setting, said in (
        ("no.such:module", "No module named 'no'"),
        ("tests.harness.redactions:none", "has no attribute 'none'"),
        ("tests.harness.redactions:wrong", "TypeError"),
        (str(tmp_path / "patterns.yaml"), "the pattern 'email' is not a regular expression"),
        (str(tmp_path / "none.yaml"), "No such file"),
        ("{}", "write patterns by name"),
    ):
        with pytest.raises(SettingsError, match=f"BATON_REDACT: .*{said}"):
            async with Environment.running(client, tmp_path, variables={"BATON_REDACT": setting}):
                pass


async def test_the_texts_of_json_are_redacted_one_by_one_and_it_stays_json(tmp_path: Path) -> None:
    (tmp_path / "patterns.yaml").write_text("email: '[a-z]+@[a-z.]+'\nphone: '0?[0-9]{9}'\n")
    hook = hook_of({"BATON_REDACT": str(tmp_path / "patterns.yaml")})
    escaped = '{"to": "a\\u0040b.example", "tel": 123456789, "n": 5, "yes": true, "more": ["x@y.z", null]}'
    clean = {"to": "[email]", "tel": "[phone]", "n": 5, "yes": True, "more": ["[email]", None]}
    assert json.loads(await hook.text(escaped)) == clean
    kept_texts = ['{"a":  1}', "[not json", "{broken", "plain", ""]
    assert await hook.texts(kept_texts) == kept_texts
    await hook.close()


async def test_presidio_recognizes_what_has_a_pattern() -> None:
    pytest.importorskip("presidio_analyzer")
    hook = hook_of({"BATON_REDACT": "presidio"})
    await hook.check()
    text = f"Mail {MARK}, pay from DE89370400440532013000, call +49 30 901820; 3 + 4 = 7 in turn 12."
    clean = "Mail [email_address], pay from [iban_code], call [phone_number]; 3 + 4 = 7 in turn 12."
    assert await hook.text(text) == clean
    assert await hook.text(clean) == clean
    await hook.close()


async def test_placeholders_of_secrets_stay_in_a_redacted_message() -> None:
    hook = hook_of(BY_PATTERNS)
    blank = SecretPlaceholder(at=len("a@b.de and "), length=len("[key]"), name="key")
    message = Message(role="user", content="a@b.de and [key], c@d.de", blanks=(blank,))
    call = ToolCall(id="1", name="mail", arguments='{"to": "e@f.de"}')
    decision = PersonDecision(approved=True, at=datetime.now(UTC), by="g@h.de", reason="i@j.de")
    (clean, other) = await hook.messages([message, Message(role="tool", tool_calls=(call,), decision=decision)])
    assert clean.content == "[email] and [key], [email]"
    (moved,) = clean.blanks
    assert clean.content[moved.at : moved.at + moved.length] == "[key]"
    assert other.tool_calls[0].arguments == '{"to": "[email]"}'
    assert other.decision and (other.decision.reason, other.decision.by) == ("[email]", "g@h.de")
    await hook.close()


async def test_images_and_files_are_refused(redacting_env: Environment, client: Client) -> None:
    env = redacting_env
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGFsbG8="}}
    question = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]
    given = query("agent/one", type="messages", input=question)
    with pytest.raises(NotRedacted, match="images and files can't be redacted"):
        await env.start("query", given)
    there = dataclasses.replace(env, client=client)
    status = await there.status(await there.start("query", given))
    assert "images and files can't be redacted" in (status.error or "")
    assert b"aGFsbG8" not in env.journal_bytes


@pytest.mark.full
async def test_a_schedule_has_no_personal_data(redacting_env: Environment) -> None:
    env = redacting_env
    asked = manifest("Query", "q", {"input": f"Ask {MARK}.", "target": {"type": "agent", "name": "one"}})
    every = manifest("Schedule", "mail", {"schedule": "@yearly", "query": {"name": "q"}})
    catalog = load_documents([Document("s.yaml", each, {}) for each in (agent("one"), asked, every)]).catalog
    schedule, asks = catalog.get("Schedule", "default", "mail"), catalog.get("Query", "default", "q")
    assert isinstance(schedule, Schedule)
    assert isinstance(asks, Query)
    await apply_schedule(env.client, schedule, asks, catalog, env.task_queue)
    handle = schedule_handle(env.client, "default", "mail")
    try:
        stored = (await handle.describe()).raw_description.SerializeToString()
        assert MARK.encode() not in stored
        assert b"Ask [email]." in stored
        assert await apply_schedule(env.client, schedule, asks, catalog, env.task_queue) == "unchanged"
    finally:
        await handle.delete()


@pytest.mark.full
async def test_a_program_redacts_with_a_function_of_a_module_or_with_patterns(client: Client, tmp_path: Path) -> None:
    async with Environment.running(client, tmp_path, variables=BY_PATTERNS) as env:
        env.answer = lambda _: Reply(text=f"Hello {MARK}.")
        for hook in (redactions.mails, PATTERNS):
            async with baton.connect(client=client, task_queue=env.task_queue, redact=hook) as program:
                handle = await program.start(baton.Agent("one", prompt="You are one."), f"I am {MARK}.")
                assert (await handle.result()).message == "Hello [email]."
                assert MARK.encode() not in await kept(env, client, client.get_workflow_handle(handle.id))
        with pytest.raises(ValueError, match="a function that is defined in a module"):
            baton.connect(client=client, redact=lambda text: text)
