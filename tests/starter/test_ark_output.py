"""The commands that show a query print it with the status of ARK: ``-o ark`` as YAML, ``-o ark-json`` as JSON."""

import json

import pytest
import yaml

from tests.harness.environment import Json, agent, line, manifest, team
from tests.harness.user_machine import UserMachine

FIELDS = {"phase", "conditions", "response", "responses", "tokenUsage", "duration"}


def query(name: str, target: str) -> Json:
    kind, asked = target.split("/")
    return manifest("Query", name, {"input": "Why?", "target": {"type": kind, "name": asked}})


@pytest.mark.shared_server
def test_run_and_status_print_a_query_with_the_status_of_ark_alone(machine: UserMachine) -> None:
    machine.script(line("one", "Because."))
    pair = team("pair", "one", strategy="sequential", loops=True, maxTurns=1)
    written = machine.write(agent("one"), pair, query("good", "agent/one"), query("bad", "team/pair"))
    done = machine.run("run", "query/good", "-f", written, "-o", "ark")
    shown = yaml.safe_load(done.stdout)
    assert (done.returncode, shown["kind"], shown["spec"]["input"]) == (0, "Query", "Why?")
    assert {*shown["status"]} == FIELDS
    assert (shown["status"]["phase"], shown["status"]["response"]["content"]) == ("done", "Because.")
    assert shown["status"]["responses"] == [shown["status"]["response"]]
    assert [each["type"] for each in shown["status"]["conditions"]] == ["Completed"]
    assert {*shown["status"]["tokenUsage"]} == {"promptTokens", "completionTokens", "totalTokens", "cachedTokens"}
    assert json.loads(machine.run("status", "good", "-o", "ark-json").stdout) == shown
    failed = machine.run("run", "query/bad", "-f", written, "-o", "ark-json")
    assert failed.returncode == 2
    status = json.loads(failed.stdout)["status"]
    assert (status["phase"], status["conditions"][0]["reason"]) == ("error", "QueryErrored")
    assert status["response"]["content"] == "team sequential MaxTurns reached pair"
