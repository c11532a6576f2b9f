"""The programs of samples/cookbook run as they are, with a scripted model."""

import asyncio
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from baton.starter.scripted_model import ScriptLine
from baton.starter.server.embedded import EmbeddedServer
from tests.harness.environment import Environment, Json, call
from tests.harness.processes import ROOT

FOLDER = ROOT / "samples" / "cookbook"


def says(agent: str, system: str, *replies: str | Json) -> ScriptLine:
    """The replies of an agent, by a part of its prompt."""
    return ScriptLine.model_validate({"agent": agent, "system": system, "say": [*replies]})


def selects(after: str, member: str) -> ScriptLine:
    """The selector's choice after a part of what was said."""
    choice = {"calls": [{"name": "select-next-speaker", "arguments": {"name": member}}]}
    return ScriptLine.model_validate({"system": after, "say": [choice]})


PROGRAMS: dict[str, tuple[list[ScriptLine], Any]] = {
    "reflection": (
        [says("writer", "You write essays", "Draft.", "Better."), says("teacher", "You grade", "Longer, please.")],
        "Better.",
    ),
    "swarm": (
        [
            says("alice", "addition expert", call("transfer_to_bob"), call("add", a=5, b=7), "12"),
            says("bob", "like a pirate", "Ahoy!", call("transfer_to_alice")),
        ],
        ["Ahoy!", "12"],
    ),
    "human_approval": (
        [says("assistant", "You book hotels", call("book-hotel", hotel="McKittrick"), "Booked.")],
        "Booked.",
    ),
    "routing": (
        [says("triage", "Hand off", call("transfer_to_spanish")), says("spanish", "speak Spanish", "¡Hola!")],
        ("spanish", "¡Hola!"),
    ),
    "agents_as_tools": (
        [
            says(
                "orchestrator",
                "You are a translation agent",
                {
                    "calls": [
                        {"name": f"translate-to-{name}", "arguments": {"input": "Good morning!"}}
                        for name in ("spanish", "french")
                    ]
                },
                "Buenos días, bonjour!",
            ),
            says("editor", "You inspect translations", "¡Buenos días! Bonjour !"),
            says("translate-to-spanish", "to Spanish", "¡Buenos días!"),
            says("translate-to-french", "to French", "Bonjour !"),
        ],
        "¡Buenos días! Bonjour !",
    ),
    "llm_as_a_judge": (
        [
            says("author", "very short outline", "Outline.", "Better outline."),
            says(
                "judge",
                "good enough",
                '{"feedback": "More suspense.", "score": "needs_improvement"}',
                '{"feedback": "Fine.", "score": "pass"}',
            ),
        ],
        "Better outline.",
    ),
    "parallelization": (
        [
            says("translator", "to Spanish", *(f"¡Buenos días {number}!" for number in (1, 2, 3))),
            says("picker", "You pick the best", "¡Buenos días 2!"),
        ],
        "¡Buenos días 2!",
    ),
    "approve": (
        [
            says("primary", "helpful assistant", "Leaves fall.", "Golden leaves fall."),
            says("critic", "You give feedback", "More color.", "APPROVE"),
        ],
        ["primary: Leaves fall.", "critic: More color.", "primary: Golden leaves fall.", "critic: APPROVE"],
    ),
    "selector_group_chat": (
        [
            selects("# analyst:", "planner"),
            selects("# searcher:", "analyst"),
            selects("# planner:", "searcher"),
            says("planner", "You break down", "First search.", call("terminate", response="Wade, up by 7 %.")),
            says("searcher", "You search", call("search-web", query="2006-2007"), "Wade: 1397 points."),
            says("analyst", "You calculate", call("percentage-change", start=1300, end=1397), "Up by 7 %."),
            selects("", "planner"),
        ],
        "Wade, up by 7 %.",
    ),
    "research_crew": (
        [
            says("researcher", "a senior researcher of AI agents", "- They are many."),
            says("analyst", "a reporting analyst", json.dumps({"title": "Agents", "findings": ["They are many."]})),
        ],
        {"title": "Agents", "findings": ["They are many."]},
    ),
}


def test_every_program_is_tested_and_on_the_page() -> None:
    programs = {file.stem for file in FOLDER.glob("*.py")}
    assert programs == {*PROGRAMS}
    assert set(re.findall(r"samples/cookbook/(\w+)\.py", (ROOT / "docs" / "cookbook.md").read_text())) == programs


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_of_the_cookbook_runs(
    env: Environment, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    lines, expected = PROGRAMS[name]
    env.script(*lines)
    own = {"TEMPORAL_ADDRESS": server.address, "BATON_TASK_QUEUE": env.task_queue, "BATON_HOME": str(tmp_path)}
    for variable, value in {**env.worker_env, **own}.items():
        monkeypatch.setenv(variable, value)
    program = importlib.import_module(f"samples.cookbook.{name}")
    answer = await asyncio.to_thread(lambda: asyncio.run(program.main()))  # a program has an event loop of its own
    assert (answer.model_dump() if name == "research_crew" else answer) == expected
