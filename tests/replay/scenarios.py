"""The scenarios whose histories are recorded: one for each workflow type and each way in which it can end."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError, WorkflowHistory, WorkflowUpdateFailedError

from baton.contracts.control_messages import SteerRequest
from baton.contracts.decisions import ApproveRequest
from baton.contracts.identity import Identity, IdentityKeys
from baton.resources.base import PREALPHA
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.operations.manifests import open_store
from baton.starter.runs.decisions import decide, pending_decisions
from baton.starter.runs.start import retry_run
from baton.testing import Reply, Request, Script
from baton.worker import run_worker
from tests.harness import frozen_models
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest, new_run_id, signaled, team
from tests.harness.functions import ballot
from tests.harness.mcp_process import McpServerProcess
from tests.harness.memory_server import MemoryServer
from tests.harness.panels import SYNTHESIS, debate, panel, panelist_line, prompt_line, role_member
from tests.harness.payments import application, tool
from tests.harness.tool_server import Answer, ToolServer

CANCEL_REQUESTED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
TIMER_FIRED = EventType.EVENT_TYPE_TIMER_FIRED
CHILD_INITIATED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
TRIO = [agent("brainstormer"), agent("critic"), agent("coordinator", "terminate_team")]
BOUND = {"onMaxTurns": "complete"}
TEAM = team("team", "brainstormer", "critic", "coordinator", maxTurns=3)


def trio(env: Environment, *coordinator: str | dict[str, object], slow: float = 0) -> None:
    """Scripts the team of ARK's example; the critic may take ``slow`` seconds for its second turn."""
    env.script(
        line("brainstormer", "idea 1", "idea 2", "idea 3"),
        line("critic", "no 1", {"text": "no 2", "delay": slow}, "no 3"),
        line("coordinator", *(coordinator or ("go on 1", "go on 2", "go on 3"))),
    )


async def max_turns(env: Environment) -> Handle:
    trio(env)
    return await env.start_team([*TRIO, TEAM])


async def max_turns_wanted(env: Environment) -> Handle:
    trio(env)
    members = "brainstormer", "critic"
    return await env.start_team([*TRIO, team("team", *members, maxTurns=2, onMaxTurns="complete")])


async def budget(env: Environment) -> Handle:
    trio(env)
    inner = team("inner", "critic", "coordinator", strategy="parallel")
    outer = team("team", "brainstormer", "inner", budget={"modelCalls": 9})
    return await env.start_query([*TRIO, inner, outer], "team/team", budget={"modelCalls": 5})


async def budget_for_which_a_person_is_asked(env: Environment) -> Handle:
    """Two members wait at once; one yes holds for both. Then there is a no."""
    trio(env)
    outer = team("team", "brainstormer", "critic", "coordinator", strategy="parallel")
    again = team("again", "team", "critic", strategy="sequential")
    budget = {"modelCalls": 1, "onExceeded": "ask"}
    handle = await env.start_query([*TRIO, outer, again], "team/again", budget=budget)
    for given in ({"arguments": {"modelCalls": 2}}, {"approved": False}):
        while not (waiting := await pending_decisions(env.client, handle.id)):
            await asyncio.sleep(0.05)
        await decide(env.client, handle, ApproveRequest.model_validate({"call": waiting[0].id, **given}))
        await env.wait_for_calls(3)
    return handle


async def terminated_by_a_member(env: Environment) -> Handle:
    trio(env, call("terminate_team", "So be it.", response="Done."))
    return await env.start_team([*TRIO, TEAM])


async def failed_member(env: Environment) -> Handle:
    trio(env, {"status": 400, "text": "no such thing"})
    return await env.start_team([*TRIO, TEAM])


async def terminated_by_signal(env: Environment) -> Handle:
    trio(env, slow=0.5)
    handle = await env.start_team([*TRIO, TEAM])
    await env.wait_for_calls(5)
    await handle.signal("terminate_team", {"reason": "enough"})
    return handle


async def terminated_now(env: Environment) -> Handle:
    trio(env, slow=5)
    handle = await env.start_team([*TRIO, TEAM])
    await env.wait_for_calls(5)
    await handle.signal("terminate_team", {"reason": "enough", "now": True})
    return handle


async def canceled(env: Environment) -> Handle:
    trio(env, slow=5)
    handle = await env.start_team([*TRIO, TEAM])
    await env.wait_for_calls(5)
    await handle.cancel()
    return handle


async def sequential(env: Environment) -> Handle:
    trio(env)
    return await env.start_team([*TRIO, team("team", "brainstormer", "critic", strategy="sequential")])


async def nested(env: Environment) -> Handle:
    trio(env, call("terminate_team", response="Inner end."))
    inner = team("inner", "brainstormer", "coordinator", maxTurns=2)
    return await env.start_team([*TRIO, inner, team("team", "inner", "critic", strategy="sequential")])


async def handoff(env: Environment) -> Handle:
    """A transfer and a second one in the same answer; then a query that begins with the last member."""
    transfers = [
        {"name": f"transfer_to_{name}", "arguments": {"message": "Go on."}} for name in ("critic", "coordinator")
    ]
    env.script(line("brainstormer", {"text": "idea 1", "calls": transfers}), line("critic", "no 1", "no 2"))
    desk = team("team", "brainstormer", "critic", "coordinator", strategy="handoff")
    manifests = [*TRIO, desk]
    await env.status(await env.start_query(manifests, "team/team", conversationId="c"))
    return await env.start_query(manifests, "team/team", conversationId="c")


async def functions(env: Environment) -> Handle:
    """A selector and a member that are functions."""
    trio(env)
    room = team("team", strategy="selector", maxTurns=5, selector={"function": "in-order"})
    room["spec"]["members"] = [{"name": "brainstormer"}, {"name": "ballot", "type": "activity"}, {"name": "critic"}]
    return await env.start_team([*TRIO, room])


async def parallel(env: Environment) -> Handle:
    trio(env)
    members = "brainstormer", "critic"
    return await env.start_team([*TRIO, team("team", *members, strategy="parallel", aggregator="coordinator")])


async def parallel_with_a_failure(env: Environment) -> Handle:
    trio(env, {"status": 400, "text": "no such thing"})
    return await env.start_team([*TRIO, team("team", "brainstormer", "coordinator", strategy="parallel")])


async def graph(env: Environment) -> Handle:
    trio(env)
    edges = [{"from": "brainstormer", "to": "critic", "when": "turn < 3"}, {"from": "critic", "to": "brainstormer"}]
    given = team("team", "brainstormer", "critic", strategy="graph", graph={"edges": edges}, maxTurns=9)
    return await env.start_team([*TRIO, given])


async def selector(env: Environment) -> Handle:
    said = Script(lines=[line("brainstormer", "idea"), line("critic", "no"), line("coordinator", "go on")])

    def answer(request: Request) -> Reply:
        if any(tool["function"]["name"] == "select-next-speaker" for tool in request.get("tools", [])):
            return Reply(text="the critic, I think")
        return said.answer(request)

    env.answer = answer
    return await env.start_team([*TRIO, team("team", "brainstormer", "critic", strategy="selector", maxTurns=3)])


async def condition(env: Environment) -> Handle:
    trio(env)
    return await env.start_team([*TRIO, team("team", "brainstormer", "critic", maxTurns=3, terminateWhen="turn == 3")])


async def no_progress(env: Environment) -> Handle:
    env.answer = lambda _: Reply(text="After you!")
    return await env.start_team([*TRIO, team("team", "brainstormer", maxTurns=9, noProgress={"window": 2})])


async def no_progress_without_spaces(env: Environment) -> Handle:
    same = "我仍然认为我们应该先听取客户的意见然后再决定下一步怎么做"
    env.answer = lambda request: Reply(text=f"{same}{len(request['messages'])}")
    return await env.start_team([*TRIO, team("team", "brainstormer", maxTurns=9, noProgress={"window": 2})])


async def progress_with_transfers(env: Environment) -> Handle:
    """Members say something new with each transfer, whose result is the same."""
    there, back = [
        [{**call(f"transfer_to_{to}"), "text": f"{word} is worth a thought."} for word in words]
        for to, words in (("critic", ("Cash", "Law", "Luck")), ("brainstormer", ("Time", "Tax")))
    ]
    env.script(line("brainstormer", *there), line("critic", *back, "Enough."))
    transfers = team("team", "brainstormer", "critic", strategy="handoff", noProgress={"window": 2})
    return await env.start_team([*TRIO, transfers])


async def parallel_beyond_its_budget(env: Environment) -> Handle:
    """A team that continues without members that fail has a budget whose end fails it."""
    trio(env)
    spec: Json = {"strategy": "parallel", "maxConcurrency": 1, "onMemberError": "continue"}
    bounded = team("team", "brainstormer", "critic", budget={"modelCalls": 1, "onExceeded": "fail"}, **spec)
    return await env.start_team([*TRIO, bounded])


async def paused_parallel(env: Environment) -> Handle:
    """A run is paused between two members of a parallel team, one of which speaks at a time."""
    env.script(line("brainstormer", {"text": "Let us paint.", "held": True}), line("critic", "Too dear."))
    spec: Json = {"strategy": "parallel", "maxConcurrency": 1}
    handle = await env.start_team([*TRIO, team("team", "brainstormer", "critic", **spec)])
    await env.wait_for_calls(1)
    await handle.signal("pause", {"name": "ann"})
    env.model.release()
    await env.wait_until_idle(handle)
    await handle.signal("resume")
    return handle


async def message_left_to_the_parent(env: Environment) -> Handle:
    """A person's message comes during the last call of an agent that a tool asks."""
    env.script(line("lead", call("ask", input="Why?"), "Done."), line("expert", {"text": "Because.", "held": True}))
    ask = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "expert"}})
    given = {"agent": "lead", "input": "?", "resources": [agent("lead", "ask"), agent("expert"), ask]}
    handle = await env.start("agent", given)
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    [child] = [run for run in await env.find_runs("WorkflowType = 'agent'", 2) if run != handle.id]
    await signaled(env.client.get_workflow_handle(child), "steer")
    env.model.release()
    return handle


async def message_left_by_a_team(env: Environment) -> Handle:
    """A person's message comes during the last turn of a team that a tool asks."""
    env.script(line("lead", call("ask", input="Why?"), "Done."), line("expert", {"text": "Because.", "held": True}))
    ask = manifest("Tool", "ask", {"type": "team", "team": {"name": "experts"}})
    experts = team("experts", "expert", strategy="sequential")
    given = {"agent": "lead", "input": "?", "resources": [agent("lead", "ask"), agent("expert"), experts, ask]}
    handle = await env.start("agent", given)
    await env.wait_for_calls(2)
    await handle.execute_update("steer", {"text": "Be brief.", "name": "ann"})
    [child] = await env.find_runs("WorkflowType = 'sequential'", 1)
    await signaled(env.client.get_workflow_handle(child), "steer")
    env.model.release()
    return handle


async def silent_member(env: Environment) -> Handle:
    env.script(panelist_line("a", "a1", "a2"), SYNTHESIS, line("brainstormer", "Again.", "Again."))
    quiet = panel(role_member("a"), maxRounds=1, synthesizerVisibility={"history": False})
    given = team("team", "brainstormer", "panel", maxTurns=9, noProgress={"window": 2}, terminateWhen="turn == 4")
    return await env.start_team([*TRIO, quiet, given])


async def looping(env: Environment) -> Handle:
    trio(env)
    given = team("team", "brainstormer", "critic", strategy="sequential", loops=True, maxTurns=3)
    return await env.start_team([*TRIO, given])


async def looping_in_arks_dialect(env: Environment) -> Handle:
    trio(env)
    inner = team("inner", "brainstormer", "critic", maxTurns=3)
    spec = {"input": "Why?", "target": {"type": "team", "name": "team"}}
    outer = team("team", "inner", "coordinator", strategy="sequential")
    return await env.start("query", {"spec": spec, "resources": [*TRIO, inner, outer]})


async def refused_in_arks_dialect(env: Environment) -> Handle:
    return await env.start("query", {"name": "nothing"})


async def agent_with_tools(env: Environment) -> Handle:
    calls = [*call("calculator", expression="6*7")["calls"], *call("noop", message="x")["calls"]]
    env.script(line("one", {"calls": calls}, call("unknown"), "Done."))
    manifest = agent("one", "calculator", "noop", parallelToolCalls=True)
    return await env.start("agent", {"agent": "one", "input": "Why?", "resources": [manifest]})


async def circuit_breaker(env: Environment) -> Handle:
    env.script(line("one", {"text": "At last.", "before": [{"status": 503}]}))
    config = {"openai": {"baseUrl": env.model_url}}
    rule = {"failures": 1, "openFor": "1s"}
    spec = {"type": "completions", "provider": "openai", "model": "m", "config": config, "circuitBreaker": rule}
    given = [agent("one", modelRef={"name": "gpt"}), manifest("Model", "gpt", spec)]
    return await env.start("agent", {"agent": "one", "input": "Why?", "resources": given})


async def delegation(env: Environment) -> Handle:
    """An agent asks an agent and a team at once, by its tools."""
    both = [{"name": name, "arguments": {"input": "Which?"}} for name in ("ask-one", "ask-pair")]
    env.script(line("lead", {"text": "", "calls": both}, "This one."), line("one", "one"), line("two", "two"))
    asks: Json = {"ask-one": ("agent", "one"), "ask-pair": ("team", "pair")}
    tools = [manifest("Tool", name, {"type": kind, kind: {"name": whom}}) for name, (kind, whom) in asks.items()]
    lead = agent("lead", *asks, parallelToolCalls=True)
    brought = [lead, agent("one"), agent("two"), team("pair", "one", "two", strategy="sequential"), *tools]
    return await env.start("agent", {"agent": "lead", "input": "?", "resources": brought})


async def activity_tool(env: Environment) -> Handle:
    """Two calls of an application's activities at once; then one that fails."""
    calls = [*call("charge", amount=120)["calls"], *call("pay", amount=7)["calls"]]
    env.script(line("adjuster", {"text": "", "calls": calls}, call("charge", amount=1), "Declined."))
    async with application(env.client) as (payments, queue):
        payments.declined.add(1)
        tools = [tool(queue, activity={"arguments": ["amount", "currency"]}), tool(queue, "pay", "pay_claim")]
        adjuster = agent("adjuster", "charge", "pay", parallelToolCalls=True)
        handle = await env.start("agent", {"agent": "adjuster", "input": "Pay.", "resources": [adjuster, *tools]})
        await handle.result()
    return handle


async def waiting_for(handle: Handle) -> str:
    """The id of what a run waits for."""
    while not (asked := (await handle.query("status")).get("pendingDecisions")):
        await asyncio.sleep(0.05)
    return str(asked[0]["id"])


async def people(env: Environment) -> Handle:
    """A person replies, after a reply that doesn't fit; another one does not; then nobody does while the run ends."""
    env.script(line("critic", "no 1"))
    ann = {"name": "ann", "type": "human", "prompt": "How much?", "outputSchema": {"type": "integer"}}
    bob = {"name": "bob", "type": "human", "timeout": "300ms", "onTimeout": "skip"}
    members = [ann, bob, {"name": "critic"}, {"name": "cid", "type": "human"}]
    given = {"strategy": "sequential", "members": members}
    handle = await env.start_team([agent("critic"), manifest("Team", "team", given)])
    asked = await waiting_for(handle)
    with contextlib.suppress(WorkflowUpdateFailedError):
        await handle.execute_update("reply", {"text": "much"})
    await handle.execute_update("reply", {"text": "3", "to": asked, "by": "ann"})
    while (await handle.query("status")).get("turns") != 3:
        await asyncio.sleep(0.05)
    await waiting_for(handle)
    await handle.signal("terminate_team")
    return handle


async def question_of_a_server(env: Environment) -> Handle:
    """A tool's server asks in the middle of a call: a reply that doesn't fit, an answer, and then a decline."""
    env.script(line("one", call("test-book", day="Monday"), "Done."))
    one = agent("one", tools=[{"name": "test-book", "type": "mcp"}])
    with McpServerProcess("2026", env.folder).running() as server:
        given = {"agent": "one", "input": "Why?", "resources": [one, server.manifest(questions={})]}
        handle = await env.start("agent", given)
        first = await waiting_for(handle)
        with contextlib.suppress(WorkflowUpdateFailedError):
            await handle.execute_update("reply", {"text": "blue"})
        await handle.execute_update("reply", {"text": '{"room": "blue"}', "to": first, "by": "ann"})
        while (second := await waiting_for(handle)) == first:
            await asyncio.sleep(0.05)
        await handle.execute_update("reply", {"text": "", "to": second, "by": "ann", "declines": True})
        await handle.result()
    return handle


async def client_tools(env: Environment) -> Handle:
    """Two calls of the client's tools wait at once: one gets its result twice, another is refused; a third one ends."""
    both = {"calls": [*call("weather", city="Bern")["calls"], *call("weather", city="Rome")["calls"]]}
    env.script(line("one", both, call("weather", city="Oslo"), "Done."))
    tool: Json = {"name": "weather", "parameters": {"type": "object", "required": ["city"]}}
    client = {"tools": [tool], "settings": {"temperature": 0, "instructions": "Be brief."}}
    one = agent("one", clients={"tools": True, "settings": ["*"]})
    handle = await env.start_query([one], "agent/one", client=client)
    asked: list[Json] = []
    while len(asked) < 2:
        asked = (await handle.query("status")).get("pendingDecisions") or []
    result = {"call": asked[1]["id"], "output": "sun", "by": "ann"}
    await handle.execute_update("give_result", result)
    await handle.execute_update("give_result", result)
    with contextlib.suppress(WorkflowUpdateFailedError):
        await handle.execute_update("give_result", {**result, "output": "snow"})
    await handle.execute_update("give_result", {"call": asked[0]["id"], "output": "rain", "by": "ann"})
    while await waiting_for(handle) in {each["id"] for each in asked}:
        await asyncio.sleep(0.05)
    await handle.signal("terminate_team")
    return handle


async def retried_model(env: Environment) -> Handle:
    env.script(line("one", {"text": "At last.", "before": [{"status": 503}, {"status": 500}]}))
    return await env.start("agent", {"agent": "one", "input": "Why?", "resources": [agent("one")]})


async def retried_run(env: Environment) -> Handle:
    """A team below a query fails in the middle of its discussion; then the query is retried."""
    refused = {"status": 401}
    env.script(line("brainstormer", "idea 1"), line("critic", {"text": "no 1", "before": [refused]}))
    pair = team("team", "brainstormer", "critic", strategy="sequential")
    failed = await env.start_query([*TRIO, pair], "team/team")
    with contextlib.suppress(WorkflowFailureError):
        await failed.result()
    return await retry_run(env.client, failed)


async def forked_run(env: Environment) -> Handle:
    """A team below a query ends; then the query is forked after the first turn, with another prompt and a message."""
    env.script(line("brainstormer", "idea 1"), line("critic", "no 1"), line("judge", "no 2"))
    pair = team("team", "brainstormer", "critic", strategy="sequential")
    first = await env.start_query([*TRIO, pair], "team/team")
    await first.result()
    changes = ForkChanges(say=SteerRequest(text="Be brief.", name="ann"), fields={"critic.prompt": "You are judge."})
    return await fork_run(env.client, first, "1", changes)


async def query(env: Environment) -> Handle:
    trio(env)
    return await env.start_query([*TRIO, TEAM], "agent/critic", "team/team")


async def query_of_model_and_tool(env: Environment) -> Handle:
    server = {"openai": {"baseUrl": {"value": env.model_url}}}
    model = manifest("Model", "gpt", {"type": "openai", "model": {"value": "gpt"}, "config": server})
    tool = manifest("Tool", "models", {"type": "http", "http": {"url": f"{env.model_url}/models"}})
    lost = manifest("Tool", "lost", {"type": "http", "http": {"url": f"{env.model_url}/lost"}})
    env.answer = lambda _: Reply(text="I am.")
    return await env.start_query([model, tool, lost], "model/gpt", "tool/models", "tool/lost")


async def query_timeout(env: Environment) -> Handle:
    trio(env, slow=5)
    return await env.start_query([*TRIO, TEAM], "team/team", timeout="1s")


async def query_timeout_with_a_cause(env: Environment) -> Handle:
    """The model is overloaded until the query's time is up."""
    env.script(line("one", {"status": 503, "text": "overloaded"}))
    return await env.start_query([agent("one")], "agent/one", timeout="2s")


async def query_to_one_agent(env: Environment) -> Handle:
    """The agent's turn is taken in the query's own run, which continues as new."""
    env.script(line("one", *(call("noop", text=f"step {number}") for number in range(12)), "Done."))
    return await env.start_query([agent("one", "noop")], "agent/one", timeout="5m")


async def query_to_one_tool(env: Environment) -> Handle:
    tool = manifest("Tool", "models", {"type": "http", "http": {"url": f"{env.model_url}/models"}})
    return await env.start_query([tool], "tool/models")


async def query_canceled(env: Environment) -> Handle:
    trio(env, slow=5)
    handle = await env.start_query([*TRIO, TEAM], "team/team")
    await env.wait_for_calls(5)
    await handle.cancel()
    return handle


async def query_canceled_by_its_manifest(env: Environment) -> Handle:
    spec = {"input": "Why?", "target": {"type": "agent", "name": "critic"}, "cancel": True}
    return await env.start("query", {"spec": spec, "resources": [*TRIO]})


async def query_terminated(env: Environment) -> Handle:
    trio(env, slow=0.5)
    handle = await env.start_query([*TRIO, TEAM], "team/team", "agent/brainstormer")
    await env.wait_for_calls(6)
    await handle.signal("terminate_team", "enough")
    return handle


async def going_on(env: Environment) -> Handle:
    """On a server where runs continue as new after 50 events."""
    trio(env)
    given = team("team", "brainstormer", "coordinator", maxTurns=6, onMaxTurns="complete")
    return await env.start_query([*TRIO, given], "team/team")


async def going_on_with_a_session(env: Environment) -> Handle:
    trio(env)
    given = team("team", "brainstormer", "coordinator", maxTurns=12, onMaxTurns="complete")
    asked = {"team": "team", "input": "Why?", "resources": [*TRIO, given], "session": {"rounds": 3}}
    return await env.start("round-robin", asked)


@contextlib.asynccontextmanager
async def query_with_child_held_back(
    env: Environment, asked: Json, child: str, **options: object
) -> AsyncIterator[Handle]:
    """A query whose child cannot be started while the block runs: its id is taken, as it can be after a reset."""
    query_id = new_run_id("query")
    child_id = f"{query_id}/target-1/{child}"
    former = await env.client.start_workflow("round-robin", id=child_id, task_queue="nobody-polls")
    handle = await env.start("query", asked, run_id=query_id, **options)
    while (await former.fetch_history()).events[-1].event_type != CANCEL_REQUESTED:
        await asyncio.sleep(0.05)
    yield handle
    await former.terminate()


async def a_session_changed_meanwhile(env: Environment) -> Handle:
    """The session changes while the child cannot be started."""
    env.script(panelist_line("a", "a1", "a2"))
    ends = "round >= session.rounds && !has(session.old)"
    manifests = [panel(role_member("a"), maxRounds=9, terminateWhen=ends, synthesizer=False)]
    asked = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "panel"}]}, "resources": manifests}
    asked["session"] = {"rounds": 5, "old": 1}
    async with query_with_child_held_back(env, asked, "panel") as handle:
        await handle.execute_update("session", {"rounds": 2, "old": None})
    return handle


async def resumed_meanwhile(env: Environment) -> Handle:
    """The query is paused before it begins, and resumed while the child cannot be started."""
    trio(env)
    manifests = [*TRIO, team("team", "brainstormer", "critic", strategy="sequential")]
    asked = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}, "resources": manifests}
    paused = {"start_signal": "pause", "start_signal_args": [{"name": "Ann"}]}
    async with query_with_child_held_back(env, asked, "team", **paused) as handle:
        await handle.signal("resume", {"name": "Ann"})
    return handle


async def going_on_in_a_turn(env: Environment) -> Handle:
    env.script(line("one", *[call("noop", message="x")] * 9, "Done."))
    return await env.start_team([agent("one", "noop"), team("team", "one", strategy="sequential")])


async def held_panel(env: Environment) -> Handle:
    """A panel with members of every kind, a referee, and a session that changes meanwhile."""
    critique = prompt_line("You are the referee", '{"critique": "Vague."}')
    env.script(
        panelist_line("a", {"text": "a1", "delay": 0.3}, "a2"), line("own", "o"), line("one", "1"), critique, SYNTHESIS
    )
    roster = [role_member("a"), {"name": "own"}, {"name": "desk"}, {"name": "ballot", "type": "activity"}]
    spec = {"maxRounds": 4, "referee": True, "terminateWhen": "has(session.enough)", "contributions": {"key": "k"}}
    desk = team("desk", "one", strategy="sequential")
    handle = await env.start_team([agent("own"), agent("one"), desk, panel(*roster, **spec)], "panel")
    await env.wait_for_calls(1)
    await handle.execute_update("steer", {"text": "Mind the costs.", "name": "ann"})
    await handle.execute_update("session", {"enough": True})
    return handle


async def canceled_panel(env: Environment) -> Handle:
    env.script(panelist_line("a", "a1", {"text": "", "hang": True}))
    handle = await env.start_query([panel(role_member("a"), maxRounds=2, synthesizer=False)], "team/panel")
    await env.wait_for_calls(2)
    await handle.cancel()
    return handle


async def raw_panel(env: Environment) -> Handle:
    """A panel that gets the signals to pause, to resume and to terminate."""
    env.script(panelist_line("a", {"text": "a1", "delay": 0.3}, "a2"))
    handle = await env.start_team([panel(role_member("a"), maxRounds=3, synthesizer=False)], "panel")
    await env.wait_for_calls(1)
    for signal in ("pause", "resume", "terminate_team"):
        await handle.signal(signal)
    return handle


async def held_debate(env: Environment) -> Handle:
    opened = '{"nextSpeakers": ["b", "a"], "done": true}'
    verdict = '{"verdict": "Tabs.", "winner": "Tabs", "reasoning": "Shorter."}'
    parts = [prompt_line("You moderate", opened), prompt_line("You judge", verdict), SYNTHESIS]
    env.script(prompt_line("You are a,", "a1"), prompt_line("You are b,", "b1"), *parts)
    debaters = [{"name": "a", "stance": "Tabs"}, {"name": "b", "stance": "Spaces"}]
    return await env.start_query([debate(*debaters, moderator=True)], "team/debate")


async def ended_at_once(env: Environment) -> Handle:
    trio(env)
    given = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "team"}]}, "resources": [*TRIO, TEAM]}
    return await env.start("query", given, start_signal="terminate_team")


async def refused_at_once(env: Environment) -> Handle:
    return await refused(env)


async def refused(env: Environment) -> Handle:
    return await env.start("query", {"spec": {"inptu": "x"}})


Scenario = Callable[[Environment], Awaitable[Handle]]
"""Starts a run of one kind and brings it on its way; gives its handle."""


async def messages_to_children(env: Environment) -> Handle:
    slow = [{"text": text, "delay": 0.4} for text in ("a", "b", "c")]
    env.script(line("brainstormer", *slow), line("critic", *slow))
    below = [team("left", "brainstormer", maxTurns=3, **BOUND), team("right", "critic", maxTurns=3, **BOUND)]
    handle = await env.start_team([*TRIO, *below, team("team", "left", "right", strategy="parallel")])
    await env.wait_for_calls(2)
    for signal, given in (("pause", {"name": "ann"}), ("session", {"mood": "good"}), ("resume", None)):
        await handle.signal(signal, given)
    await handle.execute_update("steer", {"text": "Be kind.", "name": "ann"})
    return handle


async def paused_selector(env: Environment) -> Handle:
    choices = [call("select-next-speaker", name=name) for name in ("critic", "brainstormer")]
    script = Script.model_validate({"lines": [{"system": "You moderate", "agent": "chooser", "say": choices}]})
    names = "brainstormer", "critic", "coordinator"
    env.script(*script.lines, line("critic", {"text": "no 1", "delay": 0.4}), line("brainstormer", "idea 1"))
    handle = await env.start_team([*TRIO, team("team", *names, strategy="selector", maxTurns=2, **BOUND)])
    await env.wait_for_calls(2)
    await handle.signal("pause", {"name": "ann"})
    await env.wait_until_idle(handle)
    await handle.execute_update("steer", {"text": "x" * 7_000})
    await handle.signal("resume")
    return handle


async def message_to_a_refused_query(env: Environment) -> Handle:
    given: Json = {"spec": {"input": "?", "targets": [{"type": "team", "name": "unknown"}]}}
    return await env.start("query", given, start_signal="steer", start_signal_args=[{"text": "Be kind."}])


async def executed_elsewhere(env: Environment) -> Handle:
    """A member that an engine executes: its answer does not fit its schema at first."""
    trio(env)
    said = (json.dumps({"messages": [{"role": "assistant", "content": text}]}) for text in ("no", '{"ok": true}'))
    with ToolServer().serving() as engine:
        engine.answers(*map(Answer, said))
        manifests = [
            {**manifest("ExecutionEngine", "far", {"type": "x", "address": engine.url}), "apiVersion": PREALPHA},
            agent("remote", executionEngine={"name": "far"}, outputSchema={"type": "object"}),
            agent("critic"),
            team("team", "remote", "critic", strategy="sequential"),
        ]
        handle = await env.start_team(manifests)
        await handle.result()
    return handle


async def canceled_elsewhere(env: Environment) -> Handle:
    """An agent is canceled while an engine executes it."""
    with ToolServer().serving() as engine:
        engine.answers(Answer(hang=True))
        far = {**manifest("ExecutionEngine", "far", {"type": "x", "address": engine.url}), "apiVersion": PREALPHA}
        given = {"agent": "remote", "input": "?", "resources": [agent("remote", executionEngine={"name": "far"}), far]}
        handle = await env.start("agent", given)
        while not engine.seen:
            await asyncio.sleep(0.02)
        await handle.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()
    return handle


async def conversation_with_a_ttl(env: Environment) -> Handle:
    """A query in a conversation of the journal; what would delete it is canceled."""
    trio(env)
    handle = await env.start_query([*TRIO, TEAM], "agent/critic", conversationId="c", ttl="1h")
    await handle.result()
    for expiry in await env.find_runs("WorkflowType = 'expire'", 1):
        waiting = env.client.get_workflow_handle(expiry)
        await waiting.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await waiting.result()
    return handle


async def expiry(env: Environment) -> Handle:
    """The workflow that deletes a query: the query itself has no history left."""
    trio(env)
    await env.start_query([*TRIO, TEAM], "agent/critic", ttl="1ms")
    [expiry] = await env.find_runs("WorkflowType = 'expire' AND ExecutionStatus = 'Completed'", 1)
    return env.client.get_workflow_handle(expiry)


async def notifications(env: Environment) -> Handle:
    """A query whose webhook is told that it starts, waits for an approval and ends."""
    asks = {"type": "agent", "agent": {"name": "expert"}, "approval": {"required": True}}
    env.script(line("lead", call("ask", input="Why?"), "Done."), line("expert", "Because."))
    with ToolServer().serving() as hook:
        notify = [{"url": hook.url, "events": ["started", "waiting", "ended"]}]
        manifests = [agent("lead", "ask"), agent("expert"), manifest("Tool", "ask", asks)]
        handle = await env.start_query(manifests, "agent/lead", notify=notify)
        while not (waiting := await pending_decisions(env.client, handle.id)):
            await asyncio.sleep(0.02)
        await decide(env.client, handle, ApproveRequest(call=waiting[0].id, approved=True))
        await handle.result()
        await env.find_runs("WorkflowType = 'notify' AND ExecutionStatus = 'Completed'", 3)
    return handle


async def notification(env: Environment) -> Handle:
    """The workflow that delivers an event to a webhook."""
    trio(env)
    with ToolServer().serving() as hook:
        await env.start_query([*TRIO, TEAM], "agent/critic", notify=[{"url": hook.url, "events": ["ended"]}])
        [delivery] = await env.find_runs("WorkflowType = 'notify' AND ExecutionStatus = 'Completed'", 1)
    return env.client.get_workflow_handle(delivery)


async def memory(env: Environment) -> Handle:
    """A query in a conversation that an HTTP service keeps."""
    trio(env)
    with MemoryServer("items").serving() as service:
        kept = manifest("Memory", "m", {"address": service.url})
        handle = await env.start_query([*TRIO, kept], "agent/critic", memory="m", conversationId="c")
        await handle.result()
    return handle


async def approvals(env: Environment) -> Handle:
    """Calls wait for people: one is approved and changed, one is rejected for all, one times out."""
    ask, late = call("ask", input="Why?"), call("late", input="When?")
    env.script(line("lead", ask, ask, ask, late, "Done."), line("expert", "Because."))
    asks = {"type": "agent", "agent": {"name": "expert"}}
    tools = [
        manifest("Tool", "ask", {**asks, "approval": {}}),
        manifest("Tool", "late", {**asks, "approval": {"timeout": "1s", "onTimeout": "proceed"}}),
    ]
    handle = await env.start_query([agent("lead", "ask", "late"), agent("expert"), *tools], "agent/lead")
    await env.find_runs(f"WorkflowId = '{handle.id}' AND BatonPhase = 'InputRequired'", 1)
    for given in ({"arguments": {"input": "How?"}}, {"approved": False, "reason": "No.", "remember": True}):
        while not (found := (await handle.query("status")).get("pendingDecisions")):
            await asyncio.sleep(0.02)
        await handle.execute_update("approve", {"call": found[0]["id"], "by": "ann", **given})
    return handle


async def traced(env: Environment) -> Handle:
    """The same in runs that report their spans."""
    return await approvals(env)


async def audited(env: Environment) -> Handle:
    """The same in runs that write to the audit log."""
    return await approvals(env)


async def decided_by_approvers(env: Environment) -> Handle:
    """Two verified people approve a call, after one who may not has tried to."""
    env.script(line("lead", call("ask", input="Why?"), "Done."), line("expert", "Because."))
    approval = {"approvers": [{"groups": ["finance"], "required": 2}]}
    ask = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "expert"}, "approval": approval})
    handle = await env.start_query([agent("lead", "ask"), agent("expert"), ask], "agent/lead")
    await waiting_for(handle)
    keys = IdentityKeys((IDENTITY_KEY,))
    for name, group in (("eve", "sales"), ("ann", "finance"), ("bob", "finance")):
        [waiting] = await pending_decisions(env.client, handle.id)
        request = ApproveRequest(call=waiting.id, approved=True)
        place = waiting.place(env.client.namespace, request)
        signed = request.signed(keys.sign_decision(Identity(name=name, groups=(group,)), place))
        decider = env.client.get_workflow_handle(waiting.run)
        with contextlib.suppress(WorkflowUpdateFailedError):
            await decider.execute_update("approve", signed)
    return handle


async def admission(env: Environment) -> Handle:
    """A run waits until another one of its tenant has ended, as a Quota permits one at a time."""
    env.script(line("lead", call("ask", input="Why?"), "Done."), line("expert", "Because.", "Because."))
    ask = manifest("Tool", "ask", {"type": "agent", "agent": {"name": "expert"}, "approval": {}})
    quota = Document("quota.yaml", manifest("Quota", "limits", {"maxConcurrentRuns": 1}), {})
    async with open_store(env.worker_env) as store:
        await store.apply(load_documents([quota]))
    first = await env.start_query([agent("lead", "ask"), agent("expert"), ask], "agent/lead")
    approval = await waiting_for(first)
    second = await env.start_query([agent("expert")], "agent/expert")
    while (await second.query("status"))["phase"] != "Waiting":
        await asyncio.sleep(0.02)
    await first.execute_update("approve", {"call": approval, "approved": True})
    await first.result()
    return second


async def without_a_worker_for_models(env: Environment) -> Handle:
    """No worker finishes a call of a nested agent; another one makes it again."""
    env.answer = lambda _: Reply(text="Here.")
    async with frozen_models.frozen_worker(env):
        handle = await env.start_query(frozen_models.teams(env), "team/outer")
        while (await handle.query("status"))["phase"] != "Waiting":
            await asyncio.sleep(0.1)
    async with run_worker(env.client, env.catalog, {**env.worker_env, "BATON_ROLES": "models"}):
        await handle.result()
    return handle


async def repeated_by_cron(env: Environment) -> Handle:
    """The server starts the next run of a cron with the input of the first one."""
    env.script(line("a", *(["Yes."] * 9)))
    run_input = {"agent": "a", "input": "Why?", "resources": [agent("a")]}
    handle = await env.start("agent", run_input, cron_schedule="@every 2s")
    while len([run async for run in env.closed_runs()]) < 2:
        await asyncio.sleep(0.05)
    await handle.terminate()
    return handle


async def without_a_worker_for_functions(env: Environment) -> Handle:
    """No worker finishes the call of a function that is a member; another one makes it again."""
    members = [{"name": "ballot", "type": "activity"}]
    async with frozen_models.frozen_worker_for_functions(env):
        handle = await env.start_query([team("team", strategy="sequential", members=members)], "team/team")
        while (await handle.query("status"))["phase"] == "Running":
            await asyncio.sleep(0.1)
    async with run_worker(env.client, env.catalog, {**env.worker_env, "BATON_ROLES": "tools"}, (ballot,)):
        await env.status(handle)
    return handle


async def without_a_worker_after_failures(env: Environment) -> Handle:
    """As ``without_a_worker_for_models``, but before its last attempt the call has failed."""
    env.answer = lambda _: Reply(text="Here.")
    async with frozen_models.failing_worker(env):
        handle = await env.start_query(frozen_models.teams(env), "team/outer")
        while (await handle.query("status"))["phase"] == "Running":
            await asyncio.sleep(0.1)
    async with run_worker(env.client, env.catalog, {**env.worker_env, "BATON_ROLES": "models"}):
        await env.status(handle)
    return handle


async def audited_to_its_end(env: Environment) -> Handle:
    """A client sends a signal to an audited query when nothing is left to do but to give its place to the next run."""
    env.script(line("one", "Done."))
    quota = Document("quota.yaml", manifest("Quota", "limits", {"maxConcurrentRuns": 1}), {})
    async with open_store(env.worker_env) as store:
        await store.apply(load_documents([quota]))
    handle = await env.start_query([agent("one")], "agent/one", ttl="1h")
    await signal_at_the_end(env, handle)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    for expiry in await env.find_runs("WorkflowType = 'expire'", 1):
        waiting = env.client.get_workflow_handle(expiry)
        await waiting.cancel()
        with contextlib.suppress(WorkflowFailureError):
            await waiting.result()
    return handle


async def signal_at_the_end(env: Environment, handle: Handle) -> None:
    """Sends a signal once the end of the run is written, while the run waits for the journal to give its place away."""
    while not kinds_of(await handle.fetch_history()).count(CHILD_INITIATED):
        await asyncio.sleep(0.005)
    with contextlib.closing(sqlite3.connect(env.journal)) as journal:
        journal.execute("begin immediate")
        await handle.signal("session", {"late": True})


async def a_function_that_is_canceled(env: Environment) -> Handle:
    """Another member fails while a message is added to the conversation that a function is to read."""
    members = [
        {"name": "ann", "type": "human", "timeout": "5s"},
        {"name": "bob", "type": "human", "timeout": "3s", "onTimeout": "skip"},
        {"name": "ballot", "type": "activity"},
    ]
    spec = {"strategy": "parallel", "members": members, "maxConcurrency": 2}
    handle = await env.start_team([manifest("Team", "team", spec)])
    await fail_while_a_message_is_added(env, handle)
    return handle


async def fail_while_a_message_is_added(env: Environment, handle: Handle) -> None:
    """Keeps the message that a function is to read from being added until the other member's time is over."""
    while len((await handle.query("status")).get("pendingDecisions") or ()) < 2:
        await asyncio.sleep(0.02)
    await handle.execute_update("steer", {"text": "Hurry."})
    with contextlib.closing(sqlite3.connect(env.journal)) as journal:
        journal.execute("begin immediate")
        while not is_handled(await handle.fetch_history(), TIMER_FIRED, 2):
            await asyncio.sleep(0.05)


def kinds_of(history: WorkflowHistory) -> "list[EventType.ValueType]":
    """The types of the events of a history, in order."""
    return [event.event_type for event in history.events]


def is_handled(history: WorkflowHistory, kind: "EventType.ValueType", count: int) -> bool:
    """Whether a history has so many events of a kind, and a workflow task has been completed after them."""
    kinds = kinds_of(history)
    if kinds.count(kind) < count:
        return False
    last = len(kinds) - 1 - kinds[::-1].index(kind)
    return TASK_COMPLETED in kinds[last:]


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        max_turns,
        max_turns_wanted,
        budget,
        budget_for_which_a_person_is_asked,
        notifications,
        notification,
        messages_to_children,
        paused_selector,
        message_to_a_refused_query,
        terminated_by_a_member,
        failed_member,
        executed_elsewhere,
        canceled_elsewhere,
        terminated_by_signal,
        terminated_now,
        canceled,
        sequential,
        nested,
        handoff,
        functions,
        parallel,
        parallel_with_a_failure,
        parallel_beyond_its_budget,
        paused_parallel,
        message_left_to_the_parent,
        message_left_by_a_team,
        graph,
        selector,
        condition,
        no_progress,
        no_progress_without_spaces,
        progress_with_transfers,
        silent_member,
        looping,
        looping_in_arks_dialect,
        refused_in_arks_dialect,
        agent_with_tools,
        circuit_breaker,
        delegation,
        activity_tool,
        people,
        question_of_a_server,
        client_tools,
        retried_model,
        retried_run,
        repeated_by_cron,
        forked_run,
        query,
        query_of_model_and_tool,
        approvals,
        traced,
        audited,
        decided_by_approvers,
        admission,
        without_a_worker_for_models,
        without_a_worker_for_functions,
        without_a_worker_after_failures,
        audited_to_its_end,
        a_function_that_is_canceled,
        conversation_with_a_ttl,
        expiry,
        memory,
        query_timeout,
        query_timeout_with_a_cause,
        query_to_one_agent,
        query_to_one_tool,
        query_canceled,
        query_canceled_by_its_manifest,
        query_terminated,
        held_panel,
        canceled_panel,
        raw_panel,
        held_debate,
        refused,
        refused_at_once,
        ended_at_once,
        a_session_changed_meanwhile,
        resumed_meanwhile,
        going_on,
        going_on_in_a_turn,
        going_on_with_a_session,
    )
}

SHORT_HISTORIES = ("limit.historyCount.suggestContinueAsNew", "50")
"""A server setting: with it, runs continue as new after 50 events."""

WITH_SHORT_HISTORIES = (going_on, going_on_in_a_turn, going_on_with_a_session)
"""The scenarios that need such a server."""


IDENTITY_KEY = "k" * 32

SETTINGS: dict[Scenario, dict[str, str]] = {
    traced: {"OTEL_TRACES_EXPORTER": "otlp"},  # no collector has to be there
    audited: {"BATON_AUDIT": "1"},
    decided_by_approvers: {"BATON_IDENTITY_KEY": IDENTITY_KEY},
    audited_to_its_end: {"BATON_AUDIT": "1"},
    without_a_worker_for_models: frozen_models.SETTINGS,
    without_a_worker_after_failures: frozen_models.SETTINGS,
    without_a_worker_for_functions: frozen_models.SETTINGS_OF_FUNCTIONS,
}
"""The settings of the workers of some scenarios."""

IN_ARKS_DIALECT = (looping_in_arks_dialect, refused_in_arks_dialect)
"""Scenarios that are recorded on a worker with BATON_DIALECT=ark."""


async def run_scenario(env: Environment, scenario: Scenario) -> Handle:
    """Runs a scenario until its run has ended, whether well or not."""
    env.model.requests.clear()
    handle = await scenario(env)
    with contextlib.suppress(WorkflowFailureError):
        await handle.result()
    return handle
