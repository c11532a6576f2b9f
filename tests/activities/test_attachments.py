"""Images and files in the input of a query: what the models read, where the bytes are stored, and what is refused."""

import base64
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest
import pytest_asyncio
import yaml
from sqlalchemy import select
from temporalio.client import Client

import baton
from baton.activities.attachments import check_accepted
from baton.activities.model.accepted import ACCEPTED
from baton.contracts.attachment import Attachment
from baton.contracts.errors import InvalidInput, JournalLost
from baton.journal import schema
from baton.journal.journal import Journal
from baton.journal.prune import delete_runs
from baton.journal.reencrypt import reencrypt
from baton.resources.content import MAX_ATTACHED
from baton.resources.documents import Document
from baton.resources.loader import load_documents, load_files
from baton.resources.model_settings import ProviderName
from baton.resources.query import Query
from baton.starter.scripted_model import Reply, ScriptedToolCall
from baton.temporal.encryption import Key, Keys
from tests.harness.agent_server import AgentServer
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.manifests import prealpha
from tests.harness.mcp_process import McpServerProcess
from tests.harness.model_providers import ProviderServer, serving
from tests.harness.remote_agents import a2a_agent, a2a_server

SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"key": "held-0123456789"}}
OF_SECRET = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "key"}}}

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4 a report about herons"


def test_it_is_known_for_every_provider_what_it_accepts() -> None:
    """A provider that is missing there would fail each of its calls."""
    assert {*ACCEPTED} == {*get_args(ProviderName)}


def data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


CHART = {"type": "image_url", "image_url": {"url": data_url("image/png", PNG), "detail": "low"}}
REPORT = {"type": "file", "file": {"file_data": data_url("application/pdf", PDF), "filename": "herons.pdf"}}
LINKED: Json = {"type": "image_url", "image_url": {"url": "https://example.com/heron.jpg?signature=abc"}}
SHOWN = f"[image: image/png, {len(PNG)} bytes]"
SHOWN_REPORT = f"[file: herons.pdf, application/pdf, {len(PDF)} bytes]"
SHOWN_LINK = "[image: https://example.com/heron.jpg, image/jpeg]"


def text(content: str) -> Json:
    return {"type": "text", "text": content}


def asking(*content: Json) -> Json:
    """The fields of a query with one message."""
    return {"type": "messages", "input": [{"role": "user", "content": [*content]}]}


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker with the key of the providers."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(SECRET))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env


@pytest.fixture(params=["openai", "openai-responses", "azure", "anthropic", "bedrock"])
def provider(request: pytest.FixtureRequest) -> Iterator[ProviderServer]:
    with serving(request.param, OF_SECRET) as provider:
        yield provider


ENCODED = base64.b64encode(PNG).decode()
ENCODED_PDF = base64.b64encode(PDF).decode()
SENT: dict[str, list[Json]] = {
    "openai": [
        text("Compare"),
        CHART,
        text("with"),
        {"type": "file", "file": {"filename": "herons.pdf", "file_data": data_url("application/pdf", PDF)}},
    ],
    "openai-responses": [
        {"type": "input_text", "text": "Compare"},
        {"type": "input_image", "image_url": data_url("image/png", PNG), "detail": "low"},
        {"type": "input_text", "text": "with"},
        {"type": "input_file", "filename": "herons.pdf", "file_data": data_url("application/pdf", PDF)},
    ],
    "anthropic": [
        text("Compare"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
        text("with"),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": ENCODED_PDF},
            "title": "herons.pdf",
        },
    ],
    "bedrock": [
        {"text": "Compare"},
        {"image": {"format": "png", "source": {"bytes": ENCODED}}},
        {"text": "with"},
        {"document": {"format": "pdf", "name": "herons pdf", "source": {"bytes": ENCODED_PDF}}},
    ],
}
SENT["azure"] = SENT["openai"]


async def test_each_provider_sends_images_and_files_at_their_places_in_the_text(
    env: Environment, provider: ProviderServer
) -> None:
    content = [text("Compare"), CHART, text("with"), REPORT]
    handle = await env.start_query([provider.model()], "model/m", **asking(*content))
    status = await env.status(handle)
    assert status.phase == "Completed", status
    (body,) = provider.server.requests
    message = body["input" if provider.provider == "openai-responses" else "messages"][-1]
    assert (message["role"], message["content"]) == ("user", SENT[provider.provider])


async def test_the_journal_has_the_bytes_and_the_rows_have_texts_with_references(env: Environment) -> None:
    env.script(line("one", "Alike."))
    handle = await env.start_query([agent("one")], "agent/one", **asking(text("See"), CHART, REPORT, CHART))
    status = await env.status(handle)
    assert status.said == "Alike."
    question = next(row for row in env.rows() if row["role"] == "user")
    assert question["content"] == f"See\n{SHOWN}\n{SHOWN_REPORT}\n{SHOWN}"
    first, report, second = question["attachments"]
    run = (await handle.describe()).run_id
    assert first == second
    assert first["stored"].startswith(f"{run}/")
    assert (report["name"], report["mediaType"], report["size"]) == ("herons.pdf", "application/pdf", len(PDF))
    assert ENCODED.encode() in env.journal_bytes
    history = [event async for event in handle.fetch_history_events()]
    holding = [event for event in history if ENCODED.encode() in event.SerializeToString()]
    assert len(holding) == 1, "only the input of the run has the bytes"
    catalog = env.journal_bytes.count(ENCODED.encode())
    assert catalog == 1


async def test_all_members_of_a_team_and_later_queries_of_the_conversation_read_the_images(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Seen.")
    members = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]
    query = {**asking(text("See"), CHART), "conversationId": "c"}
    assert (await env.status(await env.start_query(members, "team/team", **query))).phase == "Completed"
    later = await env.start_query([agent("one")], "agent/one", input="And now?", conversationId="c")
    assert (await env.status(later)).phase == "Completed"
    assert [len(request.body.attached) for request in env.model.requests] == [1, 1, 1]


async def test_a_panel_reads_the_images_of_its_goal(env: Environment) -> None:
    panel = team("team", "one", "two", maxRounds=1, referee=False, synthesizer=False)
    panel["spec"]["members"] = [{"name": "one", "role": "critic"}, {"name": "two", "role": "friend"}]
    status = await env.status(await env.start_query([panel], "team/team", **asking(text("See"), CHART)))
    assert status.phase == "Completed", status
    assert [len(request.body.attached) for request in env.model.requests] == [1, 1]


@pytest.mark.parametrize("members", [("one", "two"), ("one", "nobody")])
def test_the_default_model_counts_only_if_a_speaker_of_a_panel_uses_it(members: Sequence[str]) -> None:
    """Bedrock takes no URL of an image. A member without a manifest is a default member, which uses that model."""
    panel = team("team", maxRounds=1, referee=False, synthesizer=False)
    panel["spec"]["members"] = [{"name": name, "role": "critic"} for name in members]
    bedrock = manifest(
        "Model",
        "default",
        {"type": "bedrock", "model": {"value": "m"}, "config": {"bedrock": {"region": {"value": "x"}}}},
    )
    openai = manifest("Model", "m", {"type": "openai", "model": {"value": "m"}, "config": {"openai": {}}})
    query = manifest("Query", "q", {"targets": [{"type": "team", "name": "team"}], **asking(text("See"), LINKED)})
    agents = [agent(name, modelRef={"name": "m"}) for name in ("one", "two")]
    documents = [Document("m", each, {}) for each in (panel, bedrock, openai, query, *agents)]
    catalog = load_documents(documents).catalog
    asked = catalog.get("Query", "default", "q")
    assert isinstance(asked, Query)
    attached = [Attachment.of(part, None) for part in asked.spec.attached]
    accepted = contextlib.nullcontext() if "nobody" not in members else pytest.raises(InvalidInput, match="no URLs")
    with accepted:
        check_accepted(asked, catalog, attached)


async def test_messages_before_the_question_are_part_of_the_conversation(env: Environment) -> None:
    env.script(line("one", "?", "Grey.", "Fish."))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("What is this?"), CHART]},
        {"role": "assistant", "content": "A heron.", "name": "one"},
        {"role": "user", "content": "Its colour?"},
    ]
    query = {"type": "messages", "input": messages, "conversationId": "c"}
    assert (await env.status(await env.start_query([agent("one")], "agent/one", **query))).said == "Grey."
    await env.status(await env.start_query([agent("one")], "agent/one", input="And food?", conversationId="c"))
    _, second = env.model.requests
    contents = [message["content"] for message in second.body["messages"]]
    assert contents[-6:] == [
        "Be brief.",
        [text("What is this?"), CHART],
        "A heron.",
        "Its colour?",
        "Grey.",
        "And food?",
    ]


@pytest.mark.parametrize(
    ("type_", "content", "reason"),
    [
        ("bedrock", LINKED, f"{SHOWN_LINK}: Model/default/m (bedrock) can't take it: it accepts no URLs of images"),
        (
            "openai",
            {"type": "file", "file": {"file_url": "https://example.com/a.pdf"}},
            "Model/default/m (openai) can't take it: it accepts no URLs of files: pass the bytes",
        ),
        (
            "anthropic",
            {"type": "image_url", "image_url": {"url": data_url("image/bmp", PNG)}},
            "(anthropic) can't take it: it accepts images of the types image/gif, image/jpeg, image/png, image/webp",
        ),
    ],
)
async def test_what_a_model_cannot_take_is_refused_before_any_model_is_called(
    env: Environment, type_: str, content: Json, reason: str
) -> None:
    with serving(type_, OF_SECRET) as provider:
        members = [
            agent("first", modelRef={"name": "m"}),
            agent("one", modelRef={"name": "m"}),
            team("team", "first", "one", strategy="sequential"),
            provider.model(),
        ]
        status = await env.status(await env.start_query(members, "team/team", **asking(text("See"), content)))
        assert status.phase == "Failed"
        assert status.failure
        assert reason in status.failure.message
        assert (provider.server.requests, env.model.requests) == ([], [])


def reports(*numbers: int) -> list[Json]:
    """Different files of the same name."""
    urls = [data_url("application/pdf", PDF + bytes([number])) for number in numbers]
    return [{"type": "file", "file": {"file_data": url, "filename": "herons.pdf"}} for url in urls]


HISTORY = {"First.": (1, 2, 3), "And these?": (4, 5, 6)}


async def test_the_latest_files_of_a_conversation_are_sent_if_an_api_takes_only_some(env: Environment) -> None:
    with serving("bedrock", OF_SECRET) as provider:
        for numbers in HISTORY.values():
            asked = {**asking(*reports(*numbers)), "conversationId": "c"}
            status = await env.status(await env.start_query([provider.model()], "model/m", **asked))
            assert status.phase == "Completed", status
        sent = [block for message in provider.server.requests[1]["messages"] for block in message["content"]]
        documents = [block["document"]["source"]["bytes"] for block in sent if "document" in block]
        assert [base64.b64decode(each)[-1] for each in documents] == [2, 3, 4, 5, 6]
        of_client = [{"role": "user", "content": [text(each), *reports(*numbers)]} for each, numbers in HISTORY.items()]
        asked = {"type": "messages", "input": of_client}
        status = await env.status(await env.start_query([provider.model()], "model/m", **asked))
        assert status.phase == "Completed", "a client that keeps the conversation itself goes on with it, too"
        asked = asking(*reports(*range(6)))
        status = await env.status(await env.start_query([provider.model()], "model/m", **asked))
        assert status.failure
        assert "it accepts at most 5 files in one request" in status.failure.message


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_an_address_is_sent_to_the_server_as_it_is_and_shown_without_its_signature(
    env: Environment, scheme: str
) -> None:
    env.script(line("one", "A heron."))
    url = LINKED["image_url"]["url"].replace("https", scheme)
    linked = {"type": "image_url", "image_url": {"url": url}}
    handle = await env.start_query([agent("one")], "agent/one", **asking(text("See"), linked))
    assert (await env.status(handle)).said == "A heron."
    assert env.model.requests[0].body.attached == [linked]
    shown = SHOWN_LINK.replace("https", scheme)
    assert next(row for row in env.rows() if row["role"] == "user")["content"] == f"See\n{shown}"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (asking(text("See"), {"type": "input_audio", "input_audio": {}}), "'input_audio' is not supported"),
        (asking({"type": "file", "file": {"file_id": "file-1"}}), "names a file on the server of one provider"),
        (
            asking({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
            "must be an https://, http:// or data:",
        ),
        (asking({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}), "is not base64"),
        (asking({"type": "image_url", "text": "See"}), "can't be in a part of type image_url"),
        ({"type": "messages", "input": "Why?"}, "must be a list of messages"),
        ({"input": [{"role": "user", "content": "Why?"}]}, "must be a text"),
        ({"type": "messages", "input": [{"role": "assistant", "content": "Why?"}]}, "the last message is the question"),
        (
            asking({"type": "image_url", "image_url": {"url": data_url("image/png", bytes(MAX_ATTACHED + 1))}}),
            "has images and files of 1,000,001 bytes in all, and 1,000,000 bytes can be sent with a query",
        ),
    ],
)
async def test_an_input_with_wrong_messages_is_refused_with_a_reason(
    env: Environment, query: Json, reason: str
) -> None:
    status = await env.status(await env.start_query([agent("one")], "agent/one", **query))
    assert status.failure
    assert reason in status.failure.message


async def test_a_tool_that_takes_text_is_not_asked_with_an_image(env: Environment) -> None:
    tool = manifest(
        "Tool", "echo", {"type": "http", "http": {"url": "http://127.0.0.1:9/"}, "inputSchema": {"type": "object"}}
    )
    status = await env.status(await env.start_query([tool], "tool/echo", **asking(text("See"), CHART)))
    assert status.failure
    assert "Tool/default/echo takes only text" in status.failure.message


async def test_an_image_goes_where_a_parameter_is_filled_in(env: Environment) -> None:
    env.script(line("one", "Grey."))
    parameters = [{"name": "what", "value": "colour"}]
    query = {**asking(text("Its {{what}}:"), CHART), "parameters": parameters}
    assert (await env.status(await env.start_query([agent("one")], "agent/one", **query))).said == "Grey."
    assert env.model.requests[0].body["messages"][-1]["content"] == [text("Its colour:"), CHART]


HELLO = base64.b64encode(b"hello").decode()
AFTER = "\n".join(
    [
        "[resource plan: file:///plan.txt, text/plain]",
        "[resource note://1]",
        "a note",
        "[resource note://2: binary, 5 bytes]",
        '{"found": 5}',
    ]
)
RESULTS: dict[str, object] = {
    "openai": f"Look:\n[image: image/png, 5 bytes]\n{AFTER}",
    "openai-responses": [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{HELLO}", "detail": "auto"},
        {"type": "input_text", "text": AFTER},
    ],
    "anthropic": [
        text("Look:"),
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": HELLO}},
        text(AFTER),
    ],
    "bedrock": [
        {"text": "Look:"},
        {"image": {"format": "png", "source": {"bytes": HELLO}}},
        {"text": AFTER},
    ],
}
RESULTS["azure"] = RESULTS["openai"]


def result_in(body: Json) -> object:
    """The result of the only tool call in a request."""
    match (body.get("input") or body["messages"])[-1]:
        case {"type": "function_call_output", "output": output}:
            return output
        case {"role": "tool", "content": content}:
            return content
        case {"content": [{"type": "tool_result", "content": content}]}:
            return content
        case {"content": [{"toolResult": {"content": content}}]}:
            return content
    return None


async def test_an_image_in_a_tools_result_is_sent_to_models_that_accept_it_there(
    env: Environment, provider: ProviderServer, tmp_path: Path
) -> None:
    provider.server.answers(Reply(calls=[ScriptedToolCall(name="test-pieces")]), Reply(text="Hello."))
    with McpServerProcess("2026", tmp_path / "mcp").running() as server:
        one = agent("one", modelRef={"name": "m"}, tools=[{"name": "test", "type": "mcp", "untrustedContent": False}])
        manifests = [one, provider.model(), server.manifest()]
        status = await env.status(await env.start_query(manifests, "agent/one"))
    assert status.said == "Hello.", status
    assert result_in(provider.server.requests[1]) == RESULTS[provider.provider]
    (attached,) = next(row["attachments"] for row in env.rows() if row["role"] == "tool")
    assert (attached["mediaType"], attached["size"]) == ("image/png", 5)


async def test_a_program_asks_with_texts_images_and_files(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "heron.png").write_bytes(PNG)
    env.script(line("one", "Grey.", "Grey."))
    image = baton.Image(tmp_path / "heron.png", detail="low")
    content: list[str | baton.File] = ["See", image, baton.File(PDF, media_type="application/pdf")]
    async with baton.Connection(client=env.client, task_queue=env.task_queue) as connection:
        one = baton.Agent("one", prompt="You are one.")
        assert (await connection.run(one, content)).message == "Grey."
        messages: list[Json] = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}]
        await connection.run(one, [*messages, {"role": "user", "content": content}])
    first, second = (request.body["messages"] for request in env.model.requests)
    assert first[-1] == second[-1]
    assert first[-1]["content"][:2] == [text("See"), CHART]
    assert first[-1]["content"][2]["file"]["file_data"] == data_url("application/pdf", PDF)
    assert [message["content"] for message in second[-3:-1]] == ["Hi.", "Yes?"]
    assert next(row for row in env.rows() if row["role"] == "user")["content"].splitlines()[1] == (
        f"[image: heron.png, image/png, {len(PNG)} bytes]"
    )


def test_a_file_that_cannot_be_sent_is_refused_where_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(MAX_ATTACHED + 1))
    (tmp_path / "nameless").write_bytes(PNG)
    with pytest.raises(ValueError, match=r"large\.png has 1,000,001 bytes, and 1,000,000 bytes can be sent"):
        baton.Image(tmp_path / "large.png")
    with pytest.raises(ValueError, match="its media type is unknown"):
        baton.File(tmp_path / "nameless")
    with pytest.raises(ValueError, match="bytes need a media_type"):
        baton.File(PNG)
    with pytest.raises(TypeError, match="input has int, must be a list of texts, images and files"):
        baton.Query("q", ["See", 5], targets=["agent/one"])  # type: ignore[list-item]


async def test_an_agent_of_an_a2a_server_reads_images_and_files(env: Environment) -> None:
    agents = AgentServer()
    with agents.serving():
        manifests = [a2a_agent("oracle"), a2a_server(agents)]
        content = [text("See"), CHART, REPORT, LINKED]
        status = await env.status(await env.start_query(manifests, "agent/oracle", **asking(*content)))
    assert status.phase == "Completed", status
    first, chart, report, linked = agents.turns[0].message.parts
    assert first.text == "See"
    assert (chart.raw, chart.media_type) == (PNG, "image/png")
    assert (report.raw, report.media_type, report.filename) == (PDF, "application/pdf", "herons.pdf")
    assert linked.url == LINKED["image_url"]["url"]


async def test_an_execution_engine_which_takes_only_text_is_not_asked_with_an_image(env: Environment) -> None:
    engine = prealpha("ExecutionEngine", "engine", {"type": "langchain", "address": "http://127.0.0.1:9"})
    one = agent("one", executionEngine={"name": "engine"})
    status = await env.status(await env.start_query([one, engine], "agent/one", **asking(text("See"), CHART)))
    assert status.failure
    assert "ExecutionEngine/default/engine, which executes Agent/default/one, takes only text" in status.failure.message


OLD = Key("old", b"old".ljust(32))
NEW = Key("new", b"new".ljust(32))


async def test_the_bytes_are_encrypted_with_the_journals_keys_and_read_in_their_namespace_alone(
    journal_url: str,
) -> None:
    run = str(uuid.uuid4())
    journal = await Journal.open(journal_url, "default", Keys(OLD))
    stored, again, other = await journal.attach(run, [PNG, PNG, PDF])
    assert stored == again != other
    assert await journal.attach(run, [PNG]) == [stored]
    await journal.close()
    journal = await Journal.open(journal_url, "default", Keys(NEW, OLD))
    rows = await journal.database.run(select(schema.attachments))
    assert len(rows) == 2
    assert ENCODED not in str(rows)
    assert (await reencrypt(journal, "new")).counts["attachments"] == 2
    await journal.close()
    journal = await Journal.open(journal_url, "default", Keys(NEW))
    assert [await journal.attachment(id_) for id_ in (stored, other)] == [PNG, PDF]
    elsewhere = await Journal.open(journal_url, "another", Keys(NEW))
    with pytest.raises(JournalLost, match="does not hold the attachment"):
        await elsewhere.attachment(stored)
    await elsewhere.close()
    await delete_runs(journal.database.engine, {run})
    assert await journal.database.run(select(schema.attachments)) == []
    await journal.close()
