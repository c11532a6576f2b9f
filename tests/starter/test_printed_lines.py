"""Printed lines: nothing that a model, a server or a client has said looks like a line of Baton's, or is a command."""

import asyncio
import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from baton.contracts.decisions import PendingDecision
from baton.contracts.message import PersonDecision, TokenUsage
from baton.contracts.status import Status
from baton.contracts.text import full_length, truncate
from baton.resources.approval import Approvers
from baton.starter.cli.terminal import print_message
from baton.starter.console.status import print_decisions, print_status, print_table
from baton.starter.console.watch import Watch
from baton.starter.operations.doctor import CheckResult, as_text
from baton.starter.server.embedded import EmbeddedServer
from baton.starter.text import format_duration
from tests.harness.environment import Environment, agent, call, line
from tests.harness.postgres import execute
from tests.harness.processes import baton, process_env

MADE_UP = "\x1b[2J\n? pay needs approval: baton approve a b\n  ✓ pay approved"


async def test_what_comes_after_a_line_end_is_indented_and_escapes_are_shown(env: Environment) -> None:
    env.script(line("one", call("calculator", expression=MADE_UP), f"Fine.{MADE_UP}"))
    given = {"agent": "one", "input": "Why?", "resources": [agent("one", "calculator")]}
    handle = await env.start("agent", given)
    await env.turn_result(handle)
    seen = io.StringIO()
    await Watch(env.client, Console(file=seen, width=120)).follow(handle, wait=False)
    assert "? pay needs approval" in seen.getvalue()
    assert [each for each in seen.getvalue().splitlines() if each.startswith("?")] == []
    assert "\x1b" not in seen.getvalue()


def test_a_cell_of_a_table_makes_no_row_and_commands_no_terminal() -> None:
    made_up = "x\n7  2026-11-27 09:00:00  carol  yes  gateway  approve  run/pay"
    rows = [("6", made_up, "no"), ("8", "a\tb\x1b[2J\u2028\u202e", "yes")]
    seen = io.StringIO()
    print_table(Console(file=seen, width=200), ("NUMBER", "WHO", "VERIFIED"), rows, "none")
    heading, first, second, *others = seen.getvalue().split("\n")
    assert others == [""]
    assert first == f"6       {made_up.replace(chr(10), '␊')}  no"
    assert second.split("  ")[-1] == "yes"
    assert second.split()[1] == "a␉b␛[2J\ufffd\ufffd"
    assert {each.index(last) for each, last in ((heading, "VERIFIED"), (first, "no"), (second, "yes"))} == {
        heading.index("VERIFIED")
    }, "columns are as wide as what is shown"


def test_a_decision_has_one_line_about_it_whatever_its_run_and_its_approvers_are_called() -> None:
    content = "\n  pay {}"
    given = PersonDecision(by=f"carol{content}", approved=True, at=datetime.now(UTC))
    decision = PendingDecision(
        id="call-1", run="a", speaker=f"one{content}", since=datetime.now(UTC), tool="pay", arguments="{1}"
    )
    decision = decision.model_copy(update={"approvers": (Approvers(names=("bob",)),), "approvals": (given,)})
    seen = io.StringIO()
    print_decisions(Console(file=seen, width=200), [(f"run{content}", decision)])
    assert [each for each in seen.getvalue().splitlines() if each.startswith("  pay")] == ["  pay {1}"]


def test_the_lines_of_a_status_after_the_first_of_a_note_and_an_error_are_indented() -> None:
    now = datetime.now(UTC).isoformat()
    error = "no\nCompleted  (team)"
    status = Status(phase="Failed", note="enough\nnow", error=error, token_usage=TokenUsage(), start_time=now)
    seen = io.StringIO()
    print_status(Console(file=seen, width=200), "run", status)
    assert seen.getvalue().splitlines()[1:] == ["enough", "    now", "no", "    Completed  (team)"]


def test_each_check_of_the_doctor_has_one_line() -> None:
    printed = as_text([CheckResult("model", False, "HTTP 500\nok     runs  \x1b[2J", "look\nthere")])
    assert printed.split("\n") == [
        "WRONG  model       HTTP 500␊ok     runs  ␛[2J",
        f"{'':19}→ look␊there",
    ]


@pytest.mark.full
async def test_each_id_and_each_event_has_one_line(env: Environment, server: EmbeddedServer) -> None:
    env.script(line("one", {"text": "Fine.", "held": True}))
    made_up = f"run{MADE_UP}"
    given = {"agent": "one", "input": "Why?", "resources": [agent("one")]}
    await env.client.start_workflow("agent", given, id=made_up, task_queue=env.task_queue)
    await env.wait_for_calls(1)
    for table in ("messages", "uses", "bookmarks"):
        await execute(env.journal_address, f"delete from baton_{table}")
    environ = process_env(**{**env.worker_env, "TEMPORAL_ADDRESS": server.address})
    lost = await asyncio.to_thread(baton, "check-journal", env=environ)
    assert "\n? pay needs approval" not in lost.stdout and "␊? pay needs approval" in lost.stdout
    listed = await asyncio.to_thread(baton, "list", "-o", "name", env=environ)
    assert "\n? pay needs approval" not in listed.stdout and "␊? pay needs approval" in listed.stdout
    canceled = await asyncio.to_thread(baton, "cancel", made_up, env=environ)
    assert "\n? pay needs approval" not in canceled.stderr and "␊? pay needs approval" in canceled.stderr
    env.model.release()
    events = await asyncio.to_thread(baton, "events", made_up, env=environ)
    assert "\n? pay needs approval" not in events.stdout and "␊? pay needs approval" in events.stdout


def test_a_message_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("it is paused (\x1b]0;owned\x07)")
    assert capsys.readouterr().err == "it is paused (␛]0;owned␇)\n"


@pytest.mark.parametrize(
    ("hours", "printed"), [(1, "1 h 00 min"), (47.5, "47 h 30 min"), (48, "2 d 00 h"), (2160, "90 d 00 h")]
)
def test_a_duration_of_two_days_and_more_is_printed_in_days(hours: float, printed: str) -> None:
    assert format_duration(timedelta(hours=hours)) == printed


def test_a_text_that_is_truncated_twice_says_how_long_it_was() -> None:
    long = "x" * 70_000
    once = truncate(long, 64_000)
    assert full_length(truncate(once, 1_000)) == full_length(truncate(once, 64_000)) == full_length(once) == 70_000
    assert truncate(truncate(once, 1_000), 1_000).startswith("xxx")
