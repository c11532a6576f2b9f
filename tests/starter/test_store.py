"""``baton apply``, ``get`` and ``delete``: manifests in the journal's database, and runs of them without files."""

import subprocess
import time
from pathlib import Path

import pytest
import yaml

from baton.testing import Reply, Request
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.user_machine import UserMachine

QUERY = manifest("Query", "q", {"input": "Why?", "targets": [{"type": "team", "name": "duo"}]})
DUO = team("duo", "one", "two", strategy="sequential")


def by_prompt(request: Request) -> Reply:
    """The system prompt."""
    return Reply(text=str(request["messages"][0]["content"]))


def printed(machine: UserMachine, *arguments: str | Path, stdin: str | None = None) -> str:
    done = machine.run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(machine: UserMachine, *arguments: str | Path) -> str:
    done = machine.run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.mark.slow
def test_what_is_applied_is_run_by_its_name_and_the_next_run_takes_the_next_version(machine: UserMachine) -> None:
    machine.model._answer = by_prompt
    file = machine.write(QUERY, DUO, agent("one"), agent("two", prompt="Old."))
    assert printed(machine, "apply", "-f", file).splitlines() == [
        "agent/one created",
        "agent/two created",
        "query/q created",
        "team/duo created",
    ]
    file.unlink()
    assert printed(machine, "run", "query/q") == "Old."
    assert printed(machine, "run", "team/duo", "And now?") == "Old."
    changed = yaml.safe_dump(agent("two", prompt="New."))
    assert printed(machine, "apply", "-f", "-", stdin=changed) == "agent/two configured"
    assert printed(machine, "run", "query/q") == "New."
    while len(runs := printed(machine, "list", "-o", "name").split()) < 3:
        time.sleep(0.05)  # Temporal lists a run a moment later
    assert "Team 'du' in the namespace 'default' is not on the workers; did you mean 'duo'?" in refused(
        machine, "run", "team/du", "Who?"
    )
    assert "there is team/duo" in refused(machine, "chat", "agent/duo")
    assert "did you mean 'q'?" in refused(machine, "run", "query/qq")
    assert printed(machine, "list", "-o", "name").split() == runs, "no run was started"
    assert 'nothing to run: pass -f FILE, or KIND/NAME "question"' in refused(machine, "run")
    assert "'query/q' takes no input" in refused(machine, "run", "query/q", "Why?")


@pytest.mark.slow
def test_files_and_schedules_may_refer_to_what_only_the_store_has(machine: UserMachine) -> None:
    machine.model._answer = by_prompt
    printed(machine, "apply", "-f", machine.write(QUERY, DUO, agent("one"), agent("two", prompt="Old.")))
    asks = {"spec": {"input": "Why?", "targets": [{"type": "team", "name": "duo"}]}}
    inline = manifest("Schedule", "inline", {"schedule": "0 0 1 1 *", "queryTemplate": asks})
    named = manifest("Schedule", "named", {"schedule": "0 0 1 1 *", "query": "q"})
    both = machine.write(inline, named, name="schedules.yaml")
    assert printed(machine, "schedules", "apply", "-f", both).split()[1::2] == ["created", "created"]
    other = machine.write(QUERY | {"metadata": {"name": "other"}}, name="other.yaml")
    assert printed(machine, "run", "-f", other) == "Old."
    printed(machine, "apply", "-f", machine.write(agent("two", prompt="New.")))
    for name in ("inline", "named"):
        run = printed(machine, "schedules", "trigger", name)
        machine.run("watch", run)
        assert "New." in printed(machine, "status", run)
        printed(machine, "schedules", "delete", name)
    lost = machine.write(manifest("Schedule", "lost", {"schedule": "0 0 1 1 *", "query": "nobody"}), name="lost.yaml")
    text = refused(machine, "schedules", "apply", "-f", lost)
    assert "Query default/nobody is neither in the files nor on the workers" in text


@pytest.mark.full
def test_the_store_is_shown_changed_and_emptied_by_commands(machine: UserMachine) -> None:
    file = machine.write(DUO, agent("one"), agent("two", description="Second thoughts."))
    printed(machine, "apply", "-f", file)
    printed(machine, "apply", "-f", machine.write(agent("two", description="Better ones."), name="two.yaml"))
    table = [line.split()[:3] for line in printed(machine, "get", "Agents").splitlines()]
    assert table == [["NAME", "NAMESPACE", "VERSION"], ["one", "default", "1"], ["two", "default", "2"]]
    wide = printed(machine, "get", "all", "-o", "wide")
    assert "team/duo" in wide
    assert "sequential, agent one, agent two" in wide
    assert "Better ones." in printed(machine, "get", "agent", "two", "-o", "yaml")
    older = printed(machine, "get", "agent/two", "--version", "1", "-o", "yaml")
    assert "Second thoughts." in older
    assert printed(machine, "apply", "-f", "-", stdin=older) == "agent/two configured"
    every = printed(machine, "get", "all", "-o", "yaml")
    assert {*printed(machine, "apply", "-f", "-", stdin=every).split()[1::2]} == {"unchanged"}
    assert "Team/default/duo: spec.members[0].name: needs" in refused(machine, "delete", "agent", "one")
    assert printed(machine, "delete", "-f", file).splitlines() == [
        "agent/one deleted",
        "agent/two deleted",
        "team/duo deleted",
    ]
    assert "there is no Team 'duo' in the store" in refused(machine, "get", "team", "duo")
    assert "did you mean 'teams'?" in refused(machine, "get", "taems")


@pytest.mark.full
def test_manifests_are_selected_by_names_and_labels_and_printed_by_a_template(machine: UserMachine) -> None:
    gold = agent("one")
    gold["metadata"]["labels"] = {"tier": "gold", "team": "a"}
    there = agent("one")
    there["metadata"]["namespace"] = "there"
    printed(machine, "apply", "-f", machine.write(gold, agent("two"), there))
    assert printed(machine, "get", "agents", "-o", "name").splitlines() == ["agent/one", "agent/two", "agent/one"]
    assert printed(machine, "get", "agent", "two", "one", "-o", "name").splitlines() == ["agent/two", "agent/one"]
    assert len(printed(machine, "get", "agent", "one", "-A").splitlines()) == 3
    for selector in ("tier=gold", "tier==gold,team", "team"):
        assert printed(machine, "get", "all", "-l", selector, "-o", "name") == "agent/one"
    assert printed(machine, "get", "all", "-l", "tier=tin", "-o", "name") == ""
    template = 'jsonpath={range .items[*]}{.metadata.name} {.metadata.labels.tier}{"\\n"}{end}'
    assert printed(machine, "get", "agents", "-n", "default", "-o", template).splitlines() == ["one gold", "two"]
    assert printed(machine, "get", "agent", "one", "-o", "jsonpath={.metadata.labels['tier']}") == "gold"
    assert "needs an {end}" in refused(machine, "get", "agents", "-o", "jsonpath={range .items[*]}")
    assert "-A can't be combined with -n" in refused(machine, "get", "agents", "-A", "-n", "other")
    assert "there is no Agent 'three'" in refused(machine, "get", "agent", "one", "three")


@pytest.mark.slow
def test_a_manifest_is_described_with_its_users_and_versions_and_a_run_with_its_events(machine: UserMachine) -> None:
    machine.model._answer = by_prompt
    printed(machine, "apply", "-f", machine.write(QUERY, DUO, agent("one"), agent("two", prompt="Old.")))
    printed(machine, "apply", "-f", machine.write(agent("two", prompt="New."), name="two.yaml"))
    lines = [" ".join(row.split()) for row in printed(machine, "describe", "agent/two").splitlines()]
    assert lines[:3] == ["Name: two", "Kind: Agent", "Namespace: default"]
    assert "prompt: New." in lines and "Used by: Team default/duo" in lines
    assert lines[-1].startswith("Versions: 2 (") and ", 1 (" in lines[-1]
    team_lines = printed(machine, "describe", "team", "duo")
    assert "Refers to:  Agent or Team default/one, Agent or Team default/two" in team_lines
    assert "Used by:    Query default/q" in team_lines
    printed(machine, "run", "query/q", "--id", "described")
    machine.wait_until_listed("described")
    for words in (["described"], ["run/described"], ["run", "described"], ["q"]):
        shown = printed(machine, "describe", *words)
        assert "Targets:     team/duo Success" in shown
        assert "Completed (completed) described" in shown
        assert "run.ended" in shown.splitlines()[-1]
    assert "did you mean 'teams'?" in refused(machine, "describe", "taem/duo")


def test_what_would_be_applied_is_shown_without_a_change(machine: UserMachine) -> None:
    file = machine.write(agent("one", prompt="First."))
    assert printed(machine, "apply", "--dry-run", "-f", file) == "agent/one created (dry run)"
    assert printed(machine, "get", "agents") == "No manifests found."
    printed(machine, "apply", "-f", file)
    assert printed(machine, "diff", "-f", file) == ""
    done = machine.run("diff", "-f", machine.write(agent("one", prompt="Second.")))
    assert done.returncode == 1
    changed = [each for each in done.stdout.splitlines() if each[:1] in "+-"]
    assert changed == ["--- store/agent/one", "+++ files/agent/one", "-  prompt: First.", "+  prompt: Second."]
    assert "spec.members[1].name" in refused(machine, "apply", "--dry-run", "-f", machine.write(DUO))


@pytest.mark.full
def test_secrets_are_applied_with_a_key_and_never_shown(machine: UserMachine) -> None:
    safe = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"token": "hidden-123"}}
    file = machine.write(agent("one"), safe, name="all.yaml")
    text = " ".join(refused(machine, "apply", "-f", file).split())
    assert f"{file}:9: Secret/default/safe: kind: Secrets are only stored encrypted: set BATON_ENCRYPTION_KEYS" in text
    machine.env["BATON_ENCRYPTION_KEYS"] = printed(machine, "encryption-key", "k1")
    assert printed(machine, "apply", "-f", file) == "agent/one created\nsecret/safe created"
    assert printed(machine, "apply", "-f", file) == "agent/one unchanged\nsecret/safe unchanged"
    (row,) = printed(machine, "get", "secrets").splitlines()[1:]
    assert row.split()[:3] == ["safe", "default", "1"]
    shown = printed(machine, "get", "secret/safe", "-o", "yaml")
    assert yaml.safe_load(shown)["data"] == {"token": "***"}
    described = printed(machine, "describe", "secret", "safe")
    changed = machine.write({**safe, "stringData": {"token": "hidden-456", "more": "hidden-789"}}, name="changed.yaml")
    diff = machine.run("diff", "-f", changed)
    lines = [row for row in diff.stdout.splitlines() if row[:1] in "+-"][2:]
    assert lines == ["-  token: '*** (before)'", "+  more: '***'", "+  token: '*** (after)'"]
    refusal = refused(machine, "apply", "-f", machine.write(yaml.safe_load(shown), name="shown.yaml"))
    assert "'***' stands for a value" in " ".join(refusal.split())
    listed = printed(machine, "get", "all", "-o", "json")
    assert "hidden" not in shown + described + diff.stdout + diff.stderr + listed + refusal
    assert printed(machine, "delete", "-f", file) == "agent/one deleted\nsecret/safe deleted"
    assert printed(machine, "get", "secrets") == "No manifests found."


@pytest.mark.slow
def test_a_run_from_files_may_refer_to_a_stored_secret(machine: UserMachine) -> None:
    machine.env["BATON_ENCRYPTION_KEYS"] = printed(machine, "encryption-key", "k1")
    machine.model._answer = by_prompt
    safe = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"token": "hidden-123"}}
    source = {"valueFrom": {"secretKeyRef": {"name": "safe", "key": "token"}}}
    own = manifest("Agent", "one", {"prompt": "Use {{.token}}.", "parameters": [{"name": "token", **source}]})
    file = machine.write(own)
    assert "Secret default/safe is neither in the files nor on the workers" in " ".join(
        refused(machine, "run", "-f", file, "agent/one", "Why?").split()
    )
    printed(machine, "apply", "-f", machine.write(safe, name="safe.yaml"))
    assert printed(machine, "run", "-f", file, "agent/one", "Why?", "-o", "text") == "Use [secret]."


def test_manifests_that_name_no_namespace_are_applied_to_the_one_that_the_command_names(machine: UserMachine) -> None:
    file = machine.write(agent("one"))
    assert printed(machine, "apply", "-n", "other", "-f", file) == "agent/one created"
    assert printed(machine, "get", "agents", "-n", "other").splitlines()[1].split()[:2] == ["one", "other"]
    elsewhere = agent("two") | {"metadata": {"name": "two", "namespace": "there"}}
    text = refused(machine, "apply", "-n", "other", "-f", machine.write(elsewhere, name="two.yaml"))
    assert "Agent/there/two is in the namespace there, but -n is other" in text


def test_an_applied_query_is_said_to_be_stored_and_not_run(machine: UserMachine) -> None:
    printed(machine, "apply", "-f", machine.write(DUO, agent("one"), agent("two")))
    done = machine.run("apply", "-f", machine.write(QUERY, name="q.yaml"))
    assert done.stdout == "query/q created\n"
    assert "query/q is stored, not run: run it with 'baton run query/q'" in done.stderr


@pytest.mark.full
def test_a_watch_prints_each_change_until_it_is_interrupted(machine: UserMachine) -> None:
    one, changed = machine.write(agent("one")), machine.write(agent("one", description="new"), name="changed.yaml")
    printed(machine, "apply", "-f", one)
    terminal = machine.terminal("get", "agents", "-w")
    terminal.wait_for("one")
    printed(machine, "apply", "-f", changed)
    terminal.wait_for("default    2")
    printed(machine, "delete", "agent", "one")
    terminal.wait_for("3 (deleted)")
    terminal.press_ctrl_c()
    assert terminal.end() == 130


@pytest.mark.slow
def test_applies_at_once_from_two_processes_both_land(machine: UserMachine) -> None:
    def file(name: str) -> Path:
        shared: Json = agent("shared", description=name)
        return machine.write(agent(name), shared, name=f"{name}.yaml")

    processes: list[subprocess.Popen[str]] = [machine.start("apply", "-f", file(name)) for name in ("one", "two")]
    said = sorted(line for each in processes for line in each.communicate()[0].splitlines())
    assert said == ["agent/one created", "agent/shared configured", "agent/shared created", "agent/two created"]
    assert [each.returncode for each in processes] == [0, 0]
    names = [line.split()[0] for line in printed(machine, "get", "agents").splitlines()]
    assert names == ["NAME", "one", "shared", "two"]
    kept = {printed(machine, "get", "agent", "shared", "--version", each, "-o", "yaml") for each in ("1", "2")}
    assert len(kept) == 2
