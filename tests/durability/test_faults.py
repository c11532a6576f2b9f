"""Failures of a model's or a tool's server: what is retried, what is kept, and what users see."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from baton.testing import Reply
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.tool_server import Answer, ToolServer


def soon() -> datetime:
    """In about two seconds, rounded down: HTTP dates have whole seconds."""
    return (datetime.now(UTC) + timedelta(seconds=2)).replace(microsecond=0)


MODEL_RECOVERS: list[tuple[str, Json, float | None]] = [
    ("429, wait in seconds", {"status": 429, "headers": {"retry-after": "1"}}, 1),
    ("429, wait until a date", {"status": 429, "headers": {"retry-after": "DATE"}}, None),
    ("500", {"status": 500}, 0),
    ("a cut stream", {"text": "half of it", "cut": 4}, 0),
    ("malformed JSON", {"raw": 'data: {"choices": [{"in\n\n'}, 0),
    ("nothing at all", {"raw": ""}, 0),
]


@pytest.mark.parametrize(("fault", "reply", "wait"), MODEL_RECOVERS, ids=[each[0] for each in MODEL_RECOVERS])
async def test_a_team_goes_on_when_its_model_has_recovered(
    env: Environment, fault: str, reply: Json, wait: float | None
) -> None:
    date = soon()
    if wait is None:
        reply = {**reply, "headers": {"retry-after": format_datetime(date, usegmt=True)}}
    env.script(line("one", "first"), line("two", {"text": "second", "before": [reply]}), line("three", "third"))
    names = "one", "two", "three"
    status = await env.status(
        await env.start_query([*map(agent, names), team("team", *names, strategy="sequential")], "team/team")
    )
    assert (status.phase, status.message) == ("Completed", "third"), status.error
    head = status.responses[0].head
    assert head
    assert [row["content"] for row in env.transcript(head.id)] == ["Why?", "first", "second", "third"]
    assert len(env.model.requests) == 4
    assert env.model.requests[2].received_at >= (
        date.timestamp() if wait is None else env.model.requests[1].received_at + wait
    )


MODEL_STAYS_BROKEN: list[tuple[Json, str, int]] = [
    ({"status": 400, "text": "I refuse to answer that"}, "answered HTTP 400: I refuse to answer that", 1),
    ({"status": 401}, "rejected the API key (HTTP 401)", 1),
    ({"status": 429, "code": "insufficient_quota", "text": "no money"}, "answered HTTP 429: no money", 1),
]


@pytest.mark.parametrize(("reply", "says", "calls"), MODEL_STAYS_BROKEN, ids=lambda value: str(value)[:30])
async def test_a_failure_that_stays_ends_the_team_and_keeps_what_was_said(
    env: Environment, reply: Json, says: str, calls: int
) -> None:
    env.script(line("one", "first"), line("two", reply))
    brought = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]
    status = await env.status(await env.start_query(brought, "team/team"))
    assert (status.phase, status.stop_reason) == ("Failed", "failed")
    assert status.failure
    assert (status.failure.target, status.failure.member, status.failure.turn) == ("team/team", "two", 2)
    assert says in status.failure.message
    assert status.responses[0].message == "first"
    assert len(env.model.requests) == 1 + calls


async def test_an_answer_of_five_megabytes_is_kept_whole_and_shown_in_part(env: Environment) -> None:
    env.script(line("one", "x" * 5_000_000), line("two", "Too long."))
    brought = [agent("one"), agent("two"), team("team", "one", "two", strategy="sequential")]
    status = await env.status(await env.start_query(brought, "team/team"))
    assert (status.phase, status.message) == ("Completed", "Too long.")
    head = status.responses[0].head
    assert head
    assert len(env.transcript(head.id)[1]["content"]) == 5_000_000
    assert sum(len(message["content"]) for message in env.model.requests[1].body["messages"]) > 5_000_000


async def test_a_refusal_in_words_is_an_answer_like_any_other(env: Environment) -> None:
    delta = '{"choices": [{"index": 0, "delta": {"refusal": "I can\'t help with that."}, "finish_reason": "stop"}]}'
    env.answer = lambda _: Reply(raw=f"data: {delta}\n\ndata: [DONE]\n\n")
    status = await env.status(await env.start_query([agent("one")], "agent/one"))
    assert (status.phase, status.message) == ("Completed", "I can't help with that.")


TOOL_FAULTS: list[tuple[str, list[Answer], str, int]] = [
    ("429, wait in seconds", [Answer("slow", 429, {"retry-after": "1"}), Answer()], "sunny", 2),
    ("429, wait until a date", [Answer("slow", 429, {"retry-after": "DATE"}), Answer()], "sunny", 2),
    ("500", [Answer("down", 500), Answer()], "sunny", 2),
    ("a cut stream", [Answer("x" * 500, cut=100), Answer()], "sunny", 2),
    ("no answer", [Answer(hang=True), Answer()], "sunny", 2),
    ("malformed JSON", [Answer('{"a": ', headers={"content-type": "application/json"})], '{"a": ', 1),
    ("a refusal", [Answer("not for you", 403)], "Error: HOST answered HTTP 403 Forbidden: not for you", 1),
    ("500 for ever", [Answer("down", 500)], "Error: HOST answered HTTP 500 Internal Server Error: down", 4),
]


@pytest.mark.parametrize(("fault", "answers", "result", "calls"), TOOL_FAULTS, ids=[each[0] for each in TOOL_FAULTS])
async def test_a_model_reads_what_became_of_its_tool(
    env: Environment, tool_server: ToolServer, fault: str, answers: list[Answer], result: str, calls: int
) -> None:
    for answer in answers:
        if answer.headers.get("retry-after") == "DATE":
            answer.headers["retry-after"] = format_datetime(soon(), usegmt=True)
    tool_server.answers(*answers)
    # Long enough for a busy machine, except where no answer comes.
    said = await use(env, tool_server, limit="3s" if fault == "no answer" else "60s")
    assert said == ["Why?", "", result.replace("HOST", tool_server.host), "Done."]
    assert len(tool_server.seen) == calls


async def test_a_tools_answer_of_five_megabytes_is_cut_with_a_visible_mark(
    env: Environment, tool_server: ToolServer
) -> None:
    tool_server.answers(Answer("x" * 5_000_000))
    said = await use(env, tool_server)
    assert said[2].endswith("x… [truncated: the response has 5,000,000 bytes]")
    assert len(said[2]) < 257_000


async def use(env: Environment, tool_server: ToolServer, limit: str = "60s") -> list[Any]:
    """What has been said when an agent has used a tool of the server, which may take so long."""
    env.script(line("one", call("ask"), "Done."))
    tool = manifest("Tool", "ask", {"type": "http", "http": {"url": tool_server.url, "timeout": limit}})
    status = await env.status(await env.start_query([agent("one", "ask"), tool], "agent/one"))
    assert status.phase == "Completed", status.error
    head = status.responses[0].head
    assert head
    return [row["content"] for row in env.transcript(head.id)]
