"""``baton retry``: a failed run continues under its id, and is shown like every other one."""

import json

import pytest

from tests.harness.environment import Json, agent, line, team
from tests.harness.user_machine import UserMachine

QUERY: Json = {
    "apiVersion": "ark.mckinsey.com/v1alpha1",
    "kind": "Query",
    "metadata": {"name": "talk"},
    "spec": {"input": "Why?", "targets": [{"type": "team", "name": "pair"}]},
}
TALK = [agent("one"), agent("two"), team("pair", "one", "two", strategy="sequential"), QUERY]


@pytest.mark.shared_server
def test_a_failed_run_is_retried_followed_and_listed_under_its_id(machine: UserMachine) -> None:
    machine.script(line("one", "Well."), line("two", {"text": "So it is.", "before": [{"status": 401}]}))
    failed = machine.run("run", "-f", machine.write(*TALK), "--id", "talk-1")
    assert failed.returncode == 2
    assert "Failed (failed) talk-1 · 1 model call" in failed.stderr
    assert "Resume it from the failed call: baton retry talk-1" in failed.stderr
    retried = machine.run("retry", "talk-1")
    assert (retried.returncode, retried.stdout) == (0, "So it is.\n")
    assert "retrying talk-1" in retried.stderr
    assert "talk-1/target-1/pair (sequential)" in retried.stderr
    assert "turn 2 of 2" in retried.stderr
    assert "Completed (completed) talk-1 · 2 model calls" in retried.stderr
    assert len(machine.model.requests) == 3
    status = json.loads(machine.run("status", "talk-1", "-o", "json").stdout)
    assert (status["metadata"]["name"], status["status"]["phase"]) == ("talk", "Completed")
    events = machine.run("events", "talk-1", "-o", "ark").stdout
    assert [word in events for word in ("ModelCallStarted", "LLMCallStarted")] == [False, True]
    assert "TeamMemberStarted" in events or "AgentExecutionStarted" in events
    refused = machine.run("retry", "talk-1")
    assert (refused.returncode, refused.stderr) == (1, "error: talk-1 has not failed: it is completed\n")


@pytest.mark.shared_server
def test_a_retry_is_started_without_following_it(machine: UserMachine) -> None:
    machine.script(line("one", "Well."), line("two", {"text": "So it is.", "before": [{"status": 401}] * 2}))
    assert machine.run("run", "-f", machine.write(*TALK), "--id", "talk-2").returncode == 2
    assert machine.run("retry", "talk", "--detach").stdout == "talk-2\n"
    watched = machine.run("watch", "talk-2")
    assert (watched.returncode, "Failed (failed) talk-2 · 1 model call" in watched.stderr) == (2, True)
