"""``strategy: handoff``: members transfer the conversation to each other, and it goes on with the last one."""

import asyncio

import pytest

from baton.contracts.status import Status
from baton.starter.history.events import HandoffEvent
from baton.starter.runs.decisions import pending_decisions
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.event_streams import read_events
from tests.harness.manifests import Writer

DESK = [agent("triage"), agent("billing", description="Knows all invoices."), agent("refunds")]


def handing_over(*members: Json | str, **spec: object) -> Json:
    given = [{"name": member} if isinstance(member, str) else member for member in members]
    return manifest("Team", "desk", {"strategy": "handoff", "members": given, **spec})


TEAM = handing_over("triage", "billing", "refunds")


def transfer(to: str, message: str | None = None) -> Json:
    return call(f"transfer_to_{to}", **({} if message is None else {"message": message}))


async def ask(
    env: Environment, manifests: list[Json], question: str = "I was charged twice.", **spec: object
) -> Status:
    return await env.status(await env.start_query(manifests, "team/desk", input=question, **spec))


def spoken(status: Status) -> list[str | None]:
    return [
        message.name for response in status.responses for message in response.messages if message.role == "assistant"
    ]


def results(status: Status) -> list[str]:
    return [message.content for response in status.responses for message in response.messages if message.role == "tool"]


async def test_a_member_transfers_the_conversation_with_a_message_and_the_team_ends_with_an_answer(
    env: Environment,
) -> None:
    env.script(line("triage", transfer("billing", "A double charge.")), line("billing", "It is refunded."))
    status = await ask(env, [*DESK, TEAM])
    assert (status.phase, status.message) == ("Completed", "It is refunded.")
    assert spoken(status) == ["triage", "billing"]
    assert results(status) == ["Transferred to billing: A double charge."]
    read = env.model.requests[-1].body["messages"]
    assert [each["role"] for each in read] == ["system", "assistant", "tool", "user"]


async def test_a_tool_names_whom_it_transfers_to_and_what_that_member_does(env: Environment) -> None:
    env.script(line("triage", "Hello."))
    await ask(env, [*DESK, TEAM])
    tools = [tool["function"] for tool in env.model.requests[0].body["tools"]]
    assert [tool["name"] for tool in tools] == ["transfer_to_billing", "transfer_to_refunds"]
    assert tools[0]["description"] == (
        "Transfers the conversation to billing, who continues it. billing: Knows all invoices."
    )
    assert [*tools[0]["parameters"]["properties"]] == ["message"]


@pytest.mark.full
async def test_the_next_query_of_a_conversation_begins_with_the_last_member(env: Environment) -> None:
    env.script(
        line("triage", transfer("billing")),
        line("billing", transfer("refunds"), "On the bill."),
        line("refunds", "Refunded.", "Yes.", transfer("billing")),
    )
    first = await ask(env, [*DESK, TEAM], conversationId="c")
    second = await ask(env, [*DESK, TEAM], "Really?", conversationId="c")
    third = await ask(env, [*DESK, TEAM], "And the bill?", conversationId="c")
    assert spoken(first) == ["triage", "billing", "refunds"]
    assert spoken(second) == ["refunds"]
    assert spoken(third) == ["refunds", "billing"]


async def test_a_conversation_goes_on_with_the_first_member_if_the_last_one_has_left_the_team(env: Environment) -> None:
    env.script(line("triage", transfer("billing"), "I am back."), line("billing", "Yes?"))
    await ask(env, [*DESK, TEAM], conversationId="c")
    status = await ask(env, [*DESK, handing_over("triage", "refunds")], "Hello?", conversationId="c")
    assert spoken(status) == ["triage"]


@pytest.mark.full
async def test_another_conversation_begins_with_the_first_member(env: Environment) -> None:
    env.script(line("triage", transfer("billing")), line("billing", "Yes?"))
    await ask(env, [*DESK, TEAM], conversationId="c")
    assert spoken(await ask(env, [*DESK, TEAM], conversationId="d")) == ["triage", "billing"]


@pytest.mark.parametrize("parallel", [False, True])
async def test_the_first_of_several_transfers_counts_and_other_tools_are_still_used(
    env: Environment, parallel: bool
) -> None:
    calls = [
        {"name": "transfer_to_refunds", "arguments": {}},
        {"name": "transfer_to_billing", "arguments": {}},
        {"name": "calculator", "arguments": {"expression": "6*7"}},
    ]
    env.script(line("triage", {"calls": calls}), line("refunds", "Done."))
    triage = agent("triage", "calculator", parallelToolCalls=parallel)
    status = await ask(env, [triage, *DESK[1:], TEAM])
    assert spoken(status) == ["triage", "refunds"]
    assert results(status) == [
        "Transferred to refunds.",
        "Not executed: one answer transfers the conversation once, and its first transfer counts.",
        "42",
    ]


async def test_a_member_has_only_the_handoffs_of_its_entry_and_none_to_itself(env: Environment) -> None:
    env.script(
        line("triage", transfer("refunds"), transfer("triage"), transfer("nobody"), transfer("billing")),
        line("billing", transfer("triage"), "Done."),
    )
    members = {"name": "triage", "handoffs": ["billing"]}, {"name": "billing", "handoffs": []}, "refunds"
    status = await ask(env, [*DESK, handing_over(*members)])
    assert (status.message, spoken(status)) == ("Done.", ["triage"] * 4 + ["billing"] * 2)
    refused = "Error: there is no tool 'transfer_to_{}'; your tools: transfer_to_billing"
    assert results(status) == [
        *(refused.format(name) for name in ("refunds", "triage", "nobody")),
        "Transferred to billing.",
        "Error: there is no tool 'transfer_to_triage'; you have no tools",
    ]


async def test_a_transfer_with_wrong_arguments_is_none(env: Environment) -> None:
    env.script(line("triage", call("transfer_to_billing", message=7), "I stay."))
    status = await ask(env, [*DESK, TEAM])
    assert (status.message, spoken(status)) == ("I stay.", ["triage", "triage"])


async def test_transfers_end_at_the_turn_limit(env: Environment) -> None:
    env.script(line("triage", *[transfer("billing")] * 3), line("billing", *[transfer("triage")] * 3))
    status = await ask(env, [*DESK, handing_over("triage", "billing", maxTurns=3)])
    assert (status.phase, status.error) == ("Failed", "team handoff MaxTurns reached desk")
    assert spoken(status) == ["triage", "billing", "triage"]


async def test_members_that_say_something_new_with_each_transfer_make_progress(env: Environment) -> None:
    there, back = [
        [{**transfer(to), "text": f"{word} is worth a thought."} for word in words]
        for to, words in (("refunds", ("Cash", "Law", "Luck")), ("billing", ("Time", "Tax")))
    ]
    env.script(line("triage", transfer("billing")), line("billing", *there), line("refunds", *back, "Refunded."))
    status = await ask(env, [*DESK, handing_over("triage", "billing", "refunds", noProgress={"window": 2})])
    assert (status.stop_reason, status.message) == ("completed", "Refunded.")


async def test_members_that_repeat_themselves_with_each_transfer_make_none(env: Environment) -> None:
    again = [{**transfer(to), "text": "Please look at this."} for to in ("billing", "refunds")]
    env.script(line("triage", again[0]), line("billing", *[again[1]] * 9), line("refunds", *[again[0]] * 9))
    status = await ask(env, [*DESK, handing_over("triage", "billing", "refunds", noProgress={"window": 2})])
    assert status.stop_reason == "no_progress"


async def test_an_answer_in_the_last_turn_is_no_failure(env: Environment) -> None:
    env.script(line("triage", transfer("billing")), line("billing", "Done."))
    assert (await ask(env, [*DESK, handing_over("triage", "billing", maxTurns=2)])).phase == "Completed"


@pytest.mark.slow
async def test_a_team_without_a_limit_ends_after_a_hundred_turns(env: Environment) -> None:
    env.script(line("triage", *[transfer("billing")] * 60), line("billing", *[transfer("triage")] * 60))
    status = await ask(env, [*DESK, handing_over("triage", "billing")])
    assert status.error == (
        "team handoff MaxTurns reached desk: nothing else limits the run, so it ends after 100 turns"
    )


async def test_terminating_the_team_wins_over_a_transfer(env: Environment) -> None:
    calls = [{"name": "transfer_to_billing", "arguments": {}}, {"name": "terminate", "arguments": {"response": "End."}}]
    env.script(line("triage", {"calls": calls}))
    status = await ask(env, [agent("triage", "terminate"), *DESK[1:], TEAM])
    assert (status.message, status.stop_reason, spoken(status)) == ("End.", "terminated", ["triage"])


async def test_transfers_count_against_budgets(env: Environment) -> None:
    env.script(line("triage", transfer("billing")), line("billing", transfer("triage")))
    status = await ask(env, [*DESK, handing_over("triage", "billing", budget={"toolCalls": 1})])
    assert status.stop_reason == "budget"
    assert spoken(status) == ["triage", "billing"]


async def test_teams_and_people_receive_the_conversation_and_do_not_transfer_it(env: Environment) -> None:
    env.script(line("triage", transfer("back-office")), line("billing", "Looked up."))
    office = team("back-office", "billing", strategy="sequential")
    desk = handing_over("triage", "back-office", {"name": "ann", "type": "human"})
    first = await ask(env, [*DESK, office, desk], conversationId="c")
    assert (first.message, spoken(first)) == ("Looked up.", ["triage", "billing"])
    assert "tools" not in env.model.requests[-1].body
    env.script(line("triage", transfer("ann", "Please decide.")))
    handle = await env.start_query([*DESK, office, desk], "team/desk", input="?", conversationId="d")
    while not (waiting := await pending_decisions(env.client, handle.id)):
        await asyncio.sleep(0.05)
    assert waiting[0].question == ("It is your turn.\n\nuser: ?\n\ntransfer_to_ann: Transferred to ann: Please decide.")


async def test_handoffs_within_a_nested_team_do_not_concern_the_team_around_it(env: Environment) -> None:
    env.script(line("front", transfer("desk")), line("triage", transfer("billing")), line("billing", "Done."))
    around = manifest("Team", "house", {"strategy": "handoff", "members": [{"name": "front"}, {"name": "desk"}]})
    manifests = [agent("front"), *DESK, TEAM, around]
    status = await env.status(await env.start_query(manifests, "team/house", conversationId="c"))
    assert (status.message, spoken(status)) == ("Done.", ["front", "triage", "billing"])
    env.script(line("billing", "Still here."))
    status = await env.status(await env.start_query(manifests, "team/house", input="?", conversationId="c"))
    assert (status.message, spoken(status)) == ("Still here.", ["billing"])


async def test_handoffs_are_events(env: Environment) -> None:
    env.script(line("triage", transfer("billing")), line("billing", "Done."))
    handle = await env.start_query([*DESK, TEAM], "team/desk")
    await env.status(handle)
    events = await read_events(handle, env.client)
    (handoff,) = [event for event in events if isinstance(event, HandoffEvent)]
    assert (handoff.team, handoff.speaker, handoff.receiver) == ("desk", "triage", "billing")
    kinds = [event.type for event in events]
    after = kinds[kinds.index("handoff") :]
    assert after[1:3] == ["turn.ended", "turn.started"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"members": [{"name": "triage", "handoffs": ["nobody"]}]}, "members[0].handoffs[0]: 'nobody' is not a member"),
        ({"members": [{"name": "triage", "handoffs": ["triage"]}]}, "members[0].handoffs[0]: is the member itself"),
        (
            {"members": [{"name": "ann", "type": "human", "handoffs": []}]},
            "members[0].handoffs: is only for agents: members of other types can receive the conversation",
        ),
        (
            {"members": [{"name": "triage", "handoffs": []}], "strategy": "sequential"},
            "members[0].handoffs: can't be used with the strategy 'sequential', only with handoff",
        ),
        (
            {"members": [{"name": "inner", "handoffs": ["triage"]}, {"name": "triage"}]},
            "members[0].handoffs: Team/default/inner has no model of its own: "
            "it can receive the conversation, but not transfer it",
        ),
        (
            {"members": [{"name": "clerk", "as": "one"}, {"name": "triage", "as": "clerk"}]},
            "members[0]: the agent clerk has a tool 'transfer_to_clerk' of its own: give it or the member another name",
        ),
    ],
)
def test_impossible_handoffs_are_refused(write: Writer, spec: Json, problem: str) -> None:
    desk = manifest("Team", "desk", {"strategy": "handoff", **spec})
    clerk = agent("clerk", tools=[{"name": "transfer_to_clerk", "partial": {"name": "noop"}}])
    inner = team("inner", "billing", strategy="sequential")
    assert [problem] == [text.partition("spec.")[2] for text in write.refusal(*DESK, clerk, inner, desk)]
