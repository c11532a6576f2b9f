"""A panel can share its contributions under a key of a session: others read them while it runs and afterwards."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.message import Head
from baton.contracts.turn import Thread
from baton.starter.operations.conversations import read_contributions
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.gateway import GatewayServer, key_file, rights
from tests.harness.panels import SYNTHESIS, model_requests, panel, panelist_line, prompt_line, role_member
from tests.harness.postgres import execute
from tests.harness.processes import baton, process_env


def reader(key: str = "contributions", session: str | None = None) -> Json:
    """An agent whose prompt contains the contributions that are shared under a key."""
    ref = {"key": key, **({"session": session} if session else {})}
    parameter = {"name": "said", "valueFrom": {"contributionsRef": ref}}
    return agent("reader", prompt="You are reader.\n{{.said}}", parameters=[parameter])


def shared(name: str, *roster: Json, **spec: Any) -> Json:
    """A panel of one round that shares its contributions."""
    return manifest("Team", name, panel(*roster, **{"contributions": {}, "maxRounds": 1, **spec})["spec"])


def reader_prompts(env: Environment) -> list[str]:
    """The contributions in the reader's prompts, one text for each call."""
    return [each.system.partition("\n")[2] for each in model_requests(env) if each.system.startswith("You are reader.")]


@pytest.mark.full
async def test_a_later_member_reads_the_contributions_to_a_panel(env: Environment) -> None:
    env.script(panelist_line("a", "a1", "a2"), panelist_line("b", "b1", "b2"), line("reader", "Read."), SYNTHESIS)
    row = team("row", "panel", "reader", strategy="sequential")
    manifests = [reader(), shared("panel", role_member("a"), role_member("b"), maxRounds=2), row]
    status = await env.status(await env.start_query(manifests, "team/row"))
    assert status.phase == "Completed"
    assert reader_prompts(env) == ["[round 1] a: a1\n[round 1] b: b1\n[round 2] a: a2\n[round 2] b: b2"]


async def test_a_member_reads_the_contributions_until_then_and_each_run_has_its_own(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), line("reader", "Read."), SYNTHESIS)
    manifests = [reader(), shared("panel", role_member("a"), {"name": "reader"})]
    for _ in range(2):
        await env.turn_result(await env.start_team(manifests, "panel"))
    assert reader_prompts(env) == ["[round 1] a: a1"] * 2


async def test_a_second_run_in_one_session_begins_with_an_empty_transcript(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), line("reader", "Read."), SYNTHESIS)
    contributions = {"session": "s", "key": "k"}
    first = shared("panel", {"name": "reader"}, role_member("a"), contributions=contributions)
    for _ in range(2):
        await env.turn_result(await env.start_team([reader("k", "s"), first], "panel"))
    assert reader_prompts(env) == ["", ""]


async def test_two_panels_of_a_session_keep_their_contributions_under_two_keys(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), panelist_line("b", "b1"), line("reader", "Read."), SYNTHESIS)
    one = shared("one", role_member("a"), contributions={"key": "one"})
    two = shared("two", role_member("b"), contributions={"key": "two"}, context=[{"name": "Before", **given("one")}])
    row = team("row", "one", "two", "reader", strategy="sequential")
    await env.turn_result(await env.start_team([reader("two"), one, two, row], "row"))
    assert reader_prompts(env) == ["[round 1] b: b1"]
    assert "Before: [round 1] a: a1" in model_requests(env)[2].system


def given(key: str) -> Json:
    return {"valueFrom": {"contributionsRef": {"key": key}}}


@pytest.mark.full
async def test_if_two_panels_use_one_key_the_later_one_is_read_and_neither_reads_the_other(env: Environment) -> None:
    env.script(
        prompt_line("You are slow", {"text": "s1", "delay": 2}, "s2"),
        prompt_line("You are quick", "q1", "q2"),
        SYNTHESIS,
    )
    contributions = {"session": "s", "key": "k"}
    slow, quick = (
        shared("panel", role_member(name), maxRounds=2, contributions=contributions) for name in ("slow", "quick")
    )
    earlier = await env.start_team([slow], "panel")
    await env.wait_for_calls(1)
    await env.turn_result(await env.start_team([quick], "panel"))
    await env.turn_result(earlier)
    second = [each.user for each in model_requests(env) if "Round 2 of 2" in each.user]
    assert sorted(each.rpartition("\n")[2] for each in second) == ["quick: q1", "slow: s1"]
    env.script(line("reader", "Read."))
    await env.turn_result(await env.start("agent", {"agent": "reader", "input": "?", "resources": [reader("k", "s")]}))
    assert reader_prompts(env) == ["[round 1] quick: q1\n[round 2] quick: q2"]


@pytest.mark.full
async def test_runs_whose_ids_begin_alike_up_to_a_slash_share_nothing(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), line("reader", "Read."), SYNTHESIS)
    row = team("row", "panel", "reader", strategy="sequential")
    alone = team("row", "reader", strategy="sequential")
    for number, members in enumerate(([reader(), shared("panel", role_member("a")), row], [reader(), alone])):
        given = {"team": "row", "input": "Why?", "resources": members}
        await env.turn_result(
            await env.client.start_workflow(
                "sequential", given, id=f"{env.task_queue}/{number}", task_queue=env.task_queue
            )
        )
    assert reader_prompts(env) == ["[round 1] a: a1", ""]
    marks = await execute(env.journal_address, "select session from baton_bookmarks")
    assert marks == [(f"{env.task_queue}/0",)]


def test_a_run_that_does_not_know_its_root_has_the_session_of_its_id_up_to_a_slash() -> None:
    thread = Thread(catalog="sha", question="run/1/0", head=Head())
    assert thread.session("acme/1/turn-1/panel") == "acme"
    assert thread.model_copy(update={"run": "acme/1"}).session("acme/1/turn-1/panel") == "acme/1"


async def test_a_parameter_of_a_query_can_be_the_contributions(env: Environment) -> None:
    env.script(panelist_line("a", "a1"), line("one", "1"), SYNTHESIS)
    await env.turn_result(
        await env.start_team([shared("panel", role_member("a"), contributions={"session": "s"})], "panel")
    )
    ref = {"name": "said", "valueFrom": {"contributionsRef": {"session": "s"}}}
    spec = {"parameters": [ref], "input": "Sum it up: {{.said}}"}
    await env.status(await env.start_query([agent("one")], "agent/one", **spec))
    assert model_requests(env)[-1].user == "Sum it up: [round 1] a: a1"


@pytest.mark.slow
async def test_the_command_contributions_prints_them(env: Environment, server: EmbeddedServer) -> None:
    env.script(panelist_line("a", "a1"), SYNTHESIS)
    handle = await env.start_team([shared("panel", role_member("a"))], "panel")
    await env.turn_result(handle)
    variables = process_env(TEMPORAL_ADDRESS=server.address, BATON_HOME=str(env.folder))
    assert baton("contributions", handle.id, env=variables).stdout == "[round 1] a: a1\n"
    found = baton("contributions", "--session", handle.id, "-o", "json", env=variables).stdout
    assert json.loads(found) == [{"round": 1, "agentName": "a", "text": "a1"}]
    refused = baton("contributions", env=variables)
    assert (refused.returncode, refused.stderr) == (1, "error: pass either a run or --session\n")


BOARD = {"session": "board"}


async def test_callers_of_a_gateway_share_no_session_of_contributions(env: Environment, tmp_path: Path) -> None:
    """Neither a session that manifests name, nor the run of another: each caller reads those of its own runs."""
    path, keys = key_file(tmp_path, {"alice": {}, "bob": {}})
    env.script(panelist_line("a", "a1"), line("reader", "Read."), SYNTHESIS)
    digest = hashlib.sha256(b"default/default\nalice\nk").hexdigest()
    run = f"own-{digest[:36]}"
    of_run = reader(session=run)
    of_run["metadata"]["name"] = "of-run"
    manifests = [
        reader(session="board"),
        of_run,
        shared("panel", role_member("a"), contributions=BOARD),
        shared("own", role_member("a")),
    ]
    async with (
        env.with_manifests(manifests) as served,
        GatewayServer.running(served, BATON_GATEWAY_KEYS=str(path)) as gateway,
    ):

        async def ask(target: str, caller: str, **headers: str) -> str:
            body = {"target": target, "input": "Why?"}
            started = await gateway.post("/runs", body, 201, key=keys[caller], **headers)
            await gateway.finished(started["id"], key=keys[caller])
            return str(started["id"])

        await ask("team/panel", "alice")
        assert await ask("team/own", "alice", idempotency_key="k") == run
        for target in ("agent/reader", "agent/of-run"):
            for caller in ("alice", "bob"):
                await ask(target, caller)
    assert reader_prompts(env) == ["[round 1] a: a1", ""] * 2
    scopes = await execute(env.journal_address, "select session from baton_bookmarks order by session")
    assert scopes == [("default/default/alice/board",), (f"default/default/alice/{run}",)]
    found = await read_contributions(env.client.namespace, run, "contributions", env.worker_env)
    assert [one.text for one in found] == ["a1"], "an operator reads it by the run"


async def test_runs_of_two_accounts_share_no_session_of_contributions(env: Environment) -> None:
    """Those of one account do, and a run without an account on workers without Roles shares it with all such runs."""
    env.script(panelist_line("a", "a1"), line("reader", "Read."), SYNTHESIS)
    allowed: list[Json] = []
    for account in ("red", "blue"):
        granted = rights(account, {"resources": ["*"]})
        granted[0]["metadata"]["annotations"] = {"baton/allow-inline": "true"}
        allowed += granted
    async with env.with_manifests(allowed) as served:
        panels = [shared("panel", role_member("a"), contributions=BOARD), reader(session="board")]
        await served.status(await served.start_query(panels, "team/panel", serviceAccount={"name": "red"}))
        for account in ("red", "blue"):
            await served.status(await served.start_query(panels, "agent/reader", serviceAccount={"name": account}))
    assert reader_prompts(env) == ["[round 1] a: a1", ""]
