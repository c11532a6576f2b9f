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


@pytest.mark.full
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
    machine.wait_until_listed("talk-2")
    assert machine.run("retry", "talk", "--detach").stdout == "talk-2\n"
    watched = machine.run("watch", "talk-2")
    assert (watched.returncode, "Failed (failed) talk-2 · 1 model call" in watched.stderr) == (2, True)


@pytest.mark.full
@pytest.mark.shared_server
def test_a_run_is_forked_with_a_message_and_another_prompt_and_listed(machine: UserMachine) -> None:
    machine.script(line("one", "Well."), line("two", "So it is."), line("three", "So be it."))
    assert machine.run("run", "-f", machine.write(*TALK), "--id", "talk-3").returncode == 0
    say = "--say", "Be brief.", "--as", "Ann"
    forked = machine.run("fork", "talk-3", "--at", "1", "--set", "two.prompt=You are three.", *say, "--id", "talk-4")
    assert (forked.returncode, forked.stdout) == (0, "So be it.\n")
    assert "forking talk-3 as talk-4" in forked.stderr
    assert "Completed (completed) talk-4 · 2 model calls" in forked.stderr
    assert "forked from talk-3 at 1" in forked.stderr
    assert "Be brief." in str(machine.model.requests[-1].body)
    machine.wait_until_listed("talk-4")
    assert machine.run("list", "--forks", "talk-3", "-o", "name").stdout.split() == ["talk-4"]
    twice = machine.run("fork", "talk-3", "--at", "1", "--times", "2", "--detach")
    assert len(twice.stdout.split()) == 2
    refused = machine.run("fork", "talk-3", "--at", "9")
    assert (refused.returncode, "there is no turn '9'" in refused.stderr) == (1, True)
    refused = machine.run("fork", "talk-3")
    assert (refused.returncode, refused.stderr) == (1, "error: talk-3 has not failed: name a turn\n")
