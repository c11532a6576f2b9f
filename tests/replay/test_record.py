"""Recording histories and stored names only adds; replacing them is a command of its own, which asks first."""

import copy
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import ROOT, process_env
from tests.replay.compatibility import incompatible
from tests.replay.record import add_missing, run
from tests.replay.recorded import RecordedHistories
from tests.replay.scenarios import refused, sequential
from tests.replay.stored import STORED


@pytest.mark.full
async def test_only_scenarios_without_a_history_are_recorded(tmp_path: Path) -> None:
    recorded = RecordedHistories(tmp_path / "histories")
    recorded.add("sequential", [("sequential", "old")])
    assert await add_missing(recorded, {"sequential": sequential, "refused": refused}) == ["refused"]
    assert [file.name for file in recorded.files("refused")] == ["refused.1.query.json"]
    (kept,) = recorded.files("sequential")
    assert kept.read_text() == "old"
    assert await add_missing(recorded, {"sequential": sequential, "refused": refused}) == []


def test_one_more_history_of_a_scenario_is_kept_with_the_old_ones(tmp_path: Path) -> None:
    recorded = RecordedHistories(tmp_path)
    for number in range(3):
        recorded.add("query", [("query", f"query {number}"), ("agent", f"agent {number}")])
    recorded.add("query_timeout", [("query", "another")])
    assert {file.name: file.read_text() for file in recorded.files("query")} == {
        "query.1.query.json": "query 0",
        "query.2.agent.json": "agent 0",
        "query@2.1.query.json": "query 1",
        "query@2.2.agent.json": "agent 1",
        "query@3.1.query.json": "query 2",
        "query@3.2.agent.json": "agent 2",
    }
    assert recorded.scenarios() == {"query", "query_timeout"}


async def command(folder: Path, *arguments: str, typed: str = "") -> str | None:
    """Runs the recording command on a folder of its own, with what the user types; why it was refused, if it was."""
    places = ("--folder", str(folder / "histories"), "--stored", str(folder / "stored.json"))
    return await run([*places, *arguments], io.StringIO(typed))


@pytest.fixture
def committed(tmp_path: Path) -> RecordedHistories:
    """A folder with one old history, which is committed."""
    recorded = RecordedHistories(tmp_path / "histories")
    recorded.add("refused", [("query", "old")])
    recorded.add("refused", [("query", "less old")])
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    for line in (("init", "-q"), ("add", "."), (*author, "commit", "-q", "-m", "old")):
        subprocess.run(("git", "-C", str(tmp_path), *line), check=True, capture_output=True)
    return recorded


@pytest.mark.full
async def test_replacing_a_history_says_what_it_breaks_and_asks_first(
    committed: RecordedHistories, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await command(tmp_path, "--replace", "refused", typed="yes\n") == "nothing was replaced"
    warning = capsys.readouterr().err
    assert "their next workflow task fails until a worker of the earlier version is back" in warning
    assert "make add-history NAME=refused\n" in warning
    assert "  refused.1.query.json\n  refused@2.1.query.json\n" in warning
    assert [file.read_text() for file in committed.files("refused")] == ["old", "less old"]

    assert await command(tmp_path, "--replace", "refused", typed="refused\n") is None
    (new,) = committed.files("refused")
    assert new.name == "refused.1.query.json"
    started = json.loads(new.read_text())["events"][0]["workflowExecutionStartedEventAttributes"]
    assert started["workflowType"] == {"name": "query"}


async def test_a_history_that_git_does_not_hold_is_not_replaced(committed: RecordedHistories, tmp_path: Path) -> None:
    committed.files("refused")[1].write_text("changed")
    refusal = await command(tmp_path, "--replace", "refused", typed="refused\n")
    assert refusal == "refused@2.1.query.json is not committed: replaced, it could not be found in git"
    assert [file.read_text() for file in committed.files("refused")] == ["old", "changed"]


@pytest.mark.full
async def test_stored_names_that_would_vanish_are_kept_until_they_are_replaced_on_purpose(tmp_path: Path) -> None:
    file, old = tmp_path / "stored.json", json.loads(STORED.read_text())
    old["activities"].append("ask_somebody")
    file.write_text(json.dumps(old))
    refusal = await command(tmp_path)
    assert refusal
    assert "\n  activities: 'ask_somebody' is gone\n" in refusal
    assert "make replace-stored-names" in refusal
    assert json.loads(file.read_text()) == old
    assert not (tmp_path / "histories").exists(), "nothing is recorded with names that break running teams"

    assert await command(tmp_path, "--replace-stored-names", typed="no\n") == "nothing was replaced"
    assert json.loads(file.read_text()) == old
    assert await command(tmp_path, "--replace-stored-names", typed="replace\n") is None
    assert file.read_text() == STORED.read_text()


@pytest.mark.full
def test_the_command_ends_with_its_refusal() -> None:
    line = [sys.executable, "-m", "tests.replay.record", "--replace", "refused", "--folder", "/"]
    done = subprocess.run(line, cwd=ROOT, env=process_env(), input="", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing was replaced" in done.stderr


OLD: dict[str, Any] = {
    "task queue": "baton",
    "workflows": ["agent", "query"],
    "queries": {"agent": ["status"]},
    "errors": {"BadArguments": "ToolError"},
    "shapes": {
        "Head": {
            "type": "object",
            "properties": {
                "id": {"type": "string"},
                "depth": {"type": "integer", "default": 0},
                "usage": {"$ref": "#/$defs/Usage", "default": {"tokens": 0}},
            },
            "required": ["id"],
        },
        "Reason": {"enum": ["completed", "failed"], "type": "string"},
        "Member": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "End": {"anyOf": [{"enum": ["completed"], "type": "string"}, {"type": "null"}]},
        "Kind": {"const": "approval", "type": "string"},
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """The old names and shapes with another value at a path; ``None`` removes what is there."""
    new: dict[str, Any] = copy.deepcopy(OLD)
    *parents, last = path.split("/")
    place = new
    for each in parents:
        place = place[each]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return new


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("signals", ["terminate_team"]),
        ("workflows", ["agent", "query", "voting"]),
        ("queries/query", ["status"]),
        ("queries/agent", ["session", "status"]),
        ("errors/Refused", "ModelError"),
        ("shapes/Turn", {"type": "object"}),
        ("shapes/Head/properties/sha", {"type": "string", "default": ""}),
        ("shapes/Head/properties/usage/default", {"tokens": 0, "cachedTokens": 0}),
        ("shapes/Reason/enum", ["completed", "failed", "condition"]),
        ("shapes/Member/anyOf", [{"type": "string"}, {"type": "integer"}, {"type": "null"}]),
        ("shapes/End/anyOf", [{"type": "null"}, {"enum": ["failed", "completed"], "type": "string"}]),
        ("shapes/Kind", {"enum": ["approval", "question"], "type": "string"}),
    ],
)
def test_new_names_types_and_optional_fields_are_allowed(path: str, value: object) -> None:
    assert incompatible(OLD, changed(path, value)) == []


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("task queue", "other", "task queue: was 'baton', is 'other'"),
        ("workflows", ["agent"], "workflows: 'query' is gone"),
        ("workflows", None, "workflows: 'agent' is gone"),
        ("queries/agent", [], "queries.agent: 'status' is gone"),
        ("queries/agent", None, "queries: 'agent' is gone"),
        ("errors/BadArguments", "ModelError", "errors.BadArguments: was 'ToolError', is 'ModelError'"),
        ("shapes/Head", None, "shapes: 'Head' is gone"),
        ("shapes/Head/properties/id", None, "shapes.Head: 'id' is gone"),
        ("shapes/Head/properties/id/type", "integer", "shapes.Head.id.type: was 'string', is 'integer'"),
        ("shapes/Head/properties/depth/default", 1, "shapes.Head.depth.default: was 0, is 1"),
        ("shapes/Head/properties/usage/default", {"tokens": 1}, "shapes.Head.usage.default.tokens: was 0, is 1"),
        ("shapes/Head/properties/usage/default", {}, "shapes.Head.usage.default: 'tokens' is gone"),
        ("shapes/Head/properties/id/maxLength", 9, "shapes.Head.id: 'maxLength' was None, is 9"),
        ("shapes/Head/required", ["id", "depth"], "shapes.Head: 'depth' has become required"),
        ("shapes/Head/required", None, "shapes.Head: 'id' is no longer required"),
        ("shapes/Reason/enum", ["completed"], "shapes.Reason: no longer allows 'failed'"),
        ("shapes/Kind", {"enum": ["question"], "type": "string"}, "shapes.Kind: no longer allows 'approval'"),
        ("shapes/Reason/enum", None, "shapes.Reason: 'enum' was ['completed', 'failed'], is None"),
        ("shapes/Member/anyOf", [{"type": "string"}], "shapes.Member: no longer allows {'type': 'null'}"),
        (
            "shapes/End/anyOf",
            [{"type": "null"}, {"enum": ["failed"], "type": "string"}],
            "shapes.End: no longer allows {'enum': ['completed'], 'type': 'string'}",
        ),
    ],
)
def test_what_vanishes_changes_or_becomes_required_is_found(path: str, value: object, problem: str) -> None:
    assert problem in incompatible(OLD, changed(path, value))
