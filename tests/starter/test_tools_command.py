"""Tests of ``baton tools``: what the models of agents are told of their tools."""

import json
from pathlib import Path

import pytest
import yaml

from tests.harness.environment import agent
from tests.harness.mcp_process import McpServerProcess, stdio_manifest
from tests.harness.processes import baton, process_env


@pytest.mark.slow
def test_the_tools_of_an_agent_are_those_that_its_servers_list(tmp_path: Path) -> None:
    with McpServerProcess("2025", tmp_path).running() as server:
        names = ["calculator", "test-add-up", "mine-echo"]
        given = [agent("one", *names), agent("two"), server.manifest(), stdio_manifest(tmp_path, "mine")]
        (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(given))
        shown = baton("tools", "-f", tmp_path / "all.yaml", "one", "-o", "json", env=process_env())
        everyone = baton("tools", "-f", tmp_path / "all.yaml", env=process_env())
    (found,) = json.loads(shown.stdout)
    assert found["agent"] == "one"
    assert [tool["name"] for tool in found["tools"]] == names
    assert found["tools"][1]["parameters"]["required"] == ["a", "b"]
    assert "two: 0 tools" in everyone.stdout
    assert "  test-add-up(a: integer, b: integer)\n    Adds two numbers." in everyone.stdout


@pytest.mark.slow
def test_a_server_that_can_not_be_asked_is_told_in_one_sentence(tmp_path: Path) -> None:
    server = stdio_manifest(tmp_path, args=["-c", "import sys; sys.exit('there is no such town')"], timeout="2m")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([agent("one", tools=[{"name": "test"}]), server]))
    done = baton("tools", "-f", tmp_path / "all.yaml", env=process_env())
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the MCP server test has exited with code 1: there is no such town" in done.stderr
