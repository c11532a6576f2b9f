"""Pages of a long run over HTTP: whatever page an event is read in, it is the event of the whole stream."""

from collections.abc import Sequence

import pytest

from baton.starter.history.follow import read_cursor, write_cursor
from baton.testing import Reply
from tests.harness.continued_runs import count_replies
from tests.harness.environment import Environment, Handle, Json, agent, call, line, team
from tests.harness.gateway import GatewayServer
from tests.harness.panels import SYNTHESIS, panel, panelist_line, role_member

PAIR = [agent("one"), agent("two")]


async def stream(gateway: GatewayServer, run: str, query: str = "") -> list[Json]:
    """The data of the events of a stream."""
    return [event["data"] async for event in gateway.events(f"/runs/{run}/events{query}")]


async def pages_back(gateway: GatewayServer, run: str, limit: int) -> list[list[Json]]:
    """All pages of a run, read from its end to its beginning; the first one is that of the beginning."""
    page = await gateway.get(f"/runs/{run}/history?limit={limit}")
    pages = [page["events"]]
    while page.get("before"):
        page = await gateway.get(f"/runs/{run}/history?limit={limit}&before={page['before']}")
        pages.insert(0, page["events"])
    return pages


async def pages_on(gateway: GatewayServer, run: str, limit: int, after: str) -> list[list[Json]]:
    """The pages of a run after a cursor."""
    pages = []
    more = True
    while more:
        page = await gateway.get(f"/runs/{run}/history?limit={limit}&after={after}")
        pages.append(page["events"])
        after, more = page["after"], page["more"]
    return pages


def without_cursors(events: Sequence[Json]) -> list[Json]:
    """The events without their cursors, by run: several runs at once may be interleaved in another way."""
    plain = [{name: value for name, value in event.items() if name != "cursor"} for event in events]
    return sorted(plain, key=lambda event: str(event["run"]))


async def check_pages(gateway: GatewayServer, handle: Handle, limits: Sequence[int] = (7, 40)) -> list[Json]:
    """Reads a run that has ended in pages, back and on, and from cursors; returns its events."""
    run = handle.id
    whole = await stream(gateway, run)
    for limit in limits:
        pages = await pages_back(gateway, run, limit)
        assert max(map(len, pages)) <= limit
        assert without_cursors([event for page in pages for event in page]) == without_cursors(whole)
    for number in range(0, len(whole), max(1, len(whole) // 5)):
        rest = whole[number + 1 :]
        after = whole[number]["cursor"]
        assert without_cursors(await stream(gateway, run, f"?after={after}")) == without_cursors(rest)
        on = await pages_on(gateway, run, 25, after)
        assert without_cursors([event for page in on for event in page]) == without_cursors(rest)
    return whole


@pytest.mark.slow
async def test_a_long_run_is_read_in_pages(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    turns = [*PAIR, team("team", "one", "two", maxTurns=12, onMaxTurns="complete")]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(turns, "team/team")
        await handle.result()
        whole = await check_pages(gateway, handle)
        outline = await gateway.get(f"/runs/{handle.id}/outline")
        target = {"kind": "team", "name": "team", "namespace": "default", "strategy": "round-robin"}
        assert outline == {**target, "id": handle.id, "question": "Why?", "path": f"{handle.id}/target-1/team"}
        newest = await gateway.get(f"/runs/{handle.id}/history?limit=3")
        assert newest["events"] == whole[-3:]


@pytest.mark.slow
async def test_a_page_begins_with_a_turn(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    turns = [*PAIR, team("team", "one", "two", maxTurns=12, onMaxTurns="complete")]
    async with GatewayServer.running(env) as gateway:
        for handle in (await env.start_query(turns, "team/team"), await env.start_team(turns)):
            await handle.result()
            whole = await stream(gateway, handle.id)
            starts = {event.get("turn"): event for event in whole if event["type"] == "turn.started"}
            for turn in (1, 2, 11, 24):
                page = await gateway.get(f"/runs/{handle.id}/history?limit=12&turn={turn}")
                assert page["events"][0] == starts[turn]
                where = whole.index(starts[turn])
                first = await gateway.get(f"/runs/{handle.id}/history?limit=1&turn={turn}")
                assert (first["events"], first["more"]) == ([starts[turn]], True)
                second = await gateway.get(f"/runs/{handle.id}/history?limit=1&after={first['after']}")
                assert second["events"] == [whole[where + 1]]
                assert page["events"] == whole[where : where + 12]
                before = await gateway.get(f"/runs/{handle.id}/history?limit=12&before={page['before']}")
                assert before["events"] == whole[max(0, where - 12) : where]
            assert (await gateway.get(f"/runs/{handle.id}/history?turn=25"))["events"] == []
            page = await gateway.get(f"/runs/{handle.id}/history?limit=5&round=7")
            assert (page["events"][0]["type"], page["events"][0]["round"]) == ("round.started", 7)


@pytest.mark.slow
async def test_nested_and_parallel_teams_are_read_in_pages(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    teams = [
        *PAIR,
        team("inner", "one", "two", maxTurns=6, onMaxTurns="complete"),
        team("both", "one", "two", "inner", strategy="parallel"),
        team("team", "inner", "one", "both", maxTurns=2, onMaxTurns="complete"),
    ]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(teams, "team/team")
        await handle.result()
        await check_pages(gateway, handle, limits=(16, 64))


@pytest.mark.slow
async def test_the_rounds_of_a_panel_are_read_in_pages(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.script(SYNTHESIS, *(panelist_line(name, *(f"{name} {number}" for number in range(6))) for name in "abc"))
    manifests = [panel(*map(role_member, "abc"), maxRounds=6)]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(manifests, "team/panel")
        await handle.result()
        whole = await check_pages(gateway, handle)
        page = await gateway.get(f"/runs/{handle.id}/history?limit=9&round=4")
        where = next(i for i, event in enumerate(whole) if (event["type"], event.get("round")) == ("round.started", 4))
        assert page["events"] == whole[where : where + 9]


@pytest.mark.slow
async def test_a_turn_with_many_calls_is_read_in_pages(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    calls = 0

    def answer(_: Json) -> Reply:
        nonlocal calls
        calls += 1
        return Reply(text=f"said {calls}") if calls % 12 == 0 else Reply.model_validate(call("noop", f"step {calls}"))

    env.answer = answer
    turns = [agent("one", "noop"), team("team", "one", maxTurns=2, onMaxTurns="complete")]
    async with GatewayServer.running(env) as gateway:
        for target in ("team/team", "agent/one"):
            handle = await env.start_query(turns, target)
            await handle.result()
            await check_pages(gateway, handle, limits=(16,))


@pytest.mark.slow
async def test_the_events_of_a_run_that_was_ended_in_temporal_are_exact(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    endless = [*PAIR, team("team", "one", "two", maxTurns=900)]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_team(endless)
        await env.wait_for_calls(20)
        await handle.terminate()
        await check_pages(gateway, handle)


async def test_a_run_is_followed_from_its_newest_page(env_with_short_histories: Environment) -> None:
    env = env_with_short_histories
    env.answer = count_replies
    endless = [*PAIR, team("team", "one", "two", maxTurns=20, onMaxTurns="complete")]
    async with GatewayServer.running(env) as gateway:
        handle = await env.start_query(endless, "team/team")
        await env.wait_for_calls(16)
        page = await gateway.get(f"/runs/{handle.id}/history?limit=30")
        rest = await stream(gateway, handle.id, f"?after={page['after']}")
        earlier = await gateway.get(f"/runs/{handle.id}/history?limit=5000&before={page['before']}")
        whole = await stream(gateway, handle.id)
        said = [
            event for event in [*earlier["events"], *page["events"], *rest] if not event["type"].startswith("text.")
        ]
        assert without_cursors(said) == without_cursors(whole)


async def test_a_cursor_with_an_execution_that_a_child_run_does_not_have_is_refused(gateway: GatewayServer) -> None:
    gateway.env.script(line("one", "a"), line("two", "b"))
    run = (await gateway.post("/runs", {"target": "duo", "input": "Why?"}, 201))["id"]
    await gateway.finished(run)
    cursors = [event["cursor"] for event in await stream(gateway, run) if event["type"] == "turn.started"]
    run_id, place = read_cursor(cursors[0])
    (child,) = place.children.values()
    child.execution = 99
    crafted = write_cursor(run_id, place)
    refused = await gateway.get(f"/runs/{run}/history?before={crafted}", 400)
    assert refused["error"]["param"] == "before"
    for child.execution in (99, 2**120 - 1):
        for where in ("history", "events"):
            answered = await gateway.http.get(f"/runs/{run}/{where}?after={write_cursor(run_id, place)}")
            assert answered.status_code < 500, answered.text


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("turn=0", "turn"),
        ("before=x", "before"),
        ("after=x", "after"),
        ("before=a&turn=1", "turn"),
    ],
)
async def test_a_page_that_does_not_exist_is_refused(gateway: GatewayServer, query: str, param: str) -> None:
    started = await gateway.post("/runs", {"target": "duo", "input": "Why?"}, 201)
    refused = await gateway.get(f"/runs/{started['id']}/history?{query}", 400)
    assert refused["error"]["param"] == param
    await gateway.finished(started["id"])
    await gateway.get("/runs/nothing/history", 404)
