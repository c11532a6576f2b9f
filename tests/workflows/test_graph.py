"""Diagrams: their boxes, who speaks after whom, and that no arrow runs through a box."""

import html
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.resources.catalog import catalog_of
from baton.resources.loader import Loaded, load_files
from baton.resources.team import Team
from baton.starter.cli.targets import resources_to_draw
from baton.starter.diagram.build import Arrow, Box, build_diagram
from baton.starter.diagram.layout import ArrowPath, PlacedBox, Point, Rectangle, drawing_of, place
from baton.starter.diagram.mermaid import mermaid
from baton.starter.diagram.svg import style_sheet, svg
from baton.starter.errors import UsageError
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.manifests import Writer, model, query
from tests.harness.processes import ROOT
from tests.harness.user_machine import UserMachine

BRAINSTORMING = """\
flowchart LR
  n1(["brainstorming-session<br/>How can we improve our product#39;s<br/>user experience#63;"])
  subgraph n2["brainstorming-team · round-robin · 3 rounds"]
    direction LR
    n3["brainstormer-agent<br/>gpt-4"]
    n4["critic-agent<br/>gpt-4"]
    n5["coordinator-agent<br/>gpt-4 · terminate_team<br/>can end the team"]
    n3 --> n4
    n4 --> n5
    n5 --> n3
  end
  n1 --> n2
  classDef query fill:#fff8e1,stroke:#b08800,color:#24292f
  class n1 query"""

FREE = """1. Is "this" <script>#1;</script> a `style: x;` | [or] {not} & --> - _never_ **ever** end 日本"""


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def drawn(loaded: Loaded, target: str | None = None, namespace: str | None = None) -> Box:
    return build_diagram(loaded.catalog, resources_to_draw(loaded, target, namespace), namespace or "default")


def names(box: Box) -> list[str]:
    """The titles in a box; of what is no member, the shape."""
    return [each.lines[0] if each.lines else each.shape for each in box.inside]


def arrows(box: Box) -> list[str]:
    """The arrows in a box, with the titles of what they join."""
    titles = names(box)
    heads = {(False, False): "→", (True, False): "↔", (False, True): "⇢"}
    return [f"{titles[each.start]} {heads[each.two_way, each.dashed]} {titles[each.end]}" for each in box.arrows]


def arrows_of(write: Writer, *members: str, **spec: Any) -> list[str]:
    return arrows(drawn(write.load(team("t", *members, **spec))).inside[0])


def edges(*pairs: str) -> Json:
    return {"edges": [{"from": pair[0], "to": pair[1]} for pair in pairs]}


def test_the_sample_is_drawn_as_a_flowchart() -> None:
    assert mermaid(drawn(load_files([ROOT / "samples" / "brainstorming.yaml"]))) == BRAINSTORMING


def test_members_speak_in_order_and_a_round_leads_back_to_the_first(write: Writer) -> None:
    assert arrows_of(write, "a", "b", "c", strategy="sequential") == ["a → b", "b → c"]
    assert arrows_of(write, "a", "b", "c", strategy="sequential", loops=True) == ["a → b", "b → c", "c → a"]
    assert arrows_of(write, "a", "b", maxTurns=1) == ["a → b", "b → a"]
    assert arrows_of(write, "a", maxTurns=1) == ["a → a"]


def test_parallel_members_stand_between_a_fork_and_a_join(write: Writer) -> None:
    box = drawn(write.load(team("t", "a", "b", strategy="parallel"))).inside[0]
    assert arrows(box) == ["dot → a", "dot → b", "a → dot", "b → dot"]
    assert [each.column for each in box.inside] == [1, 1, 0, 2]


def test_a_selector_chooses_everybody_and_is_asked_again(write: Writer) -> None:
    assert arrows_of(write, "a", "b", strategy="selector") == ["selector ↔ a", "selector ↔ b"]
    box = drawn(write.load(team("t", "a", strategy="selector", selector={"agent": "chooser"}))).inside[0]
    assert box.inside[1] == Box("selector", ("selector", "chooser"))


def test_an_arrow_shows_both_its_heads_and_is_dashed_where_it_is_uncertain(write: Writer) -> None:
    page = drawn(write.load(team("t", "a", "b", strategy="selector", graph=edges("ab", "ba"))))
    assert re.findall(r"n\d .*> n\d", mermaid(page)) == ["n4 -.-> n2", "n4 -.-> n3", "n2 <--> n3"]
    groups = [each for each in ElementTree.fromstring(svg(page)).iter() if each.get("class") == "edge"]
    assert sorted((group[1].get("d", "").count("M"), bool(group[0].get("stroke-dasharray"))) for group in groups) == [
        (1, True),
        (1, True),
        (2, False),
    ]


def test_edges_limit_whom_a_selector_may_choose_next(write: Writer) -> None:
    selector_edges = arrows_of(write, "a", "b", "c", strategy="selector", graph=edges("ab", "ac", "ba", "cc", "cc"))
    assert selector_edges == ["selector ⇢ a", "selector ⇢ b", "selector ⇢ c", "a ↔ b", "a → c", "c → c"]


def test_a_graph_begins_at_the_first_member_and_says_who_is_never_reached(write: Writer) -> None:
    box = drawn(write.load(team("t", "b", "a", "c", "x", strategy="graph", graph=edges("bc", "ca", "ac")))).inside[0]
    assert arrows(box) == ["dot → b", "b → c", "c ↔ a"]
    assert [each.column for each in box.inside] == [1, 3, 2, 4, 0]
    assert [each.lines[-1] == "is never reached" for each in box.inside[:4]] == [False, False, False, True]


def test_a_panel_is_a_loop_that_a_referee_closes_and_that_ends_in_what_is_delivered(write: Writer) -> None:
    spec: Json = {"maxRounds": 2, "referee": "strict"}
    box = drawn(write.load(team("t", "a", "b", **spec))).inside[0]
    assert box.lines == ("t", "round-robin · 2 rounds")
    assert arrows(box) == ["a → b", "b → strict", "strict → a", "strict → synthesizer"]
    assert [each.column for each in box.inside] == [0, 1, 2, 3]
    assert box.inside[2].lines == ("strict", "referee")
    once = {"maxRounds": 1, "synthesizer": False}
    assert arrows_of(write, "a", "b", **once) == ["a → b"]
    assert arrows_of(write, "a", "b", synthesizer=False) == ["a → b", "b → a"]


def test_a_debate_ends_with_a_judge_and_may_be_opened_by_a_moderator(write: Writer) -> None:
    members = [{"name": "a", "stance": "For"}, {"name": "b", "stance": "Against", "role": "a cynic"}]
    spec: Json = {"strategy": "debate", "members": members}
    page = drawn(write.load(manifest("Team", "t", spec)))
    box = page.inside[0]
    assert box.lines == ("t", "debate · 2 rounds")
    assert arrows(box) == ["a → b", "b → a", "b → judge", "judge → synthesizer"]
    assert [each.lines for each in box.inside[:2]] == [("a", "For"), ("b", "a cynic", "Against")]
    nothing_is_crossed(page)
    page = drawn(write.load(manifest("Team", "t", {**spec, "moderator": True, "judge": "solomon"})))
    box = page.inside[0]
    assert arrows(box) == ["moderator ↔ a", "moderator ↔ b", "moderator → solomon", "solomon → synthesizer"]
    assert [each.column for each in box.inside] == [1, 1, 0, 2, 3]
    nothing_is_crossed(page)


def test_a_member_without_a_manifest_and_a_function_are_drawn_as_what_they_are(write: Writer) -> None:
    members = [{"name": "a", "role": "a writer"}, {"name": "b", "type": "activity", "as": "c"}]
    box = drawn(write.load(manifest("Team", "t", {"strategy": "round-robin", "members": members}))).inside[0]
    assert box.inside[:2] == (Box("agent", ("a", "a writer")), Box("tool", ("c = b", "function"), column=1))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"strategy": "round-robin", "maxTurns": 3}, "round-robin · 3 rounds"),
        ({"strategy": "round-robin", "maxTurns": 1}, "round-robin · 1 round"),
        ({"strategy": "selector", "maxTurns": 5}, "selector · 5 turns"),
        ({"strategy": "graph", "maxTurns": 5, "graph": edges("aa")}, "graph · 5 turns"),
        ({"strategy": "sequential", "loops": True, "maxTurns": 2}, "sequential · loops · 2 turns"),
        ({"strategy": "sequential", "maxTurns": 2}, "sequential"),
        ({"strategy": "parallel"}, "parallel"),
    ],
)
def test_a_team_says_its_strategy_and_its_bound(write: Writer, spec: Json, says: str) -> None:
    assert drawn(write.load(team("t", "a", **spec))).inside[0].lines == ("t", says)


def test_an_agent_says_its_model_its_tools_and_that_it_can_end_the_team(write: Writer) -> None:
    known = manifest("Tool", "known", {"type": "http", "http": {"url": "http://x/y"}})
    one = agent("one", "known", "lost", "terminate", modelRef={"name": "m"})
    loaded = write.load(one, known, model(), agent("two"), team("t", "one", "two", maxTurns=1))
    lines = ("one", "m", "known, lost (not in the files),", "terminate", "can end the team")
    assert [each.lines for each in drawn(loaded).inside[0].inside] == [lines, ("two", "default")]
    assert drawn(loaded, "agent/one").inside[0].lines == lines[:-1], "asked alone, it has no team to end"


def test_what_is_not_in_the_files_is_drawn_dashed(write: Writer) -> None:
    page = drawn(write.load(query(targets=[{"type": "agent", "name": "gone"}])))
    assert page.inside[1] == Box("missing", ("gone", "not in the files"), column=1)
    assert "class n2 missing" in mermaid(page)
    dashed = [each for each in ElementTree.fromstring(svg(page)).iter() if each.get("stroke-dasharray")]
    assert len(dashed) == 1


def test_a_team_in_a_team_is_a_box_in_a_box_and_is_opened_where_it_comes_first(write: Writer) -> None:
    outer = team("outer", "inner", "inner", strategy="sequential")
    loaded = write.load(outer, team("inner", "one", maxTurns=1, onMaxTurns="complete"), agent("one"))
    first, second = drawn(loaded).inside[0].inside
    assert (names(first), names(second)) == (["one"], [])
    assert second.lines == ("inner", "round-robin · 1 round", "drawn elsewhere")


def test_neither_many_nor_deep_teams_take_long(write: Writer) -> None:
    wide = [team(f"t{n}", f"t{n + 1}", f"t{n + 1}", strategy="sequential") for n in range(34)]
    page = drawn(write.load(*wide))
    assert "its members are nested too deeply to be drawn" in svg(page)
    assert mermaid(page).count("subgraph") < 50


def test_without_a_query_the_teams_that_are_no_members_are_drawn(write: Writer) -> None:
    teams = [team(name, *members, strategy="sequential") for name, members in {"a": "b", "b": "x", "c": "x"}.items()]
    assert names(drawn(write.load(*teams))) == ["a", "c"]
    assert names(drawn(write.load(*teams), "team/b")) == ["b"]


def test_all_queries_are_drawn_and_what_two_of_them_ask_once(write: Writer) -> None:
    asked = [{"type": "model", "name": "m"}, {"type": "agent", "name": "one"}]
    other = {**query(targets=asked[1:] * 2), "metadata": {"name": "r"}}
    loaded = write.load(query(targets=asked), other, model(), agent("one"), team("t", "one", maxTurns=1))
    assert names(drawn(loaded)) == ["q", "r", "m", "one"]
    assert arrows(drawn(loaded)) == ["q → m", "q → one", "r → one"]
    assert arrows(drawn(loaded, "query/r")) == ["r → one"]


def test_a_namespace_is_chosen_and_another_one_is_named(write: Writer) -> None:
    away = {"name": "t", "namespace": "away"}
    crew = {**team("t", strategy="sequential"), "metadata": away}
    crew["spec"]["members"] = [{"name": "one"}, {"name": "one", "namespace": "default"}]
    loaded = write.load(crew, team("here", "one", strategy="sequential"), agent("one"))
    assert names(drawn(loaded)) == ["away/t", "here"]
    assert names(drawn(loaded, namespace="away")) == names(drawn(loaded, "team/t", "away")) == ["t"]
    assert names(drawn(loaded, "team/t", "away").inside[0]) == ["one", "default/one"]


def test_what_cant_be_drawn_is_refused(write: Writer) -> None:
    loaded = write.load(agent("one"))
    with pytest.raises(UsageError, match="no Query or Team found in the files"):
        resources_to_draw(loaded, None, None)
    with pytest.raises(UsageError, match="'agent/two' is not in the files"):
        resources_to_draw(loaded, "agent/two", None)


def test_any_text_reaches_the_reader_as_it_is_written(write: Writer) -> None:
    page = Box("page", inside=(Box("query", ("q", FREE)), Box("agent", ("a",), 1)))
    page = Box("page", inside=page.inside, arrows=(Arrow(0, 1, label='a |"b"| < 1; c'),))
    text = mermaid(page)
    assert [html.unescape(re.sub(r"#(\d+);", r"&#\1;", each)) for each in re.findall('"(.*?)"', text)] == [
        f"q<br/>{FREE}",
        "a",
        'a |"b"| < 1; c',
    ]
    assert not re.search(r"style.*:|<[^b]|`|\*|\d\. |&", text.partition("classDef")[0])
    seen = ["".join(each.itertext()) for each in ElementTree.fromstring(svg(page)).iter() if each.tag.endswith("text")]
    assert seen == ["q", FREE, "a", 'a |"b"| < 1; c']


def test_a_condition_is_shortened_and_its_control_characters_are_shown(write: Writer) -> None:
    when = f"message == '\x1b\u202e{'x' * 200}'"
    graph = {"edges": [{"from": "a", "to": "b", "when": when}]}
    page = drawn(write.load(team("t", "a", "b", strategy="graph", maxTurns=3, graph=graph)))
    label = page.inside[0].arrows[1].label
    assert (label[:14], len(label), label[-1]) == ("message == '␛\ufffd", 60, "…")
    ElementTree.fromstring(svg(page))


def test_nodes_and_edges_say_what_events_name_them_by(write: Writer) -> None:
    members = [{"name": "one", "as": "first"}, {"name": "inner"}]
    graph = {"edges": [{"from": "first", "to": "inner"}, {"from": "inner", "to": "first"}]}
    outer = manifest("Team", "outer", {"strategy": "graph", "maxTurns": 3, "members": members, "graph": graph})
    panel = team("inner", "two", maxRounds=2, referee="strict")
    drawing = drawing_of(drawn(write.load(outer, panel, agent("one"), agent("two"), agent("strict")), "team/outer"))
    ids = {node.id: node for node in drawing.nodes}
    named = [
        (node.resource, node.speaker, node.part, ids[node.parent].resource) for node in drawing.nodes[1:] if node.parent
    ]
    assert named == [
        ("Agent/default/one", "first", None, "Team/default/outer"),
        ("Team/default/inner", "inner", None, "Team/default/outer"),
        ("Agent/default/two", "two", None, "Team/default/inner"),
        (None, None, "referee", "Team/default/inner"),
        (None, None, "synthesizer", "Team/default/inner"),
        (None, None, None, "Team/default/outer"),
    ]
    taken = [(ids[edge.start].speaker, ids[edge.end].speaker, edge.edges, edge.two_way) for edge in drawing.edges]
    assert ("first", "inner", [0, 1], True) in taken


def test_a_drawing_is_also_told_in_words(write: Writer) -> None:
    picture = ElementTree.fromstring(svg(drawn(write.load(team("t", "a", "b", strategy="sequential")))))
    texts = {each.get("id"): each.text for each in picture}
    names = (picture.get("aria-labelledby") or "").split()
    assert (picture.get("role"), [texts[name] for name in names]) == (
        "img",
        ["t", "t (sequential): a, b. a (not in the files). b (not in the files). From a to b."],
    )


def test_every_part_of_the_picture_has_a_rule_for_light_and_dark(write: Writer) -> None:
    shown = [query(team={"name": "t"}), team("t", "a", strategy="selector", maxTurns=2), model(), agent("a")]
    picture = ElementTree.fromstring(svg(drawn(write.load(*shown))))
    for group in [each for each in picture if each.tag.endswith("}g")]:
        of_group = (group.get("class") or "").split()
        for part in group:
            name = part.get("class") or ""
            rules = [f".drawing .{name} {{", *(f".drawing .{each} > .{name} {{" for each in of_group)]
            assert any(rule in style_sheet() for rule in rules), (of_group, name)


def test_a_long_question_is_cut_and_no_character_breaks_the_picture(write: Writer) -> None:
    page = drawn(write.load(query(input="why " * 90 + "\x1b\uffff", targets=[{"type": "agent", "name": "a" * 250}])))
    assert [max(map(len, each.lines)) <= 60 for each in page.inside] == [True, True]
    assert page.inside[0].lines[-1].endswith("…")
    ElementTree.fromstring(svg(drawn(write.load(query(input="\x1b\uffff\x00", team={"name": "t"})))))


def test_the_order_of_the_files_changes_nothing(write: Writer) -> None:
    manifests = [agent("one"), agent("two"), team("t", "two", "one", maxTurns=1), query(team={"name": "t"})]
    there, back = drawn(write.load(*manifests)), drawn(write.load(*reversed(manifests)))
    assert (mermaid(there), svg(there)) == (mermaid(back), svg(back))


@st.composite
def pages(draw: st.DrawFn) -> Box:
    """A page with teams of every strategy, whose members are agents that are missing and other teams."""
    teams: list[Team] = []
    for number in range(draw(st.integers(1, 4))):
        later = [f"t{other}" for other in range(number + 1, 4)]
        members = draw(
            st.lists(
                st.sampled_from(["a", "long-name-of-somebody", "c", "d", *later]), min_size=1, max_size=5, unique=True
            )
        )
        pairs = draw(st.lists(st.tuples(*[st.sampled_from(members)] * 2), min_size=1, max_size=6))
        strategy = draw(st.sampled_from(["sequential", "round-robin", "parallel", "selector", "graph"]))
        pairs = [*dict(pairs).items()] if strategy == "graph" else pairs
        graph = {"edges": [{"from": start, "to": end} for start, end in pairs]}
        spec = {"maxTurns": 2, **({"graph": graph} if strategy in ("graph", "selector") else {})}
        teams.append(Team.model_validate(team(f"t{number}", *members, strategy=strategy, **spec)))
    loaded = Loaded(catalog_of(teams))
    return drawn(loaded)


@pytest.mark.full
@settings(deadline=None, max_examples=60)
@given(pages())
def test_no_box_lies_on_another_and_no_arrow_runs_through_one(page: Box) -> None:
    nothing_is_crossed(page)


def test_many_arrows_have_room_in_one_gap(write: Writer) -> None:
    graph = edges("ab", *(f"{name}b" for name in "cdefghij"))
    nothing_is_crossed(drawn(write.load(team("t", *"abcdefghij", strategy="graph", graph=graph))))


def test_an_arrow_that_comes_back_enters_below_the_one_that_goes_on(write: Writer) -> None:
    page = drawn(write.load(team("t", *"abcd", strategy="graph", graph=edges("ab", "bc", "cd", "db"))))
    on, back = (next(each for each in place(page).inside[0].paths if each.arrow == Arrow(*ends)) for ends in ENDS)
    assert on.points[-1][1] < back.points[-1][1]


ENDS = ((0, 1), (3, 1))


def test_a_long_name_has_room_in_its_box(write: Writer) -> None:
    page = place(drawn(write.load(team("n" * 60, "x", strategy="parallel"), team("l", "m" * 40, strategy="parallel"))))
    wide, narrow = page.inside[1], page.inside[0].inside[0]
    assert wide.rectangle.width > 60 * 8
    assert narrow.rectangle.width > 40 * 12


def nothing_is_crossed(page: Box) -> None:
    for around in everything(place(page)):
        for index, each in enumerate(around.inside):
            assert inside(around.rectangle, corners(each.rectangle))
            assert not any(overlap(each.rectangle, other.rectangle) for other in around.inside[index + 1 :])
        for route in around.paths:
            assert inside(around.rectangle, route.points)
            assert on_the_outline(around.inside[route.arrow.start], route.points[0])
            for other in crossable(around, route):
                assert not any(overlap(other.rectangle, part(*step)) for step in pairwise(route.points)), other.box


def on_the_outline(start: PlacedBox, point: Point) -> bool:
    """Whether an arrow begins on the right side of a box, or of a diamond."""
    spot = start.rectangle
    right, down = point[0] - spot.x - spot.width / 2, abs(point[1] - spot.middle)
    share = right / (spot.width / 2) + (down / (spot.height / 2) if start.box.shape == "selector" else 0)
    return abs(share - 1) < 0.001


def everything(around: PlacedBox) -> Iterator[PlacedBox]:
    yield around
    for each in around.inside:
        yield from everything(each)


def crossable(around: PlacedBox, route: ArrowPath) -> list[PlacedBox]:
    """The boxes that an arrow may not run through: all but the diamond that it begins in."""
    start = around.inside[route.arrow.start]
    return [each for each in around.inside if each is not start or each.box.shape != "selector"]


def corners(spot: Rectangle) -> list[Point]:
    return [(spot.x, spot.y), (spot.x + spot.width, spot.y + spot.height)]


def part(start: Point, end: Point) -> Rectangle:
    """The rectangle around a part of an arrow: a swing doesn't leave it."""
    (left, right), (top, low) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return Rectangle(left, top, right - left, low - top)


def inside(spot: Rectangle, points: list[Point] | tuple[Point, ...]) -> bool:
    return all(0 <= x <= spot.width and 0 <= y <= spot.height for x, y in points)


def overlap(one: Rectangle, other: Rectangle) -> bool:
    """Whether a rectangle, or a line, lies within another one and not only on its edge."""
    near = 0.01
    aside = other.x > one.x + one.width - near or other.x + other.width < one.x + near
    return not (aside or other.y > one.y + one.height - near or other.y + other.height < one.y + near)


def test_the_drawing_stands_alone_on_stdout(machine: UserMachine) -> None:
    sample = ROOT / "samples" / "brainstorming.yaml"
    done = machine.run("graph", "-f", sample)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{BRAINSTORMING}\n", "")
    picture = ElementTree.fromstring(machine.run("graph", "team/brainstorming-team", "-f", sample, "-o", "svg").stdout)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert [each.text for each in picture.iter() if each.text == "critic-agent"] == ["critic-agent"]
    refused = machine.run("graph", "team/nobody", "-f", sample)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "'team/nobody' is not in the files" in refused.stderr


def test_a_team_that_cant_be_run_yet_is_drawn(machine: UserMachine) -> None:
    file = machine.write(team("t", "one", strategy="parallel"), agent("one"))
    done = machine.run("graph", "-f", file)
    assert (done.returncode, "subgraph n1" in done.stdout) == (0, True), done.stderr
