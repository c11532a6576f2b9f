"""The rules of approvals: which calls require approval, whose rule counts, and what a manifest may not say."""

from pathlib import Path

import pytest

from baton.activities.tool.tools import with_approvals
from baton.resources.approval import Approval, strictest
from baton.resources.provenance import Provenance
from baton.resources.run_catalog import RunCatalog
from baton.resources.tool import Tool
from tests.harness.environment import Json, agent, manifest
from tests.harness.manifests import Writer


def rule(**given: object) -> Approval:
    return Approval.model_validate(given)


def on(argument: str, pattern: str) -> list[Json]:
    return [{"argument": argument, "pattern": pattern}]


@pytest.mark.parametrize(
    ("pattern", "value", "needed"),
    [
        ("^/etc/", "/etc/passwd", True),
        ("^/etc/", "/home/etc/", False),
        ("(?i)drop table", "DROP TABLE users", True),
        (r"^\d{4,}$", 4800, True),
        (r"^\d{4,}$", 99, False),
        (r"^\d{4,}$", 4800.0, True),
        (r"^\d{4,}$", 4800.5, False),
        (r'"price": \d{4,}[,}]', {"items": [{"price": 4.8e3}]}, True),
        ('"admin"', {"role": "admin"}, True),
        ("^true$", True, True),
        ("^(a+)+$", "a" * 50_000 + "b", False),
    ],
)
def test_a_pattern_is_searched_in_the_text_of_an_argument_in_linear_time(
    pattern: str, value: object, needed: bool
) -> None:
    assert rule(argumentMatches=on("x", pattern)).is_needed({"x": value}) is needed  # type: ignore[dict-item]


def test_a_call_without_the_argument_does_not_match() -> None:
    assert not rule(argumentMatches=on("path", ".")).is_needed({"other": "/etc"})


def test_an_agent_cannot_loosen_what_its_tool_asks_for() -> None:
    strict = rule(timeout="1h")
    assert strictest(strict, rule(required=False)) == strict
    assert strictest(strict, None) == strict
    assert strictest(None, rule(required=False)) is None
    loose = rule(timeout="1m", onTimeout="proceed", argumentMatches=on("x", "y"))
    both = strictest(strict, loose)
    assert both
    assert (both.on_timeout, both.argument_matches, both.seconds) == ("reject", (), 60)
    slower = strictest(rule(timeout="5m", onTimeout="proceed"), loose)
    assert slower
    assert (slower.on_timeout, slower.seconds) == ("proceed", 300)
    assert strictest(rule(onTimeout="proceed"), loose) == rule(onTimeout="proceed", timeout=None, argumentMatches=())


def test_calls_that_match_any_rule_of_the_two_need_a_yes() -> None:
    both = strictest(rule(argumentMatches=on("a", "1")), rule(argumentMatches=on("b", "2")))
    assert both
    assert [both.is_needed({"a": x, "b": y}) for x, y in (("1", "0"), ("0", "2"), ("0", "0"))] == [True, True, False]


def test_a_wrong_approval_is_refused_with_its_place(write: Writer) -> None:
    approval = {"timeout": "soon", "onTimeout": "ask", "argumentMatches": on("x", "(")}
    tool = manifest("Tool", "t", {"type": "agent", "agent": {"name": "a"}, "approval": approval})
    problems = write.refusal(tool, agent("a"))
    assert any("spec.approval.timeout" in each and "is not a duration" in each for each in problems)
    assert any("spec.approval.onTimeout" in each for each in problems)
    assert any("argumentMatches[0].pattern: is not a regular expression" in each for each in problems)


def test_a_tool_that_says_it_destroys_needs_a_yes_unless_its_own_approval_says_otherwise(write: Writer) -> None:
    spec = {"type": "agent", "agent": {"name": "a"}, "annotations": {"destructiveHint": True}}
    tools = [
        manifest("Tool", "plain", {**spec, "annotations": {"destructiveHint": False}}),
        manifest("Tool", "destroys", spec),
        manifest("Tool", "trusted", {**spec, "approval": {"required": False}}),
    ]
    loaded = write.load(*tools, agent("a"), agent("b", "plain", "destroys", "trusted"))
    pinned = with_approvals(RunCatalog.of_files(loaded.catalog))
    made = {each.name: each.spec.approval for each in pinned.manifests if isinstance(each, Tool)}
    assert made["plain"] is None
    assert made["destroys"] == Approval()
    assert made["trusted"] == Approval(required=False)


def test_tools_that_destroy_leave_the_rest_of_a_pinned_catalog(write: Writer) -> None:
    """Inline manifests stay inline, and the run keeps the rights of its account, whatever its tools say."""
    spec = {"type": "agent", "agent": {"name": "a"}, "annotations": {"destructiveHint": True}}
    loaded = write.load(manifest("Tool", "destroys", spec), agent("a"))
    inline = RunCatalog.of(loaded.catalog, lambda _: Provenance.INLINE, registered_as="f" * 64)
    pinned = with_approvals(inline.with_account("default/clerk").with_notices(["without the tools of m"]))
    assert pinned != inline
    assert {*pinned.provenance.values()} == {Provenance.INLINE}
    assert (pinned.account, pinned.registered_as) == ("default/clerk", "f" * 64)
    assert pinned.notices == ("without the tools of m",)


BUY: Json = {
    "type": "http",
    "http": {"url": "http://x.example"},
    "inputSchema": {"properties": {"price": {}, "item": {}}},
}
PRESET: Json = {"parameters": [{"name": "price", "value": "5"}]}


@pytest.mark.parametrize(
    ("of_tool", "of_agent", "where"),
    [
        (
            {"approval": {"argumentMatches": on("price", "5")}, "partial": PRESET},
            {},
            "approval.argumentMatches[0].argument",
        ),
        (
            {},
            {"approval": {"argumentMatches": on("price", "5")}, "partial": PRESET},
            "tools[0].approval.argumentMatches[0]",
        ),
        (
            {"partial": PRESET},
            {"approval": {"argumentMatches": on("price", "5")}},
            "tools[0].approval.argumentMatches[0]",
        ),
        ({"approval": {"argumentMatches": on("price", "5")}}, {"partial": PRESET}, "tools[0].partial.parameters"),
    ],
)
def test_a_pattern_for_a_preset_argument_is_refused(tmp_path: Path, of_tool: Json, of_agent: Json, where: str) -> None:
    tool = manifest("Tool", "buy", {**BUY, **of_tool})
    (refusal,) = Writer(tmp_path).refusal(agent("one", tools=[{"name": "buy", "type": "custom", **of_agent}]), tool)
    assert f"spec.{where}" in refusal
    assert "'price' is a preset argument" in refusal


def test_a_pattern_for_an_argument_that_a_model_chooses_is_taken_beside_a_preset_one(tmp_path: Path) -> None:
    tool = manifest("Tool", "buy", {**BUY, "partial": PRESET, "approval": {"argumentMatches": on("item", "x")}})
    assert Writer(tmp_path).load(tool)
