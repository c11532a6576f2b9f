"""Tests of replies from the command line and Python: found in any run, sent to the one that waits, shown to others."""

import asyncio
import json
import re
import time

import pytest
import yaml

import baton
from baton.testing import Script
from tests.harness.environment import Environment, Json
from tests.harness.processes import ROOT
from tests.harness.user_machine import UserMachine
from tests.starter.test_approvals import events, temporal
from tests.workflows.test_people import ANN, people

__all__ = ["temporal"]
SAMPLE = ROOT / "samples" / "contract.yaml"
BOB = {"name": "bob", "type": "human"}


async def asked(handle: baton.Handle, count: int = 1) -> list[baton.PendingDecision]:
    while len(found := await handle.inbox()) < count:
        await asyncio.sleep(0.02)
    return found


async def test_where_several_people_are_asked_a_reply_says_to_which_question(
    temporal: baton.Connection, env: Environment
) -> None:
    handle = await temporal.attach((await env.start_team([people(ANN, BOB, strategy="parallel")])).id)
    ann, bob = sorted(await asked(handle, 2), key=lambda each: each.speaker)
    with pytest.raises(baton.Refused, match="specify which question the reply is for; waiting: "):
        await handle.reply("Yes.")
    with pytest.raises(baton.Refused, match="'x' is not waiting for a decision; waiting: "):
        await handle.reply("Yes.", "x")
    await handle.reply("b", bob.id)
    await handle.reply("a")
    assert ann.speaker == "ann"
    assert (await handle.result()).message == "ann:\na\n\nbob:\nb"


async def test_events_say_who_was_asked_and_who_has_replied_and_messages_have_the_reply(
    temporal: baton.Connection, env: Environment
) -> None:
    run = await env.start_team([people(ANN, BOB, strategy="round-robin", maxRounds=1, synthesizer=False)])
    handle = await temporal.attach(run.id)
    await asked(handle)
    await handle.reply("Yes.", by="ann@desk")
    while (await asked(handle))[0].speaker != "bob":
        await asyncio.sleep(0.02)
    await handle.reply("No.")
    heard = [(message.name, message.text, message.part) async for message in handle]
    assert heard[:2] == [("ann", "Yes.", "contribution"), ("bob", "No.", "contribution")]
    found = {each["event"]: each for each in reversed(await events(env, run))}
    assert found["ReplyRequested"]["member"] == "ann"
    assert found["ReplyRequested"]["text"].startswith("Is it legal?")
    assert (found["ReplyGiven"]["member"], found["ReplyGiven"]["by"]) == ("ann", "ann@desk")


@pytest.mark.slow
@pytest.mark.shared_server
def test_a_lawyer_replies_from_another_terminal(machine: UserMachine) -> None:
    machine.script(*Script.read(ROOT / "samples" / "scripts" / "contract.yaml").lines)
    running = machine.start("run", "-f", SAMPLE)
    machine.wait_for_calls(1)
    listed: list[Json] = []
    while not listed:
        done = machine.run("inbox", "-o", "json")
        listed = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
        assert running.poll() is None, running.communicate()
        time.sleep(0.2)
    (question,) = listed
    shown = machine.run("inbox", "offer-query").stdout
    assert f"{question['root']} {question['id']}  lawyer until " in shown
    assert "  drafter: We lend the hotel 40 lamps for one week." in shown
    empty = machine.run("reply", "offer-query", " ")
    assert (empty.returncode, "a reply needs a text of 1 to" in empty.stderr) == (1, True)
    assert machine.run("reply", "offer-query", "Limit our liability to 10,000 EUR.").returncode == 0
    out, err = running.communicate(timeout=60)
    assert out.strip() == "We lend the hotel 40 lamps for one week; our liability is limited to 10,000 EUR."
    assert f"? question for lawyer: baton reply {question['root']} TEXT --to {question['id']}" in err
    assert re.search(r"lawyer  replied by \S+@\S+\n    Limit our liability to 10,000 EUR\.", err)


def test_the_member_of_the_page_stands_in_the_sample() -> None:
    (shown,) = re.findall(r"## A lawyer in a team.*?```yaml\n(.*?)```", (ROOT / "docs" / "people.md").read_text(), re.S)
    team = next(each["spec"] for each in yaml.safe_load_all(SAMPLE.read_text()) if each["kind"] == "Team")
    assert yaml.safe_load(shown)[0] in team["members"]
