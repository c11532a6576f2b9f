"""The report of a run: one HTML file that tells all of it, and runs nothing."""

import asyncio
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.async_api import expect

from baton.starter.history.fork import ForkChanges, fork_run
from baton.starter.history.stream import stream_events
from baton.starter.report.html import html_of
from baton.starter.report.report import Report, pretty, read_report
from baton.testing import Reply, Request
from tests.harness.browser import open_page, running_browser
from tests.harness.environment import KEY, Environment, Handle, Json, agent, call, line, manifest, team
from tests.harness.processes import ROOT
from tests.harness.user_machine import UserMachine

HOSTILE = "</style><script>alert(1)</script><img src=x onerror=alert(2)> ‮dlrow‬ \x1b[31m \x00 &amp; ]]>"


class Page(HTMLParser):
    """The tags, the attributes and the text of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._is_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._is_style = False

    def handle_data(self, data: str) -> None:
        if not self._is_style:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        """The attributes of all elements with a class."""
        return [attrs for _, attrs in self.tags if name in (attrs.get("class") or "").split()]


async def page_of(env: Environment, handle: Handle) -> tuple[Report, Page, str]:
    """The report of a run, and its page; ``BATON_REPORTS`` names a folder in which it is kept to look at."""
    report = await read_report(env.client, handle)
    text = html_of(report)
    if folder := os.environ.get("BATON_REPORTS"):
        name = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
        await asyncio.to_thread(Path(folder, f"{name}.html").write_text, text)
    return report, Page(text), text


def runs_nothing(page: Page) -> None:
    """Asserts that a page loads nothing, and runs no script."""
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "base", "form", "use", "image"}
    for tag, attrs in page.tags:
        assert not any(name.startswith("on") or name in ("style", "src", "href", "srcset") for name in attrs), (
            tag,
            attrs,
        )
    (policy,) = [attrs for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'", policy["content"] or ""
    )


NESTED: list[Json] = [
    team("board", "desk", "crowd", "closing", strategy="sequential"),
    team("desk", "buyer", "clerk", maxTurns=2, onMaxTurns="complete"),
    team("crowd", "north", "south", strategy="parallel"),
    manifest(
        "Team",
        "closing",
        {
            "strategy": "debate",
            "maxRounds": 2,
            "members": [{"name": "north", "stance": "For"}, {"name": "south", "stance": "Against"}],
        },
    ),
    agent("buyer", "order"),
    agent("shop"),
    *map(agent, ("clerk", "north", "south")),
    manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}}),
]


def speaker_of(request: Request) -> str:
    """The agent that asks, by its prompt."""
    found = re.search(r"You are (\w+)\.", request.system)
    return found[1] if found else "somebody"


def answer_nested(request: Request) -> Reply:
    """What the speakers of ``board`` say: the buyer orders once, the judge gives its verdict as JSON."""
    if speaker_of(request) == "buyer" and request["messages"][-1]["role"] != "tool":
        return Reply(text="Let me order.", calls=[{"name": "order", "arguments": {"input": "12 desks"}}])
    if "verdict" in request.system or "verdict" in request.text:
        return Reply(text='{"verdict": "north", "reasoning": "It has the numbers."}')
    return Reply(
        text=f"{speaker_of(request)} has looked at the figures of the third quarter, and sees no reason to wait."
    )


@pytest.mark.full
async def test_nested_teams_tool_calls_and_rounds_are_where_they_happened(env: Environment) -> None:
    env.answer = answer_nested
    handle = await env.start_query(NESTED, "team/board", input="Do we buy new desks before the end of the year?")
    await env.status(handle)
    report, page, _ = await page_of(env, handle)
    assert report.targets == ["team/board"]
    names = [run.start.name for run in report.root.below()]
    assert names[:6] == ["q", "board", "desk", "shop", "shop", "crowd"]
    assert ({*names[6:8]}, names[8:]) == ({"north", "south"}, ["closing"]), "agents at once start in any order"
    runs_nothing(page)
    for words in ("Do we buy new desks", "Let me order.", "12 desks", "Round 1 of 2", "Against", "shop has looked"):
        assert words in page.text, words
    folded = [attrs for tag, attrs in page.tags if tag == "details"]
    assert [attrs["class"] for attrs in folded if "open" not in attrs] == ["team", "tool", "tool", "team", "team"]
    assert {attrs.get("data-speaker") for attrs in page.of_class("node")} >= {"desk", "buyer", "north"}
    taken = {(attrs.get("data-start"), attrs.get("data-end")) for attrs in page.of_class("taken")}
    assert len(taken) >= 4


async def test_everything_that_was_said_is_in_the_report_once(env: Environment) -> None:
    counts = iter(range(1_000))
    env.answer = lambda request: Reply(text=f"<{next(counts)}>")
    teams = [
        team("outer", "inner", "a", maxTurns=2, onMaxTurns="complete"),
        team("inner", "b", "c", strategy="parallel"),
    ]
    handle = await env.start_query([*teams, *map(agent, "abc")], "team/outer")
    await env.status(handle)
    events = [event async for event in stream_events(env.client, handle, wait=False, live=False)]
    said = [event.text for event in events if event.type == "message"]
    _, page, _ = await page_of(env, handle)
    told = [text for text in page.texts if re.fullmatch(r"<\d+>", text)]
    assert sorted(told) == sorted(said)
    assert len(said) == 6


async def test_hostile_texts_are_shown_as_text(env: Environment) -> None:
    env.answer = lambda request: Reply(
        text=HOSTILE,
        calls=[{"name": "order", "arguments": {"input": HOSTILE}}] if len(env.model.requests) == 1 else [],
    )
    tool = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}})
    handle = await env.start_query([agent("buyer", "order"), agent("shop"), tool], "agent/buyer", input=HOSTILE)
    await env.status(handle)
    _, page, text = await page_of(env, handle)
    runs_nothing(page)
    shown = "</style><script>alert(1)</script><img src=x onerror=alert(2)> \ufffddlrow\ufffd ␛[31m"
    assert page.text.count(shown) >= 4
    assert not set(text) & {"\x1b", "\x00", "\u202e", "\u202c"}


async def test_a_run_that_waits_is_reported_as_it_is_now_and_at_its_end(env: Environment) -> None:
    order = manifest("Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {}})
    env.script(line("buyer", call("order", "I need an approval.", input="1 desk"), "Done."), line("shop", "Sold."))
    handle = await env.start_query([agent("buyer", "order"), agent("shop"), order], "agent/buyer")
    await env.wait_for_calls(1)
    await env.wait_until_idle(handle)
    report, page, _ = await page_of(env, handle)
    assert (report.phase, report.root.end) == ("InputRequired", None)
    assert "The run waits for a person." in page.text
    assert "still waits" in page.text
    assert "The turn has not ended." in page.text
    (wait,) = report.waits
    await handle.execute_update("approve", {"call": wait.start.wait, "by": "alice", "reason": "cheap"})
    await env.status(handle)
    report, page, _ = await page_of(env, handle)
    assert report.phase == "Completed"
    assert "approved by alice: cheap" in page.text


async def test_a_failed_run_says_why(env: Environment) -> None:
    env.answer = lambda _: Reply(status=400, text="no such model")
    handle = await env.start_query([agent("one")], "agent/one")
    await env.status(handle)
    report, page, _ = await page_of(env, handle)
    assert report.phase == "Failed"
    assert report.root.end and report.root.end.error
    assert report.root.end.error in page.text
    assert page.of_class("failure")


async def test_a_fork_says_which_run_it_continues_and_from_where(env: Environment) -> None:
    env.script(line("one", "first"), line("two", "second", "third"))
    duo = [agent("one"), agent("two"), team("duo", "one", "two", strategy="sequential")]
    run = await env.start_query(duo, "team/duo")
    await env.status(run)
    forked = await fork_run(env.client, run, "1", ForkChanges())
    await env.status(forked)
    _, page, _ = await page_of(env, forked)
    assert page.text.count(f"Forked from {run.id} at 1") == 1


async def test_a_secret_is_in_no_report(env: Environment) -> None:
    env.answer = lambda _: Reply(text=f"The key is {KEY}.")
    parameter = {"name": "token", "value": "value-of-a-parameter"}
    source = {"name": "token", "valueFrom": {"queryParameterRef": {"name": "token"}}}
    one = agent("one", prompt="You are one. {{.token}}", parameters=[source])
    handle = await env.start_query([one], "agent/one", parameters=[parameter])
    await env.status(handle)
    _, _, text = await page_of(env, handle)
    assert KEY not in text
    assert "value-of-a-parameter" not in text


async def test_a_team_without_a_manifest_is_drawn_as_it_has_spoken(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"{speaker_of(request)} speaks.")
    manifests = [team("trio", *"abc", maxTurns=1, onMaxTurns="complete"), *map(agent, "abc")]
    async with env.with_manifests(manifests) as served:
        handle = await served.start("round-robin", {"team": "trio", "input": "Why?"})
        await served.turn_result(handle)
        report, page, _ = await page_of(served, handle)
        assert (report.targets, report.question) == (["team/trio"], "Why?")
        assert [attrs.get("data-speaker") for attrs in page.of_class("agent")] == ["a", "b", "c"]
        assert len(page.of_class("taken")) == 2
        current = await read_report(served.client, handle, served.catalog.catalog)
        assert "the manifests that workers have now" in html_of(current)


@pytest.mark.slow
async def test_a_report_of_a_thousand_turns_has_a_few_megabytes(env: Environment) -> None:
    """In 20 teams: each request of one discussion of that length would hold all that was said before."""
    words = "The figures of the third quarter have been looked at, and there is no reason to wait. " * 12
    env.answer = lambda request: Reply(text=f"{len(env.model.requests)}: {words}")
    pairs = [team(f"pair-{number}", "a", "b", maxTurns=25, onMaxTurns="complete") for number in range(20)]
    targets = [f"team/pair-{number}" for number in range(20)]
    handle = await env.start_query([*pairs, agent("a"), agent("b")], *targets, timeout="1h")
    await env.status(handle)
    report, page, text = await page_of(env, handle)
    assert len([turn for turn in report.turns if turn.end]) == 1_000
    assert page.text.count(words.strip()) == 1_000
    assert len(text.encode()) < 4_000_000


async def test_the_longest_texts_are_truncated_if_all_of_them_are_too_long(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.starter.report.html.MAX_TEXTS", 4_000)
    env.script(line("a", "x" * 20_000), line("b", "short"))
    pair = team("pair", "a", "b", maxTurns=1, onMaxTurns="complete")
    handle = await env.start_query([pair, agent("a"), agent("b")], "team/pair")
    await env.status(handle)
    _, page, text = await page_of(env, handle)
    assert "[truncated: 20,000 characters in total]" in page.text
    assert "short" in page.text
    assert text.count("x") < 6_000


@pytest.mark.slow
def test_the_command_writes_a_file_and_leaves_stdout_to_the_report(machine: UserMachine) -> None:
    started = machine.run("run", "-f", ROOT / "samples" / "brainstorming.yaml")
    assert started.returncode == 0, started.stderr
    machine.wait_until_listed("brainstorming-session")
    written = machine.run("report", "brainstorming-session")
    (file,) = machine.folder.glob("brainstorming-session-*.html")
    assert (written.returncode, written.stdout, written.stderr) == (0, "", f"wrote {file.name}\n")
    runs_nothing(Page(file.read_text()))
    printed = machine.run("report", file.stem, "-o", "-")
    assert "How can we improve our product" in Page(printed.stdout).text
    refused = machine.run("report", file.stem, "-o", "nowhere/report.html")
    assert (refused.returncode, "No such file" in refused.stderr) == (1, True)


@pytest.mark.full
async def test_members_have_the_tokens_and_the_turns_of_the_run(env: Environment) -> None:
    env.answer = answer_nested
    handle = await env.start_query(NESTED, "team/board")
    status = await env.status(handle)
    report, _, _ = await page_of(env, handle)
    assert sum(member.usage.total_tokens for member in report.members.values()) == status.token_usage.total_tokens
    assert sum(member.usage.tool_calls for member in report.members.values()) == status.token_usage.tool_calls
    assert sum(member.turns for member in report.members.values()) == len(
        [turn for turn in report.turns if turn.start.kind != "team"]
    )
    assert {*report.lanes} >= {"desk · buyer", "crowd · north", "closing · judge"}


@pytest.mark.slow
async def test_a_browser_shows_the_file_without_an_error(env: Environment, tmp_path: Path) -> None:
    env.answer = answer_nested
    handle = await env.start_query(NESTED, "team/board", input=HOSTILE)
    await env.status(handle)
    _, _, text = await page_of(env, handle)
    file = tmp_path / "run.html"
    await asyncio.to_thread(file.write_text, text)
    async with running_browser() as browser:
        for width, scheme in ((1_280, "light"), (400, "dark")):
            async with open_page(browser, file.as_uri(), width=width, scheme=scheme) as page:  # type: ignore[arg-type]
                await page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
                style = "getComputedStyle(document.querySelector('article.turn')).borderInlineStartStyle"
                assert await page.evaluate(style) == "solid", "the policy permits the style sheet"
                overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert await page.evaluate(overflow) <= 0, "the page itself is not scrolled sideways"
        async with open_page(browser, file.as_uri()) as page:
            await page.emulate_media(media="print", color_scheme="dark")
            folded = page.locator("details.tool").first
            assert not await folded.evaluate("one => one.open")
            await expect(folded.locator("pre").first).to_be_visible()
            assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 28, 32)"
            if folder := os.environ.get("BATON_REPORTS"):
                await page.screenshot(path=Path(folder, "print.png"), full_page=True)


async def test_an_open_run_with_speakers_at_once_is_reported_without_waiting(env: Environment) -> None:
    env.answer = lambda request: Reply(text=f"{speaker_of(request)} speaks.", hang=speaker_of(request) == "slow")
    crowd = team("crowd", "slow", "fast", strategy="parallel")
    handle = await env.start_query([crowd, agent("slow"), agent("fast")], "team/crowd")
    await env.wait_for_calls(2)
    while not (page := (await page_of(env, handle))[1]).of_class("lit") or "fast speaks." not in page.text:
        await asyncio.sleep(0.05)
    while len(page.of_class("lit")) > 1:  # the end of the turn comes a moment after its message
        report, page, _ = await page_of(env, handle)
    report, page, _ = await page_of(env, handle)
    assert (report.phase, "slow speaks." in page.text) == ("Running", False)
    assert [attrs.get("data-speaker") for attrs in page.of_class("lit")] == ["slow"]
    await handle.signal("cancel")
    await env.status(handle)


@pytest.mark.parametrize(
    "text",
    [
        '{"amount": 2.50}',
        '{"id": 12345678901234567890.123}',
        '{"to": "a", "to": "b"}',
        "[1e400]",
        "[" * 900 + ",".join(["1"] * 16_000) + "]" * 900,
        "[" * 100_000,
        '{"open": ',
    ],
    ids=["digits", "long", "twice", "infinite", "deep", "too-deep", "broken"],
)
def test_json_is_shown_as_it_is_if_indentation_would_change_it_or_make_it_far_longer(text: str) -> None:
    assert pretty(text) == text


@pytest.mark.parametrize("text", ['{"a": [1, "é"]}', '{"a":[1,"\\u00e9"]}'])
def test_other_json_is_indented(text: str) -> None:
    assert pretty(text) == '{\n  "a": [\n    1,\n    "é"\n  ]\n}'
