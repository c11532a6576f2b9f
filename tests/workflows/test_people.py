"""Tests of members that are people: what they are asked, their replies, and what comes of none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from baton.contracts.decisions import PendingDecision
from baton.contracts.status import Status
from baton.starter.diagram.build import build_diagram
from baton.starter.diagram.mermaid import mermaid
from baton.starter.history.live_state import LiveState
from baton.starter.history.stream import stream_events
from baton.starter.runs.decisions import pending_decisions
from baton.testing import ScriptLine
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest
from tests.harness.manifests import Writer
from tests.workflows.test_approval import pending

ANN = {"name": "ann", "type": "human", "prompt": "Is it legal?"}


def people(*members: str | Json, strategy: str = "sequential", name: str = "team", **spec: Any) -> Json:
    """A Team whose members may be written out."""
    entries = [{"name": each} if isinstance(each, str) else each for each in members]
    return manifest("Team", name, {"strategy": strategy, "members": entries, **spec})


async def reply(handle: Handle, text: str, **given: Any) -> Json:
    decision: Json = await handle.execute_update("reply", {"text": text, "by": "ann@desk", **given})
    return decision


async def next_question(handle: Handle, before: PendingDecision | None = None) -> PendingDecision:
    """The question that a run waits for after another one."""
    while (asked := (await pending(handle, 1))[0]) == before:
        await asyncio.sleep(0.02)
    return asked


async def refused(handle: Handle, text: str, **given: Any) -> str:
    """Why a reply is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update("reply", {"text": text, **given})
    assert isinstance(error.value.cause, ApplicationError)
    return error.value.cause.message


async def test_a_person_is_asked_and_the_reply_joins_the_conversation(env: Environment) -> None:
    env.script(line("one", "A contract."), line("two", "Signed."))
    handle = await env.start_team([agent("one"), agent("two"), people("one", ANN, "two")])
    (asked,) = await pending(handle)
    assert (asked.kind, asked.speaker, asked.until) == ("question", "ann", None)
    assert asked.question == "Is it legal?\n\nuser: Why?\n\none: A contract."
    assert (await handle.query("status", result_type=Status)).phase == "InputRequired"
    assert len(env.model.requests) == 1
    await reply(handle, "Yes.")
    turn = await env.turn_result(handle)
    assert [(each.role, each.name, each.content) for each in turn.messages] == [
        ("assistant", "one", "A contract."),
        ("assistant", "ann", "Yes."),
        ("assistant", "two", "Signed."),
    ]
    said = turn.messages[1].decision
    assert said
    assert (said.by, said.how, said.text) == ("ann@desk", "person", "")
    assert "Yes." in str(env.model.requests[-1].body["messages"])
    assert (turn.turns, turn.usage.model_calls) == (3, 2)


async def test_no_further_member_of_a_parallel_team_is_asked_while_the_run_is_paused(env: Environment) -> None:
    bob = {"name": "bob", "type": "human", "prompt": "Is it dear?"}
    handle = await env.start_team([people(ANN, bob, strategy="parallel", maxConcurrency=1)])
    (asked,) = await pending(handle)
    await handle.signal("pause", {"name": "eve"})
    await reply(handle, "Yes.")
    await env.wait_until_idle(handle)
    assert not (await handle.query("status", result_type=Status)).pending_decisions
    await handle.signal("resume")
    assert (await next_question(handle, asked)).speaker == "bob"
    await reply(handle, "No.")
    assert (await env.turn_result(handle)).message == "ann:\nYes.\n\nbob:\nNo."


@pytest.mark.parametrize(
    ("spec", "turns"),
    [
        ({"strategy": "round-robin", "maxTurns": 2, "onMaxTurns": "complete"}, ["one", "ann", "one", "ann"]),
        ({"strategy": "parallel"}, ["one", "ann"]),
        ({"strategy": "graph", "graph": {"edges": [{"from": "one", "to": "ann"}]}, "maxTurns": 5}, ["one", "ann"]),
    ],
)
async def test_a_person_takes_part_in_every_order_of_speakers(env: Environment, spec: Json, turns: list[str]) -> None:
    env.script(line("one", "a", "b"))
    handle = await env.start_team([agent("one"), people("one", ANN, **spec)])
    asked = None
    for _ in range(turns.count("ann")):
        asked = await next_question(handle, asked)
        await reply(handle, "Yes.")
    turn = await env.turn_result(handle)
    assert [each.name for each in turn.messages] == turns


async def test_a_selector_may_choose_a_person(env: Environment) -> None:
    env.script(
        {"system": "participants", "agent": "selector", "say": [call("select-next-speaker", name="ann")]},  # type: ignore[arg-type]
    )
    chooses = people("one", ANN, strategy="selector", maxTurns=1, onMaxTurns="complete")
    handle = await env.start_team([agent("one"), chooses])
    await pending(handle)
    assert "ann: a person" in str(env.model.requests[0].body["messages"])
    await reply(handle, "It is.")
    assert (await env.turn_result(handle)).message == "It is."


async def test_a_person_in_a_panel_contributes_to_each_round(env: Environment) -> None:
    env.script(line("one", "a", "b"))
    panel = people("one", ANN, strategy="round-robin", maxRounds=2, synthesizer=False)
    handle = await env.start_team([agent("one"), panel])
    asked = None
    for text in ("No.", "Yes."):
        asked = await next_question(handle, asked)
        await reply(handle, text, to=asked.id)
    turn = await env.turn_result(handle)
    assert '"agentName":"ann","text":"Yes."' in turn.message.replace(" ", "").replace("\n", "")
    rows = [row for row in env.transcript(turn.head.id) if row.get("name") == "ann" and row.get("part")]
    assert [(row["round"], row["content"], row["decision"]["by"]) for row in rows] == [
        (1, "No.", "ann@desk"),
        (2, "Yes.", "ann@desk"),
    ]


async def test_a_person_in_a_panel_reads_what_a_default_member_in_the_same_place_reads(env: Environment) -> None:
    default = ScriptLine.model_validate({"system": "You are reads", "say": ["c"]})
    env.script(line("one", "A draft.", "b"), line("referee", "Too vague."), default)
    panel = people(ANN, {"name": "reads", "type": "default"}, strategy="round-robin", maxRounds=2, synthesizer=False)
    panel["spec"] |= {"members": [{"name": "one"}, *panel["spec"]["members"]], "referee": {"name": "referee"}}
    handle = await env.start_team([agent("one"), agent("referee"), panel], question="Is the boat safe?")
    asked = await next_question(handle)
    assert asked.question == (
        "Is it legal?\n\n# The goal\nIs the boat safe?\n\n# This round\nRound 1 of 2\n\n"
        "# Contributions so far\n## Round 1\none: A draft."
    )
    await handle.signal("steer", {"text": "Be quick.", "name": "eve"})
    await reply(handle, "No.", to=asked.id)
    asked = await next_question(handle, asked)
    read_by_model = next(r for r in env.model.requests if "Be quick." in str(r.body)).body["messages"][-1]["content"]
    assert read_by_model.endswith("one: A draft.\nann: No.\n\n# Messages from people\neve: Be quick.")
    assert asked.question == (
        "Is it legal?\n\n# The goal\nIs the boat safe?\n\n# This round\nRound 2 of 2 (the last round)\n\n"
        "# Contributions so far\n## Round 1\none: A draft.\nann: No.\nreads: c\n## Round 2\none: b\n\n"
        "# The referee's critiques\n[round 1] Too vague.\n\n# Messages from people\neve: Be quick."
    )


async def test_a_person_reads_the_question_of_the_run_and_what_others_have_said_and_no_results_of_tools(
    env: Environment,
) -> None:
    env.script(line("one", call("noop", "I look.", message="raw"), "It floats.\nuser: Say yes."), line("two", ""))
    team = people("one", "two", ANN)
    handle = await env.start_team([agent("one", "noop"), agent("two"), team], question="Is the boat safe?")
    assert (await next_question(handle)).question == (
        "Is it legal?\n\nuser: Is the boat safe?\n\none: I look.\n\none: It floats.\n  user: Say yes."
    )


async def test_what_a_person_reads_is_short(env: Environment) -> None:
    env.script(line("one", "a" * 1_500, "b" * 1_500), line("two", "c"))
    team = people("one", "two", "one", ANN)
    handle = await env.start_team([agent("one"), agent("two"), team], question="d" * 3_000)
    parts = ((await next_question(handle)).question or "").split("\n\n")
    assert [part.replace("user: ", "")[:6] for part in parts] == ["Is it ", "dddddd", "two: c", "one: b"]
    assert parts[1].endswith("… [truncated: 3,000 characters in total]")


async def test_people_in_a_parallel_team_read_what_was_said_before_it(env: Environment) -> None:
    env.script(line("one", "A draft."))
    both = people(ANN, {**ANN, "name": "bob"}, strategy="parallel", name="both")
    house = people("one", {"name": "both", "type": "team"})
    handle = await env.start_team([agent("one"), both, house], question="Is the boat safe?")
    while len(asked := await pending_decisions(env.client, handle.id)) < 2:
        await asyncio.sleep(0.02)
    assert {each.question for each in asked} == {"Is it legal?\n\nuser: Is the boat safe?\n\none: A draft."}


@pytest.mark.parametrize(("spec", "names"), [({}, ["one", "two"]), ({"maxRounds": 1, "synthesizer": False}, None)])
async def test_a_turn_without_a_reply_in_time_is_skipped(env: Environment, spec: Json, names: Any) -> None:
    env.script(line("one", "a"), line("two", "b"))
    busy = {**ANN, "timeout": "300ms", "onTimeout": "skip"}
    strategy = {"strategy": "round-robin"} if spec else {}
    turn = await env.turn_result(
        await env.start_team([agent("one"), agent("two"), people("one", busy, "two", **strategy, **spec)])
    )
    assert not turn.failure
    said = [each.name for each in turn.messages]
    assert said == names if names else "ann" not in said
    assert turn.turns == 3


async def test_who_watches_sees_that_a_turn_was_skipped(env: Environment) -> None:
    env.script(line("one", {"text": "a", "delay": 1}))
    handle = await env.start_team([agent("one"), people({**ANN, "timeout": "300ms", "onTimeout": "skip"}, "one")])
    state, phases, outcomes = LiveState(), list[str](), list[str]()
    async for event in stream_events(env.client, handle):
        state.apply(event)
        phases.append(state.runs[handle.id].status.phase)
        if event.type == "wait.ended":
            outcomes.append(event.outcome)
    assert outcomes == ["timeout"]
    assert phases[phases.index("InputRequired") :][1] == "Running"


async def test_no_reply_in_time_fails_the_team_and_keeps_what_was_said(env: Environment) -> None:
    env.script(line("one", "a"))
    handle = await env.start_team([agent("one"), people("one", {**ANN, "timeout": "300ms"})])
    turn = await env.turn_result(handle)
    assert turn.failure
    assert (turn.failure.type, turn.failure.member, turn.failure.turn) == ("ReplyOverdue", "ann", 2)
    assert turn.failure.message == "ann has not replied within 0.3 s"
    assert [each.content for each in turn.messages] == ["a"]


async def test_a_reply_that_does_not_fit_its_schema_is_refused_and_the_next_one_counts(env: Environment) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    handle = await env.start_team([people({**ANN, "outputSchema": schema})])
    (decision,) = await pending(handle)
    assert decision.output_schema == schema
    assert await refused(handle, "Yes.") == "the reply is not JSON: Expecting value: line 1 column 1 (char 0)"
    assert "'ok' is a required property" in await refused(handle, "{}")
    assert await refused(handle, '{"ok": true, "n": NaN}') == "the reply is not JSON: it contains NaN"
    assert await refused(handle, '{"ok": true, "n": 1e999}') == "the reply is not JSON: the number 1e999 is too large"
    await reply(handle, '{"ok": true}')
    assert (await env.turn_result(handle)).message == '{"ok": true}'


@pytest.mark.full
async def test_a_question_has_the_schema_of_its_reply_up_to_a_length(env: Environment) -> None:
    def schema(length: int) -> Json:
        return {"type": "object", "description": "x" * length}

    for length, is_shown in ((30_000, True), (32_000, False)):
        handle = await env.start_team([people({**ANN, "outputSchema": schema(length)})])
        (decision,) = await pending(handle)
        assert decision.output_schema == (schema(length) if is_shown else None)
        assert len(decision.question or "") < 3_000
        await reply(handle, "{}")
        await env.turn_result(handle)


async def test_a_reply_that_can_not_be_taken_says_why(env: Environment) -> None:
    handle = await env.start_team([people(ANN)])
    await pending(handle)
    assert "1 to 64,000 bytes" in await refused(handle, " ")
    assert "1 to 64,000 bytes" in await refused(handle, "x" * 64_001)
    assert "1 to 256 bytes" in await refused(handle, "Yes.", by="x" * 300)
    await reply(handle, "Yes.")
    assert (await env.turn_result(handle)).message == "Yes."


async def test_two_people_are_asked_at_once(env: Environment) -> None:
    both = people(ANN, {"name": "bob", "type": "human"}, strategy="parallel")
    handle = await env.start_team([both])
    first, second = sorted(await pending(handle, 2), key=lambda each: each.speaker)
    assert "specify which question the reply is for" in await refused(handle, "Yes.")
    await reply(handle, "b", to=second.id)
    await reply(handle, "a", to=first.id)
    assert (await env.turn_result(handle)).message == "ann:\na\n\nbob:\nb"


async def test_a_reply_is_taken_while_the_run_is_paused_and_the_next_member_waits(env: Environment) -> None:
    env.script(line("one", "Signed."))
    handle = await env.start_team([agent("one"), people(ANN, "one")])
    await pending(handle)
    await handle.signal("pause", {"name": "bob"})
    await handle.execute_update("steer", {"text": "Hurry.", "name": "bob"})
    await reply(handle, "Yes.")
    await env.wait_until_idle(handle)
    assert env.model.requests == []
    await handle.signal("resume")
    turn = await env.turn_result(handle)
    assert [each.content for each in turn.messages] == ["Hurry.", "Yes.", "Signed."]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (people({"name": "one", "prompt": "?"}), "spec.members[0].prompt: is only for members of 'type: human'"),
        (people({**ANN, "onTimeout": "skip"}), "spec.members[0].timeout: is missing: onTimeout needs it"),
        (people({**ANN, "prompt": "x" * 4001}), "spec.members[0].prompt: is longer than 4000 characters"),
        (people("a", strategy="round-robin", maxRounds=1, referee=ANN), "spec.referee.type: 'human' is unknown"),
        (people("a", strategy="debate", judge=ANN), "spec.judge.type: 'human' is unknown"),
        (people(ANN, strategy="round-robin"), "spec.maxTurns: is missing, and no member agent can terminate"),
    ],
)
def test_what_a_member_that_is_a_person_may_not_say_is_refused(tmp_path: Path, given: Json, says: str) -> None:
    assert says in Writer(tmp_path).refusal(given)[0]


def test_a_person_is_drawn(tmp_path: Path) -> None:
    loaded = Writer(tmp_path).load(agent("one"), people("one", ANN))
    assert '(["ann' in mermaid(build_diagram(loaded.catalog, [loaded.catalog.manifests[-1]]))
