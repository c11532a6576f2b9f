"""``baton chat`` and ``baton sessions``: each line is a durable query, and all are one conversation."""

import json
import shlex
import subprocess

import pytest

from baton.contracts.plan import ConversationPlan
from baton.starter.operations.conversations import read_conversation
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent, line, manifest
from tests.harness.processes import BATON
from tests.harness.user_machine import UserMachine

PLAN = ConversationPlan(id="c", namespace="default")


def said_to(machine: UserMachine) -> list[str]:
    messages = machine.model.requests[-1].body["messages"]
    return [str(each.get("content")) for each in messages if each["role"] != "system"]


@pytest.mark.full
@pytest.mark.shared_server
def test_lines_of_a_chat_are_one_conversation_that_goes_on_tomorrow(machine: UserMachine) -> None:
    file = machine.write(agent("one"))
    machine.script(line("one", "I am one.", {"text": "late", "delay": 60}, "As I said.", "Nothing new."))
    chat = machine.terminal("chat", "-f", file, "agent/one", "--conversation", "c")
    chat.wait_for("> ")
    chat.write("Who are you?")
    chat.wait_for("I am one.")
    chat.write("Tell me more.")
    machine.wait_for_calls(2)
    chat.press_ctrl_c()
    chat.wait_for("Canceled")
    chat.write("Again?")
    chat.wait_for("As I said.")
    chat.press_ctrl_d()
    assert chat.end() == 0
    assert f"baton chat -f {file} agent/one --conversation c" in " ".join(chat.text.split())
    said = ["Who are you?", "I am one.", "Tell me more.", "Error: canceled", "Again?"]
    assert said_to(machine) == said


@pytest.mark.full
@pytest.mark.shared_server
def test_a_run_goes_on_with_a_conversation(machine: UserMachine) -> None:
    asks = manifest(
        "Query", "next", {"input": "And now?", "targets": [{"type": "agent", "name": "one"}], "conversationId": "own"}
    )
    file = machine.write(agent("one"), asks)
    machine.script(line("one", "I am one.", "As I said.", "Nothing else."))
    machine.run("run", "-f", file, "agent/one", "Who are you?", "--conversation", "trip")
    done = machine.run("run", "-f", file, "query/next", "--conversation", "trip", "-o", "json")
    assert said_to(machine) == ["Who are you?", "I am one.", "And now?"]
    assert json.loads(done.stdout)["status"]["conversationId"] == "trip"
    machine.run("run", "-f", file, "query/next")
    assert said_to(machine) == ["And now?"]
    wrong = machine.run("run", "-f", file, "query/next", "--conversation", "c" * 256)
    assert (wrong.returncode, "is not an id: 1 to 255 characters" in wrong.stderr) == (1, True)


@pytest.mark.slow
async def test_conversations_are_listed_shown_and_deleted(env: Environment, machine: UserMachine) -> None:
    machine.env["BATON_JOURNAL_URL"] = env.journal_address
    env.script(line("one", "I am one."))
    await env.status(await env.start_query([agent("one")], "agent/one", conversationId="c", input="Who are you?"))
    shown = machine.run("sessions", "show", "c", "-o", "json")
    assert [each["content"] for each in json.loads(shown.stdout)] == ["Who are you?", "I am one."]
    (listed,) = json.loads(machine.run("sessions", "list", "-o", "json").stdout)
    assert (listed["id"], listed["messages"]) == ("c", 2)
    assert machine.run("sessions", "delete", "c").returncode == 0
    assert await read_conversation("default", PLAN, 1, {"BATON_JOURNAL_URL": env.journal_address}) is None


@pytest.mark.full
@pytest.mark.shared_server
def test_lines_that_are_no_terminals_are_answered_on_stdout(machine: UserMachine) -> None:
    file = machine.write(agent("one"))

    def answer(request: Request) -> Reply:
        return Reply(text=f"{len(request['messages'])} messages")

    machine.model._answer = answer
    (machine.folder / "lines.txt").write_text("first\nsecond\n")
    command = f"{shlex.quote(str(BATON))} chat -f {shlex.quote(str(file))} agent/one < lines.txt > out.txt 2> err.txt"
    done = subprocess.run(command, shell=True, env=machine.env, cwd=machine.folder, check=False)
    assert (machine.folder / "out.txt").read_text().splitlines() == ["2 messages", "4 messages"]
    assert done.returncode == 0


@pytest.mark.shared_server
def test_a_chat_with_what_is_not_there_is_refused_before_the_first_line(machine: UserMachine) -> None:
    refused = machine.run("chat", "-f", machine.write(agent("one")), "agent/two")
    assert refused.returncode == 1
    assert (
        "Agent 'two' in the namespace 'default' is neither in the files nor on the workers; known: one"
        in refused.stderr
    )
