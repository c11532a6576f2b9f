"""A program that uses all of the Python interface. It is not run: type checkers must accept it in their strictest mode.

``assert_type`` states what they have to infer.
"""

from collections.abc import Mapping
from typing import assert_never, assert_type

from pydantic import BaseModel, JsonValue
from pydantic_evals import Case, Dataset

import baton


class Verdict(BaseModel):
    """What a judge answers."""

    approved: bool


@baton.tool
def book_room(city: str, nights: int = 1) -> dict[str, str]:
    """Books a room."""
    return {"booking": f"{nights} nights in {city}"}


@baton.tool(approval={"timeout": "1h"}, on_error="retry", timeout="30s")
async def reserve(context: baton.Context, city: str) -> str:
    """Reserves a room."""
    return f"{context.run} {context.speaker} {context.turn} {context.idempotency_key} {city}"


@baton.function
def is_enough(briefing: baton.Briefing) -> bool:
    """Whether the panel has a critique."""
    state = baton.PanelState(goal=briefing.goal, round=briefing.round, referee_critiques=briefing.referee_critiques)
    return bool(state.referee_critiques) or briefing.round > 2


@baton.function
def summarize(panel: baton.PanelShape) -> str:
    """A synthesizer."""
    return "\n".join(contribution.text for contribution in panel.contributions)


model = baton.Model("gpt", model="gpt-4.1", api_key=baton.Secret.env("KEY"), temperature=0.2, retry_policy={})
files = baton.MCPServer("files", command="npx", args=["-y", "server"], env={"ROOT": "/data"}, timeout="10s")
far = baton.A2AServer("far", address="https://agents.example", headers={"X-Tenant": "acme"}, idempotent=True)
engine = baton.ExecutionEngine("engine", address="https://engine.example", type="langchain", send_keys=True)
skill = baton.Skill("skills/expenses")
weather = baton.Manifest("Tool", "weather", {"type": "http", "http": {"url": "https://weather.example"}})

writer = baton.Agent(
    "writer",
    prompt="You write.",
    model=model,
    tools=["calculator", book_room, weather, files, files.tool("read_*", approval={}), reserve],
    skills=[skill],
    reasoning_effort="low",
    max_iterations=3,
    budget={"tokens": 1_000},
)
judge = baton.Agent("judge", prompt="You judge.", output_schema=Verdict)
lister = baton.Agent("lister", prompt="You list.", output_schema={"type": "array"})
booking = baton.Agent("booking", a2a_server=far)
actuary = baton.Agent("actuary", prompt="You price.", execution_engine=engine)

review: baton.Team[Verdict] = baton.Team("review", strategy="sequential", members=[writer, judge], max_turns=None)
support: baton.Team[str] = baton.Team(
    "support",
    strategy="handoff",
    members=[baton.Member("triage", speaker=writer, handoffs=["booking"]), booking, "team/refunds"],
    max_turns=9,
)
panel = baton.round_robin(
    "panel",
    roster=[baton.Member("a", role="an optimist"), {"name": "b", "role": "a pessimist"}],
    terminate_when=is_enough,
    referee=baton.referee(team="panel", more="Be brief."),
    synthesizer=baton.synthesizer(team="panel", model=model),
)
typed_panel = baton.round_robin("typed", [baton.roster_agent("a", "a critic", team="typed")], output_schema=Verdict)
duel = baton.debate(
    "duel", [baton.Member("pro", stance="yes"), baton.Member("con", stance="no")], synthesizer=summarize
)
query = baton.Query("daily", "What is new?", targets=[review], timeout="5m")
schedule = baton.Schedule("daily", query, schedule="0 9 * * 1-5", time_zone="Europe/Berlin", overlap_policy="Skip")


async def runs(connection: baton.Connection) -> None:
    """Starts runs, and reads their values."""
    assert_type(await baton.run(writer, "Why?"), baton.Result[str])
    assert_type((await baton.run(judge, "Fine?", timeout="5m")).value, Verdict)
    assert_type((await baton.run(lister, {"goal": "All"})).value, JsonValue)
    chart = baton.Image("https://charts.example/sales.png", detail="low")
    assert_type((await baton.run(writer, ["Describe these:", chart, baton.File("report.pdf")])).value, str)
    assert_type((await connection.run(review, "Fine?", session={"a": 1})).value, Verdict)
    assert_type((await connection.run(panel, "Why?")).value, str | baton.PanelShape)
    assert_type((await connection.run(typed_panel, "Why?")).value, Verdict | baton.PanelShape)
    assert_type((await connection.run(duel, "Why?")).value, str | baton.DebateShape)
    assert_type((await connection.run("team/other", "Why?")).value, object)
    assert_type((await connection.run("team/other", "Why?", output_type=Verdict)).value, Verdict)
    assert_type((await connection.run(support, "Help!", conversation="c")).value, str)
    handle = await baton.start(judge, "Fine?", id="one", budget={"cost": 1.0}, resources=[weather], functions=[])
    assert_type(handle, baton.Handle[Verdict])
    result = await handle.result()
    assert_type(result, baton.Result[Verdict])
    print(result.value.approved, result.cost, result.usage.total_tokens, [each.content for each in result.messages])
    attached = await baton.attach("one", output_type=Verdict)
    assert_type(attached, baton.Handle[Verdict])
    assert_type(await baton.attach("one"), baton.Handle[object])
    assert_type(await baton.retry("one", output_type=list[int]), baton.Handle[list[int]])
    assert_type(await attached.fork("1", say="Be brief.", changes={"one.prompt": "…"}), baton.Handle[Verdict])
    status: baton.Status = await attached.status()
    print(status.phase, await baton.contributions("desk"))


def without_a_loop() -> Verdict:
    """The same in a script."""
    manifests: baton.Manifests = baton.load("teams/", recursive=True)
    everything: Mapping[str, object] = manifests
    print([*everything], baton.run_sync(manifests["team/review"], "Why?").message)
    return baton.run_sync(review, "Fine?").value


async def people(handle: baton.Handle) -> None:
    """Decides what a run waits for, and controls it."""
    pending: list[baton.PendingDecision] = await handle.approvals()
    decision: baton.PersonDecision = await handle.approve(pending[0].id, arguments={"nights": 2}, by="ann")
    await handle.reject(pending[1].id, "Too expensive.", remember=True)
    for question in await handle.inbox():
        await handle.reply("42", to=question.id)
    await handle.steer("Be brief.", "ann")
    await handle.session(limit=3)
    await handle.terminate("enough", now=decision.approved)
    async for message in handle:
        assert_type(message, baton.MessageEvent)


async def schedules(connection: baton.Connection) -> None:
    """Applies a schedule."""
    handle: baton.ScheduleHandle = await baton.apply_schedule(schedule)
    await handle.pause("holidays")
    found = await connection.find_schedule("daily")
    if triggered := await found.trigger():
        await triggered.cancel()
    await (await baton.find_schedule("daily")).delete()


async def errors() -> None:
    """What may be raised."""
    try:
        async with baton.connect("localhost:7233", task_queue="teams") as connection:
            await runs(connection)
    except baton.RunFailed as failed:
        print(failed.status, failed.messages, [each.text for each in failed.contributions])
    except baton.NoValueError as early:
        print(early)
    except (baton.ManifestError, baton.NoSuchRunError, baton.NotRetriedError, baton.Refused, baton.CursorError):
        pass
    except (
        baton.NotForkedError,
        baton.UnreachableError,
        baton.ConnectionFailed,
        baton.ScheduleError,
        baton.NotServedError,
    ):
        pass


def shapes(contribution: baton.Contribution, shape: baton.DebateShape, output: baton.RefereeOutput) -> str:
    """The values of panels."""
    critique = baton.Critique(round=1, critique=output.critique)
    decision: baton.Decision | None = None
    verdict: baton.Verdict | None = shape.verdict
    given = baton.PanelInput(goal="Why?")
    return f"{contribution.agent_name}{critique.critique}{decision}{verdict}{given.goal}"


def shown(event: baton.Event) -> str:  # noqa: C901  # one case for each event
    """A case for each event: a type checker reports those that are missing."""
    match event:
        case baton.RunStartedEvent() | baton.RunEndedEvent() | baton.RunResetEvent():
            return event.run
        case baton.RunRetriedEvent() | baton.RunForkedEvent() | baton.NoticeEvent():
            return event.run
        case baton.RoundStartedEvent() | baton.RoundEndedEvent():
            return str(event.round)
        case baton.TurnStartedEvent() | baton.TurnEndedEvent():
            return event.speaker
        case baton.ModelCalledEvent() | baton.ModelAnsweredEvent() | baton.ModelFailedEvent():
            return event.speaker
        case baton.TextDeltaEvent() | baton.TextRetractedEvent() | baton.AttemptFailedEvent():
            return event.call
        case baton.ToolCalledEvent() | baton.ToolReturnedEvent() | baton.ToolFailedEvent():
            return event.tool
        case baton.HandoffEvent(speaker=speaker, receiver=receiver):
            return f"{speaker} → {receiver}"
        case baton.SpeakerSelectedEvent():
            return event.speaker or ""
        case baton.ConditionsEvaluatedEvent() | baton.MessageEvent() | baton.SteeredEvent():
            return event.type
        case baton.WaitStartedEvent() | baton.WaitEndedEvent():
            return event.wait
        case baton.SessionChangedEvent() | baton.StopRequestedEvent():
            return event.type
        case baton.MemoryReadEvent() | baton.MemoryWrittenEvent():
            return event.conversation
    assert_never(event)


def called(answer: baton.ModelAnsweredEvent) -> list[str]:
    """The tools that a model has called."""
    tools: tuple[baton.CalledTool, ...] = answer.tool_calls
    return [tool.name for tool in tools]


async def judged() -> float:
    """An evaluation and a comparison."""
    cases = Dataset[str, str, None](name="sums", cases=[Case(name="one", inputs="1 + 1?", expected_output="2")])
    report = await baton.evaluate(cases, writer, repeat=2)
    compared = await baton.compare(cases, {"one": writer, "two": "agent/other"}, times=2)
    forks = await baton.compare(cases, {"as it is": (), "other": [writer]}, run="sums", at="1")
    return len(report.cases) + len(compared.variants) + len(forks.variants)
