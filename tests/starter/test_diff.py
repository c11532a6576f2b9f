"""`baton diff`: where two runs diverge, and what each of them says and calls from there on."""

import io
import json
import threading
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from baton.contracts.message import Head
from baton.starter.console.difference import print_difference
from baton.starter.history.difference import ComparedRun, RecordedRun, RunStep, compare_runs, difference
from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.report.report import read_report
from baton.starter.runs.runs import RunHandle
from baton.starter.runs.start import retry_run
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent, call, line, team
from tests.harness.user_machine import UserMachine


@pytest.mark.slow
def test_runs_with_equal_messages_have_no_difference(machine: UserMachine) -> None:
    machine.script(line("one", "first", "first"), line("two", "second", "second"))
    duo = [agent("one"), agent("two"), team("duo", "one", "two", strategy="sequential")]
    file = machine.write(*duo)
    machine.run("run", "-f", file, "team/duo", "Why?", "--id", "first-run")
    machine.run("run", "-f", file, "team/duo", "Why?", "--id", "second-run")
    shown = machine.run("diff", "first-run", "second-run")
    assert shown.returncode == 0
    assert "The first 2 steps are equal. There is no difference." in shown.stdout
    found = json.loads(machine.run("diff", "first-run", "second-run", "-o", "json").stdout)
    assert (found["equal"], found.get("differsIn"), found.get("pairs", [])) == (2, None, [])


@pytest.mark.slow
def test_two_runs_are_side_by_side_within_80_columns_from_where_they_part(machine: UserMachine) -> None:
    long = "漢字 and a word that is " + "very " * 20 + "long"
    machine.script(line("one", "first"), line("two", call("calculator", expression="1 + 1"), "It is 2."))
    duo = [agent("one"), agent("two", "calculator"), team("duo", "one", "two", strategy="sequential")]
    file = machine.write(*duo)
    machine.run("run", "-f", file, "team/duo", "Why?", "--id", "first-run")
    machine.script(line("one", "first"), line("two", call("calculator", expression="2 + 2"), long))
    machine.run("run", "-f", file, "team/duo", "Why?", "--id", "second-run")
    shown = machine.run("diff", "first-run", "second-run").stdout
    assert "The first step is equal. They diverge at step 2: the tool gets other arguments." in " ".join(shown.split())
    lines = shown.splitlines()
    assert max(map(cell_len, lines)) <= 80
    (row,) = [each for each in lines if "1 + 1" in each]
    assert "2 + 2" in row, "both calls are in one row"
    assert "first" not in {each.strip() for each in lines}, "what is equal is not repeated"
    found = json.loads(machine.run("diff", "first-run", "second-run", "-o", "json").stdout)
    assert [pair["differsIn"] for pair in found["pairs"]] == ["arguments", "words"]
    assert found["pairs"][1]["b"]["words"] == long
    assert found["pairs"][1]["a"]["usage"]["modelCalls"] == 2, "also the call that has called the tool"


@pytest.mark.slow
def test_two_runs_are_written_as_a_page_that_needs_no_network_and_marks_what_differs(machine: UserMachine) -> None:
    solo = agent("one", "calculator")
    file = machine.write(solo)
    for number in (1, 2):
        machine.script(line("one", call("calculator", expression=f"{number} + 1"), "<b>It is</b>"))
        machine.run("run", "-f", file, "agent/one", "Why?", "--id", f"run-{number}")
    written = machine.run("diff", "run-1", "run-2", "-o", "both.html")
    assert (written.returncode, written.stdout) == (0, "")
    text = (machine.folder / "both.html").read_text()
    printed = machine.run("diff", "run-1", "run-2", "-o", "html").stdout
    assert [part.partition("Written by")[0] for part in (text.strip(), printed.strip())] == [
        text.partition("Written by")[0]
    ] * 2
    assert "They diverge at step 1: the tool gets other arguments." in text
    page = ElementTree.fromstring(text.partition("<body")[2].join(("<body", "")).rpartition("</html>")[0])
    marked = ["".join(each.itertext()) for each in page.iter() if "differs" in (each.get("class") or "").split()]
    assert [json.loads(each) for each in marked] == [{"expression": "1 + 1"}, {"expression": "2 + 1"}]
    assert "&lt;b&gt;It is&lt;/b&gt;" in text
    assert "<script" not in text
    wrong = machine.run("diff", "run-1", "run-2", "-o", "pdf")
    assert (wrong.returncode, "-o pdf: two runs are shown as text, json, yaml, html" in wrong.stderr) == (1, True)


async def test_a_run_that_continues_another_ones_conversation_shares_its_rows(env: Environment) -> None:
    env.script(line("one", "first", "other"), line("two", "second"))
    duo = [agent("one"), agent("two"), team("duo", "one", "two", strategy="sequential")]
    a = await env.start_query(duo, "team/duo")
    await env.status(a)
    row = next(row for row in env.rows() if row["content"] == "first")
    targets = [{"type": "agent", "name": "one"}]
    after = Head(id=row["id"], depth=row["depth"]).model_dump(mode="json")
    b = await env.start(
        "query", {"name": "q", "spec": {"input": "Why?", "targets": targets}, "resources": duo, "after": after}
    )
    await env.status(b)
    calls = len(env.model.requests)
    found = await compare_runs(env.client, a, b)
    assert (found.shared, found.equal, found.differs_in) == (1, 0, "place")
    assert [(pair.a.words if pair.a else None, pair.b.words if pair.b else None) for pair in found.pairs] in (
        [("second", None), (None, "other")],
        [("second", "other")],
    )
    reverse = await compare_runs(env.client, b, a)
    assert reverse.shared == 1, "whichever is named first"
    assert len(env.model.requests) == calls, "to compare costs nothing"


async def test_what_only_one_run_does_stands_alone_and_costs_are_shown(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"{len(env.model.requests)}")
    solo = [agent("one"), team("short", "one", strategy="sequential")]
    both = [*solo, agent("two"), team("long", "one", "two", strategy="sequential")]
    a = await env.start_query(both, "team/short")
    await env.status(a)
    env.answer = lambda request: Reply(text="1" if len(env.model.requests) == 2 else "more")
    b = await env.start_query(both, "team/long")
    await env.status(b)
    found = await compare_runs(env.client, a, b)
    assert found.a.usage.model_calls == 1
    assert found.b.usage.model_calls == 2
    (last,) = found.pairs[-1:]
    assert last.b
    assert last.b.words == "more"


async def test_a_failed_and_an_open_run_are_compared_as_far_as_they_have_come(env: Environment) -> None:
    released = threading.Event()

    def answer(request: Request) -> Reply:
        if len(env.model.requests) == 4:
            released.wait(30)
        return Reply(status=400) if len(env.model.requests) == 2 else Reply(text="first")

    env.answer = answer
    duo = [agent("one"), agent("two"), team("duo", "one", "two", strategy="sequential")]
    a = await env.start_query(duo, "team/duo")
    await env.status(a)
    b = await env.start_query(duo, "team/duo")
    await env.wait_for_calls(4)
    found = await compare_runs(env.client, a, b)
    assert (found.a.phase, found.b.phase) == ("Failed", None)
    assert found.a.error
    assert (found.equal, found.differs_in) == (1, None)
    released.set()
    await env.status(b)


async def test_the_usage_of_an_open_fork_and_an_open_retry_has_that_of_the_calls_before_them(env: Environment) -> None:
    has_failed = threading.Event()

    def answer(request: Request) -> Reply:
        first, *_, last = request["messages"]
        if first["content"].startswith("You are two"):
            return Reply(hang=True) if has_failed.is_set() else Reply(status=400)
        return Reply(text="2") if last["role"] == "tool" else Reply.model_validate(call("calculator", expression="1+1"))

    env.answer = answer
    duo = [agent("one", "calculator"), agent("two"), team("duo", "one", "two", strategy="sequential")]
    failed = await env.start_query(duo, "team/duo")
    used = (await env.status(failed)).token_usage
    has_failed.set()
    retried = await retry_run(env.client, failed)
    await env.wait_for_calls(4)
    forked = await fork_run(env.client, failed, "1", ForkChanges())
    await env.wait_for_calls(5)
    found = await compare_runs(env.client, forked, retried)
    assert (found.a.phase, found.b.phase) == (None, None)
    assert (used.model_calls, used.tool_calls) == (2, 1)
    assert (found.a.usage, found.b.usage) == (used, used)
    reports = [await read_report(env.client, run) for run in (forked, retried)]
    assert [report.usage for report in reports] == [used, used]
    for run in (forked, retried):
        await run.signal("cancel")
        await env.status(run)


def recorded(name: str, count: int, before: int = 0) -> RecordedRun:
    """A run of two speakers in turn, after so many messages of a third one."""
    speakers = [*["three"] * before, *["one", "two"] * (count // 2)]
    steps = [RunStep(kind="message", place="", speaker=each, words=f"{name} {n}") for n, each in enumerate(speakers)]
    return RecordedRun(ComparedRun(id=name), steps)


def test_all_steps_of_long_runs_are_there_once_and_in_their_order() -> None:
    a, b = recorded("a", 2_000), recorded("b", 1_400, before=3)
    found = difference(a, b)
    assert [pair.a for pair in found.pairs if pair.a] == a.steps
    assert [pair.b for pair in found.pairs if pair.b] == b.steps
    assert not found.truncated


def test_the_first_pairs_of_a_difference_are_those_of_the_whole_one() -> None:
    a, b = recorded("a", 12), recorded("b", 12, before=1)
    whole = difference(a, b)
    assert (len(whole.pairs), whole.truncated, whole.pairs[0].a) == (13, False, None)
    assert difference(a, b, 13) == whole
    first = difference(a, b, 3)
    assert (first.pairs, first.truncated, first.differs_in) == (whole.pairs[:3], True, whole.differs_in)


def test_an_additional_step_is_not_the_end_of_the_other_run() -> None:
    def run(name: str, *words: str) -> RecordedRun:
        steps = [RunStep(kind="message", place="", speaker=each, words=each) for each in words]
        return RecordedRun(ComparedRun(id=name), steps)

    found = difference(run("a", "one", "three"), run("b", "one", "two", "three"))
    assert [pair.differs_in for pair in found.pairs] == ["additional", None]
    assert found.summary == ("The first step is equal. They diverge at step 2: one of them has an additional step.")
    ended = difference(run("a", "one"), run("b", "one", "two"))
    assert [pair.differs_in for pair in ended.pairs] == ["end"]
    long = [f"{number}" for number in range(600)]
    late = difference(run("a", *long, "x", "y"), run("b", *long, "y"))
    assert [pair.differs_in for pair in late.pairs] == ["additional", None]


def test_nothing_that_a_server_has_said_is_a_command_to_the_terminal_or_a_line_of_the_difference() -> None:
    text = "no\x1b]0;owned\x07\nB  b\u202e\x1b[2J"
    call = RunStep(kind="tool", place=text, speaker=text, tool=text, arguments=text, error=text, model=text)
    message = RunStep(kind="message", place="", speaker="one", words=text, model=text)
    a = RecordedRun(ComparedRun(id=f"a{text}", error=text), [call, message])
    seen = io.StringIO()
    print_difference(Console(file=seen, width=80), difference(a, recorded("b", 2)))
    printed = seen.getvalue()
    assert {each for each in printed if each != "\n" and not each.isprintable()} == set()
    assert max(map(cell_len, printed.splitlines())) <= 80
    headings, _, cells = printed.partition("They diverge")
    assert [each for each in headings.splitlines() if each.startswith("B")] == ["B  b"]
    assert len([each for each in cells.splitlines() if each.startswith("B  b")]) == 2, "lines of results and words"


@pytest.mark.slow
def test_a_run_that_does_not_exist_is_named(machine: UserMachine) -> None:
    machine.script(line("one", "first"))
    machine.run("run", "-f", machine.write(agent("one")), "agent/one", "Why?", "--id", "first-run")
    for output in ("text", "json"):
        done = machine.run("diff", "first-run", "nothing", "-o", output)
        assert done.returncode == 1
        assert "there is no run 'nothing'" in done.stderr


@pytest.mark.full
async def test_a_fork_shares_the_steps_of_the_forked_run_up_to_its_place_also_in_a_nested_team(
    env: Environment,
) -> None:
    env.script(
        line("one", "first"),
        line("two", "second"),
        line("three", call("calculator", expression="1 + 1"), "It is 2."),
    )
    inner = team("inner", "two", "three", strategy="sequential")
    outer = team("outer", "one", "inner", strategy="sequential")
    manifests = [agent("one"), agent("two"), agent("three", "calculator"), inner, outer]
    a = await env.start_query(manifests, "team/outer")
    await env.status(a)
    for at, shared in (("2/2/call-1", 2), ("2/1", 2), ("1", 1)):
        b = await fork_run(env.client, a, at, ForkChanges())
        await env.status(b)
        found = await compare_runs(env.client, a, b)
        assert (found.shared, found.differs_in, found.pairs) == (shared, None, ()), at
        assert found.equal == 4 - shared


@pytest.mark.full
async def test_a_fork_of_a_fork_and_forks_of_one_run_share_the_steps_before_their_places(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"{request.agent}: done")
    members = [agent(name) for name in ("one", "two", "three", "four")]
    manifests = [*members, team("four-of-them", "one", "two", "three", "four", strategy="sequential")]
    run = await env.start_query(manifests, "team/four-of-them")
    await env.status(run)

    async def fork(forked: RunHandle, at: str) -> RunHandle:
        started = await fork_run(env.client, forked, at, ForkChanges())
        await env.status(started)
        return started

    first, second = await fork(run, "1"), await fork(run, "2")
    of_first = await fork(first, "3")
    for a, b, shared, equal in (
        (first, of_first, 2, 1),
        (run, of_first, 1, 3),
        (first, second, 1, 3),
        (second, of_first, 1, 3),
    ):
        for found in (await compare_runs(env.client, a, b), await compare_runs(env.client, b, a)):
            assert (found.shared, found.equal, found.differs_in) == (shared, equal, None), found.summary


@pytest.mark.full
async def test_forks_of_a_failed_run_share_its_steps_also_after_it_was_retried(env: Environment) -> None:
    fails = True

    def answer(request: Request) -> Reply:
        system = request["messages"][0]["content"]
        return Reply(status=400) if fails and "three" in system else Reply(text=f"{system} Done.")

    env.answer = answer
    members = [agent(name) for name in ("one", "two", "three")]
    manifests = [*members, team("three-of-them", "one", "two", "three", strategy="sequential")]
    run = await env.start_query(manifests, "team/three-of-them")
    assert (await env.status(run)).phase == "Failed"
    fails = False
    first = await fork_run(env.client, run, "1", ForkChanges())
    second = await fork_run(env.client, run, "2", ForkChanges())
    retried = await retry_run(env.client, run)
    for each in (first, second, retried):
        assert (await env.status(each)).phase == "Completed"
    found = await compare_runs(env.client, first, second)
    assert (found.shared, found.equal, found.differs_in) == (1, 2, None), found.summary
