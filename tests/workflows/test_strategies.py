"""The strategies: who speaks, in which order, with which context, how a team ends, and what is kept."""

from collections.abc import Iterable
from typing import Any

import pytest

from baton.contracts.turn import TurnResult
from baton.testing import Reply, Request, ScriptedToolCall
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team, texts

ABC = [agent("a"), agent("b"), agent("c")]


def speaker(request: Request) -> str:
    """Whose turn it is, by its system prompt."""
    system = [each["content"] for each in request["messages"] if each["role"] == "system"]
    return system[0].removeprefix("You are ").removesuffix(".") if system else ""


def chooses(*names: str | Reply) -> Any:
    """A model that plays the selector with these answers, and every member with its name and number."""
    left = [*names]

    def answer(request: Request) -> Reply:
        if any(tool["function"]["name"] == "select-next-speaker" for tool in request.get("tools", [])):
            name = left.pop(0) if len(left) > 1 else left[0]
            return name if isinstance(name, Reply) else select(name)
        said = sum(each["role"] == "assistant" for each in request["messages"])
        return Reply(text=f"{speaker(request)} {said + 1}")

    return answer


def select(name: str) -> Reply:
    return Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments={"name": name})])


def led(*members: str, turns: int | None = 1, **spec: Any) -> Json:
    """A team whose members are chosen by a selector, for so many turns."""
    bound = {} if turns is None else {"maxTurns": turns, "onMaxTurns": "complete"}
    return team("team", *members, strategy="selector", **{**bound, **spec})


async def ended(env: Environment, manifests: Iterable[Json]) -> TurnResult:
    turn = await env.turn_result(await env.start_team(manifests))
    said = [row for row in env.transcript(turn.head.id) if row["role"] != "user"]
    assert [row["content"] for row in said] == texts(turn.messages), "what is shown is what is kept"
    return turn


def names(turn: TurnResult) -> list[str | None]:
    return [message.name for message in turn.messages]


async def test_a_looping_sequence_goes_on_until_its_bound(env: Environment) -> None:
    env.answer = chooses("x")
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="sequential", loops=True, maxTurns=3)])
    assert (names(turn), turn.stop_reason) == (["a", "b", "a"], "max_turns")
    assert turn.failure
    assert turn.failure.message == "team sequential MaxTurns reached team"


async def test_a_graph_begins_with_its_first_member_and_ends_where_no_edge_leads_on(env: Environment) -> None:
    env.answer = chooses("x")
    edges = [{"from": "b", "to": "c"}, {"from": "a", "to": "b"}]
    turn = await ended(env, [*ABC, team("team", "a", "c", "b", strategy="graph", graph={"edges": edges}, maxTurns=3)])
    assert (names(turn), turn.stop_reason, turn.failure) == (["a", "b", "c"], "completed", None)
    assert [len(asked.body["messages"]) for asked in env.model.requests] == [2, 3, 4]


async def test_a_graph_that_would_go_on_at_its_bound_fails(env: Environment) -> None:
    env.answer = chooses("x")
    edges = [{"from": "a", "to": "b"}, {"from": "b", "to": "a"}]
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="graph", graph={"edges": edges}, maxTurns=3)])
    assert names(turn) == ["a", "b", "a"]
    assert turn.failure
    assert turn.failure.message == "team graph MaxTurns reached team"


async def test_conditional_edges_are_tried_in_their_order(env: Environment) -> None:
    env.script(line("a", "good", "bad", "good"), line("b", "again"), line("c", "end"))
    edges = [
        {"from": "a", "to": "c", "when": "turn > 2 && message.contains('good')"},
        {"from": "a", "to": "b"},
        {"from": "b", "to": "a", "when": "speaker == 'b' && tokens > 0 && elapsed >= 0.0"},
    ]
    manifests = [*ABC, team("team", "a", "b", "c", strategy="graph", graph={"edges": edges}, maxTurns=9)]
    turn = await ended(env, manifests)
    assert names(turn) == ["a", "b", "a", "b", "a", "c"]
    assert turn.stop_reason == "completed"


async def test_a_graph_whose_conditions_are_all_false_ends(env: Environment) -> None:
    env.answer = chooses("x")
    edges = [{"from": "a", "to": "b", "when": "turn > 5"}]
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="graph", graph={"edges": edges})])
    assert (names(turn), turn.stop_reason) == (["a"], "completed")


async def test_a_condition_that_cannot_be_judged_fails_the_team_and_is_named(env: Environment) -> None:
    env.answer = chooses("x")
    when = "turn == 1 || int(message) > 0"
    edges = [{"from": "a", "to": "b", "when": when}, {"from": "b", "to": "a", "when": when}]
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="graph", graph={"edges": edges}, maxTurns=9)])
    assert names(turn) == ["a", "b"]
    assert turn.failure
    assert turn.failure.type == "ConditionFailed"
    assert "graph.edges[1].when can't be evaluated after turn 2" in turn.failure.message


async def test_a_selector_lets_its_model_choose_and_counts_what_that_costs(env: Environment) -> None:
    env.answer = chooses("b", "a", "c")
    turn = await ended(env, [*ABC, led("a", "b", "c", turns=3)])
    assert (names(turn), turn.stop_reason, turn.failure) == (["b", "a", "c"], "max_turns", None)
    assert turn.usage.model_calls == 6
    first = env.model.requests[0].body
    assert first["tools"][0]["function"]["parameters"]["properties"]["name"]["enum"] == ["a", "b", "c"]
    assert first["tool_choice"] == {"type": "function", "function": {"name": "select-next-speaker"}}
    assert "# user:\nWhy?" in first["messages"][0]["content"], "the selector reads the question"
    second = env.model.requests[2].body
    assert second["tools"][0]["function"]["parameters"]["properties"]["name"]["enum"] == ["a", "c"], "not b again"
    assert "# b:\nb 1" in second["messages"][0]["content"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("answers", "speaks", "calls"),
    [
        (["A"], "a", 1),
        ([Reply(text=" b ")], "b", 1),
        ([Reply(text="I think that B should speak, as it knows.")], "b", 1),
        ([Reply(text="a or b")], "a", 2),
        ([Reply(text="nobody"), select("b")], "b", 2),
        ([Reply(text="nobody")], "a", 2),
        ([Reply(calls=[ScriptedToolCall(name="select-next-speaker", arguments="not json")]), select("c")], "c", 2),
        ([Reply(calls=[ScriptedToolCall(name="terminate", arguments={})])], "a", 2),
    ],
)
async def test_a_selectors_answer_is_matched_or_asked_for_once_more(
    env: Environment, answers: list[str | Reply], speaks: str, calls: int
) -> None:
    env.answer = chooses(*answers)
    turn = await ended(env, [*ABC, led("a", "b", "c")])
    assert names(turn) == [speaks]
    assert len(env.model.requests) == calls + 1


async def test_a_useless_answer_counts_though_the_second_question_is_refused(env: Environment) -> None:
    env.answer = chooses(Reply(text="nobody"), Reply(status=400, text="no"))
    turn = await ended(env, [*ABC, led("a", "b", "c")])
    assert (names(turn), turn.failure, turn.usage.model_calls) == (["a"], None, 2)


async def test_a_selector_whose_first_question_is_refused_fails_the_team(env: Environment) -> None:
    env.answer = chooses(Reply(status=400, text="no"))
    turn = await ended(env, [*ABC, led("a", "b", "c")])
    assert turn.failure
    assert (names(turn), turn.failure.type) == ([], "ModelRejected")


async def test_a_selector_that_names_who_spoke_last_gets_the_first_other(env: Environment) -> None:
    env.answer = chooses("a", "a")
    turn = await ended(env, [*ABC, led("a", "b", turns=3)])
    assert names(turn) == ["a", "b", "a"]
    assert len(env.model.requests) == 4, "of two members only one may follow: nobody is asked who"


async def test_a_selectors_own_prompt_and_style_are_used(env: Environment) -> None:
    def answer(request: Request) -> Reply:
        return (
            Reply(text="b")
            if "tools" not in request and "CHOOSE" in request["messages"][0]["content"]
            else Reply(text="hi")
        )

    env.answer = answer
    prompt = "CHOOSE of {{.Participants}}; {{ .Roles }}; {{.History}}"
    selector = {"selectorPrompt": prompt, "style": "text"}
    described = [agent("a", description="knows all"), agent("b")]
    turn = await ended(
        env,
        [*described, led("a", "b", selector=selector)],
    )
    assert names(turn) == ["b"]
    messages = env.model.requests[0].body["messages"]
    assert messages[0]["content"] == "CHOOSE of a, b; a: knows all, b; # user:\nWhy?\n"
    assert messages[1]["content"] == "Select the next participant to respond. Answer with one name only."


async def test_a_selector_may_end_the_team_with_final_words(env: Environment) -> None:
    env.answer = chooses("b", Reply(calls=[ScriptedToolCall(name="terminate", arguments={"response": "All is said."})]))
    selector = {"enableTerminateTool": True, "terminatePrompt": "END WHEN DONE"}
    turn = await ended(env, [*ABC, led("a", "b", "c", turns=None, selector=selector)])
    assert (names(turn), turn.stop_reason, turn.message) == (["b", "team"], "terminated", "All is said.")
    first = env.model.requests[0].body
    assert first["tool_choice"] == "required"
    assert first["messages"][0]["content"].endswith("END WHEN DONE")


async def test_the_final_words_of_a_selector_are_the_answer_also_after_a_nested_team_with_an_answer_of_its_own(
    env: Environment,
) -> None:
    end = Reply(calls=[ScriptedToolCall(name="terminate", arguments={"response": "All is said."})])
    env.answer = chooses("duo", end)
    duo = team("duo", "a", "b", strategy="parallel")
    turn = await ended(env, [*ABC, duo, led("duo", "c", turns=None, selector={"enableTerminateTool": True})])
    assert (turn.stop_reason, turn.message) == ("terminated", "All is said.")


async def test_the_answer_of_a_nested_team_stays_the_answer_if_the_last_member_is_silent(env: Environment) -> None:
    env.script(line("one", "a"), line("two", "b"))
    duo = team("duo", "one", "two", strategy="parallel")
    skipped = {"name": "ann", "type": "human", "prompt": "Well?", "timeout": "1s", "onTimeout": "skip"}
    outer = manifest("Team", "team", {"strategy": "sequential", "members": [{"name": "duo", "type": "team"}, skipped]})
    turn = await env.turn_result(await env.start_team([agent("one"), agent("two"), duo, outer]))
    assert turn.message == "one:\na\n\ntwo:\nb"


async def test_a_selector_that_may_end_the_team_is_asked_though_only_one_may_follow(env: Environment) -> None:
    env.answer = chooses("a", "b", Reply(calls=[ScriptedToolCall(name="terminate", arguments={})]))
    selector = {"enableTerminateTool": True}
    turn = await ended(env, [*ABC, led("a", "b", turns=None, selector=selector)])
    assert (names(turn), turn.stop_reason, turn.message) == (["a", "b"], "terminated", "b 2")


async def test_a_selector_that_answers_with_text_may_end_the_team_and_mention_somebody(env: Environment) -> None:
    def answer(request: Request) -> Reply:
        chooses = request["messages"][-1]["content"].startswith("Select the next")
        said = any(each["role"] == "assistant" for each in request["messages"]) or "# b:" in str(request["messages"][0])
        return Reply(text=("TERMINATE: as b said, 42." if said else "b") if chooses else "42")

    env.answer = answer
    selector = {"style": "text", "enableTerminateTool": True}
    turn = await ended(env, [*ABC, led("a", "b", "c", turns=None, selector=selector)])
    assert (names(turn), turn.stop_reason, turn.message) == (["b", "team"], "terminated", "as b said, 42.")


async def test_a_selector_always_reads_the_question(env: Environment) -> None:
    env.answer = chooses("a", "b", "c", "a")
    given = led("a", "b", "c", turns=4, contextWindow={"maxMessages": 1})
    await ended(env, [*ABC, given])
    asked = [each.body for each in env.model.requests if "tools" in each.body]
    assert ["# user:\nWhy?" in each["messages"][0]["content"] for each in asked] == [True] * 4
    assert "# a:" not in asked[2]["messages"][0]["content"]


async def test_nobody_else_begins_in_a_parallel_team_that_was_terminated(env: Environment) -> None:
    env.answer = lambda request: Reply(calls=[ScriptedToolCall(name="terminate", arguments={"response": "Enough."})])
    manifests = [agent("a", "terminate"), agent("b"), team("team", "a", "b", strategy="parallel", maxConcurrency=1)]
    turn = await ended(env, manifests)
    assert (turn.stop_reason, turn.turns) == ("terminated", 1)
    assert len(env.model.requests) == 1


async def test_nobody_speaks_any_more_when_a_team_is_ended_while_its_selector_chooses(env: Environment) -> None:
    env.answer = chooses("b", select("a").model_copy(update={"held": True}))
    handle = await env.start_team([*ABC, led("a", "b", "c", turns=3)])
    await env.wait_for_calls(3)
    await handle.signal("terminate_team", {"reason": "enough"})
    env.model.release()
    turn = await env.turn_result(handle)
    assert (names(turn), turn.stop_reason, turn.usage.model_calls) == (["b"], "terminated", 3)


async def test_an_agent_may_choose_in_place_of_a_model(env: Environment) -> None:
    env.answer = chooses("b")
    manifests = [
        *ABC,
        agent("chair"),
        led("a", "b", selector={"agent": "chair"}),
    ]
    turn = await ended(env, manifests)
    assert names(turn) == ["b"]
    assert env.model.requests[0].body["messages"][0]["content"].startswith("You are chair.\n\n")


async def test_edges_limit_a_selector(env: Environment) -> None:
    env.answer = chooses("b", "c", "b")
    edges = [{"from": "b", "to": "a"}, {"from": "b", "to": "c"}, {"from": "c", "to": "a"}]
    turn = await ended(env, [*ABC, led("a", "b", "c", turns=9, graph={"edges": edges})])
    assert (names(turn), turn.stop_reason) == (["b", "c", "a"], "completed")
    assert len(env.model.requests) == 5


async def test_a_member_that_speaks_twice_has_another_name(env: Environment) -> None:
    env.answer = chooses("x")
    edges = [{"from": "draft", "to": "b"}, {"from": "b", "to": "final"}]
    members = [{"name": "a", "as": "draft"}, {"name": "b"}, {"name": "a", "as": "final"}]
    spec = {"strategy": "graph", "graph": {"edges": edges}, "members": members}
    given = {**team("team", "a"), "spec": spec}
    assert names(await ended(env, [*ABC, given])) == ["a", "b", "a"]


async def test_a_parallel_teams_members_do_not_read_each_other_and_are_joined_in_their_order(env: Environment) -> None:
    delays = {"a": 0.3, "b": 0.15, "c": 0.0}
    env.answer = lambda request: Reply(text=f"I am {speaker(request)}", delay=delays.get(speaker(request), 0))
    manifests = [
        *ABC,
        team("inner", "a", "b", "c", strategy="parallel"),
        team("team", "inner", "a", strategy="sequential"),
    ]
    handle = await env.start_team(manifests)
    turn = await env.turn_result(handle)
    assert names(turn) == ["a", "b", "c", "a"]
    asked = {speaker(each.body): each.body["messages"] for each in env.model.requests[:3]}
    assert all(len(messages) == 2 for messages in asked.values())
    last = env.model.requests[3].body["messages"]
    assert [each["content"] for each in last] == ["You are a.", "I am a", "I am b", "I am c", "Why?"]


async def test_a_parallel_teams_answer_is_its_members_under_their_names(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"I am {speaker(request)}")
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="parallel")])
    assert turn.message == "a:\nI am a\n\nb:\nI am b"
    assert (turn.turns, turn.stop_reason, turn.usage.model_calls) == (2, "completed", 2)


async def test_an_aggregator_makes_one_answer(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"I am {speaker(request)}")
    turn = await ended(env, [*ABC, team("team", "a", "b", strategy="parallel", aggregator="c")])
    assert (turn.message, names(turn)) == ("I am c", ["a", "b", "c"])
    assert len(env.model.requests[2].body["messages"]) == 4


@pytest.mark.full
@pytest.mark.parametrize("rule", ["fail", "continue"])
async def test_what_the_others_said_is_kept_when_a_member_of_a_parallel_team_fails(env: Environment, rule: str) -> None:
    def answer(request: Request) -> Reply:
        if speaker(request) == "b":
            return Reply(status=400, text="no", held=True)
        return Reply(text=f"I am {speaker(request)}")

    env.answer = answer
    handle = await env.start_team([*ABC, team("team", "a", "b", "c", strategy="parallel", onMemberError=rule)])
    await env.wait_for_calls(3)
    for place in ("turn-1/a", "turn-3/c"):
        await env.client.get_workflow_handle(f"{handle.id}/{place}").result()
    env.model.release()
    turn = await env.turn_result(handle)
    assert names(turn) == ["a", "c"]
    if rule == "continue":
        assert (turn.stop_reason, turn.message) == ("completed", "a:\nI am a\n\nc:\nI am c")
    else:
        assert turn.failure
        assert (turn.stop_reason, turn.failure.member) == ("failed", "b")


@pytest.mark.full
async def test_at_most_so_many_members_of_a_parallel_team_speak_at_once(env: Environment) -> None:
    env.answer = lambda request: Reply(text=speaker(request), delay=0.3)
    members = [agent(f"m{number}") for number in range(4)]
    names_ = [each["metadata"]["name"] for each in members]
    turn = await ended(env, [*members, team("team", *names_, strategy="parallel", maxConcurrency=2)])
    assert turn.turns == 4
    at = sorted(asked.received_at for asked in env.model.requests)
    assert at[2] - at[0] >= 0.29


async def test_a_team_that_only_repeats_itself_is_stopped(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"After you, {speaker(request)}!")
    rule = {"window": 3}
    turn = await ended(env, [*ABC, team("team", "a", "b", maxTurns=9, noProgress=rule)])
    assert (turn.stop_reason, turn.turns, turn.failure) == ("no_progress", 5, None)
    assert turn.note == "3 turns in a row repeat earlier messages"


SAME = "我仍然认为我们应该先听取客户的意见然后再决定下一步怎么做"
OTHERS = [
    "我们可以先问客户他们想要什么产品",
    "价格太高是目前最大的问题",
    "不如下个月再开会讨论预算",
    "也许应该换一家供应商",
]
THAI = "ฉันคิดว่าเราควรฟังความคิดเห็นของลูกค้าก่อนแล้วค่อยตัดสินใจว่าจะทำอะไรต่อไป"


@pytest.mark.parametrize(
    ("texts", "turns"),
    [
        ([SAME, f"{SAME}吧", f"那{SAME}", SAME], 3),
        ([THAI, f"{THAI}ๆ", THAI, THAI], 3),
        (OTHERS, 4),
        (["是", "不", "是不", "好"], 4),
    ],
)
async def test_a_repetition_is_found_in_a_language_without_spaces(
    env: Environment, texts: list[str], turns: int
) -> None:
    env.script(line("a", *texts))
    given = team("team", "a", maxTurns=4, onMaxTurns="complete", noProgress={"window": 2})
    turn = await ended(env, [*ABC, given])
    assert (turn.turns, turn.stop_reason) == (turns, "no_progress" if turns < 4 else "max_turns")


async def test_a_warning_lets_a_team_that_repeats_itself_go_on(env: Environment) -> None:
    env.answer = lambda request: Reply(text="Again.")
    rule = {"window": 2, "action": "warn"}
    turn = await ended(env, [*ABC, team("team", "a", "b", maxTurns=3, noProgress=rule, onMaxTurns="complete")])
    assert (turn.stop_reason, turn.turns) == ("max_turns", 6)


async def test_a_condition_ends_a_team_after_a_turn(env: Environment) -> None:
    env.answer = chooses("x")
    ends = "round == 2 && speaker == 'a' && message == 'a 3'"
    turn = await ended(env, [*ABC, team("team", "a", "b", maxTurns=9, terminateWhen=ends)])
    assert (names(turn), turn.stop_reason, turn.failure) == (["a", "b", "a"], "condition", None)


async def test_a_condition_reads_no_earlier_message_after_a_turn_in_which_nobody_said_anything(
    env: Environment,
) -> None:
    env.script(line("a", call("transfer_to_b", "Again."), "End."), line("b", call("transfer_to_a")))
    given = team("team", "a", "b", strategy="handoff", terminateWhen="speaker == 'b' && message != ''")
    turn = await ended(env, [*ABC, given])
    assert (turn.turns, turn.stop_reason, turn.message) == (3, "completed", "End.")


async def test_the_answer_of_a_nested_team_stays_the_answer_if_the_last_member_says_nothing_while_it_uses_a_tool(
    env: Environment,
) -> None:
    env.script(line("one", "a"), line("two", "b"), line("last", call("terminate")))
    duo = team("duo", "one", "two", strategy="parallel")
    outer = team("team", "duo", "last", strategy="sequential")
    turn = await ended(env, [agent("one"), agent("two"), agent("last", "terminate"), duo, outer])
    assert turn.message == "one:\na\n\ntwo:\nb"


@pytest.mark.parametrize("strategy", ["graph", "sequential"])
async def test_a_condition_reads_what_a_nested_team_has_answered(env: Environment, strategy: str) -> None:
    inner = team("inner", "a", "b")
    env.script(line("a", "Let me ask."), line("b", call("terminate", response='{"ok": true}')), line("c", "c"))
    members = ABC[0], agent("b", "terminate"), ABC[2], inner
    if strategy == "graph":
        edges = [{"from": "inner", "to": "c", "when": "value.ok && message.startsWith('{')"}]
        turn = await ended(env, [*members, team("team", "inner", "c", strategy="graph", graph={"edges": edges})])
        assert (turn.turns, turn.message) == (2, "c")
    else:
        given = team("team", "inner", "c", strategy=strategy, terminateWhen="value.ok")
        turn = await ended(env, [*members, given])
        assert (turn.turns, turn.stop_reason, turn.message) == (1, "condition", '{"ok": true}')


async def test_a_condition_reads_the_answers_of_all_members_of_a_nested_parallel_team(env: Environment) -> None:
    env.script(line("a", "yes"), line("b", "no"), line("c", "c"))
    both = team("both", "a", "b", strategy="parallel")
    given = team("team", "both", "c", strategy="sequential", terminateWhen="message == 'a:\\nyes\\n\\nb:\\nno'")
    turn = await ended(env, [*ABC, both, given])
    assert (turn.turns, turn.stop_reason) == (1, "condition")


async def test_a_nested_team_that_terminates_ends_itself_alone_in_every_strategy(env: Environment) -> None:
    env.script(line("a", "a"), line("b", call("terminate", response="inner end")), line("c", "c"))
    manifests = [agent("a"), agent("b", "terminate"), agent("c"), team("inner", "a", "b")]
    edges = [{"from": "inner", "to": "c"}]
    turn = await env.turn_result(
        await env.start_team([*manifests, team("team", "inner", "c", strategy="graph", graph={"edges": edges})])
    )
    assert (turn.stop_reason, turn.turns, turn.message) == ("completed", 2, "c")


@pytest.mark.parametrize(
    ("window", "received"),
    [
        ({"maxMessages": 2}, ["b 4", "a 5"]),
        ({"maxMessages": 3, "keepFirst": 1}, ["a 1", "b 4", "a 5"]),
        ({"maxTokens": 2}, ["a 5"]),
    ],
)
async def test_a_context_window_leaves_the_latest_messages_and_the_first(
    env: Environment, window: Json, received: list[str]
) -> None:
    said = iter(f"{'ab'[number % 2]} {number + 1}" for number in range(6))
    env.answer = lambda request: Reply(text=next(said))
    await env.turn_result(await env.start_team([*ABC, team("team", "a", "b", maxTurns=3, contextWindow=window)]))
    last = [each["content"] for each in env.model.requests[5].body["messages"]]
    assert last == ["You are b.", *received, "Why?"]


async def test_four_bytes_count_as_a_token_of_a_context_window(env: Environment) -> None:
    env.answer = lambda request: Reply(text="\u4e2d" * 12)
    window = {"maxTokens": 20}
    await env.turn_result(await env.start_team([*ABC, team("team", "a", "b", maxTurns=2, contextWindow=window)]))
    last = [each["content"] for each in env.model.requests[3].body["messages"]]
    assert last == ["You are b.", *["\u4e2d" * 12] * 2, "Why?"]


async def test_a_selector_may_let_the_first_member_speak_instead_of_asking_again(env: Environment) -> None:
    """As in ARK: all members stand in the prompt of style text, and without a choice the first one speaks."""
    choosing: list[str] = []

    def answer(request: Request) -> Reply:
        if request["messages"][-1]["content"].startswith("Select the next"):
            choosing.append(request["messages"][0]["content"])
            return Reply(text="nobody")
        return Reply(text="hi")

    env.answer = answer
    selector = {"selectorPrompt": "OF {{.Participants}}; {{.Roles}}", "style": "text", "onNoChoice": "first"}
    turn = await ended(env, [*ABC, led("a", "b", "c", turns=2, selector=selector)])
    assert (names(turn), choosing) == (["a", "a"], ["OF a, b, c; a, b, c"] * 2)


@pytest.mark.full
async def test_a_parallel_team_that_is_ended_keeps_what_all_members_said_in_their_order(env: Environment) -> None:
    late = {"text": "late", "hang": True}
    env.script(line("a", call("calculator", "a 1", expression="1+1"), late), line("b", "b 1"))
    manifests = [agent("a", "calculator"), agent("b"), team("team", "a", "b", strategy="parallel")]
    handle = await env.start_team(manifests)
    await env.wait_for_calls(3)
    await env.client.get_workflow_handle(f"{handle.id}/turn-2/b").result()
    await handle.signal("terminate_team", {"now": True})
    turn = await env.turn_result(handle)
    assert turn.head
    said = [message["content"] for message in env.transcript(turn.head.id) if message["role"] == "assistant"]
    assert said == ["a 1", "b 1"]
