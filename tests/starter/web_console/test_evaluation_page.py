"""The report of an evaluation in the console: read from a file, compared with a baseline, whatever is in it."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Contains
from pydantic_evals.reporting import EvaluationReportAdapter

import baton
from baton.starter.evaluation.baseline import compare_with_baseline
from baton.testing import Reply
from tests.harness.browser import findings, open_page
from tests.harness.environment import Environment, Json
from tests.harness.gateway import GatewayServer

pytestmark = pytest.mark.full

HOSTILE = "<img src=x onerror=alert(1)> \u202etxt"


async def report_of(env: Environment, id_: str, answers: Mapping[str, str | None]) -> str:
    """The report of an evaluation as JSON, whose agent answers the question of each case so; None is a failed run."""

    def answer(request: Json) -> Reply:
        text = answers[request["messages"][-1]["content"]]
        return Reply(status=400) if text is None else Reply(text=text)

    env.answer = answer
    cases = [Case(name=f"{question} {HOSTILE}", inputs=question) for question in answers]
    dataset = Dataset(name=HOSTILE, cases=cases, evaluators=[Contains("yes")])
    async with baton.connect(client=env.client, task_queue=env.task_queue) as connection:
        report = await baton.evaluate(
            dataset, baton.Agent("writer", prompt="You are writer."), id=id_, connection=connection
        )
    return EvaluationReportAdapter.dump_json(report).decode()


async def test_a_baseline_is_compared_as_in_the_terminal_also_where_runs_have_failed(
    browser: Browser, gateway: GatewayServer, tmp_path: Path
) -> None:
    reports = {
        "earlier": await report_of(gateway.env, "earlier", {"a": "yes", "b": "yes", "gone": "no"}),
        "later": await report_of(gateway.env, "later", {"a": "yes", "b": None, "new": "no"}),
        "failed": await report_of(gateway.env, "failed", {"a": None, "b": None}),
    }
    for name, text in reports.items():
        (tmp_path / f"{name}.json").write_text(text)
    read = {name: EvaluationReportAdapter.validate_json(text) for name, text in reports.items()}
    async with open_page(browser, f"{gateway.url}/#/evaluation") as page:
        changes = page.get_by_role("region", name="Means of both reports")
        for now, baseline in [
            ("later", "earlier"),
            ("failed", "earlier"),
            ("earlier", "later"),
            ("later", "failed"),
        ]:
            await page.get_by_label("Report", exact=True).set_input_files(tmp_path / f"{now}.json")
            await page.get_by_label("Baseline, if").set_input_files(tmp_path / f"{baseline}.json")
            compared = compare_with_baseline(read[now], read[baseline])
            worse = changes.get_by_role("row").filter(has_text="worse")
            await expect(worse).to_have_count(len(compared.regressions))
            for row, found in enumerate(compared.regressions):
                means = f"{found.evaluation}{found.before:.3f}{found.now:.3f}worse"
                await expect(worse.nth(row)).to_contain_text(means)
                for case in found.cases:
                    await expect(worse.nth(row)).to_contain_text(case.partition(" ")[0])
        await expect(page.get_by_text("No case of both reports has an evaluation in common.")).to_be_visible()


async def test_a_report_is_shown_with_its_cases_and_what_has_become_worse(
    browser: Browser, gateway: GatewayServer, tmp_path: Path
) -> None:
    before = await report_of(gateway.env, "before", {"a": "yes", "b": "yes"})
    now = await report_of(gateway.env, "now", {"a": "yes", "b": HOSTILE})
    files = {"before": before, "now": now, "broken": "{}"}
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text)
    async with open_page(browser, f"{gateway.url}/#/evaluation", width=400) as page:
        await expect(page.get_by_text("No report yet")).to_be_visible()
        chosen = page.get_by_label("Report")
        await chosen.set_input_files(tmp_path / "broken.json")
        await expect(page.get_by_role("alert")).to_have_text('broken.json is not a report: it has no list "cases".')
        await chosen.set_input_files(tmp_path / "now.json")
        await expect(page.get_by_role("link", name="Its run")).to_have_count(2)
        await expect(page.get_by_text("does not hold")).to_have_count(1)
        await page.get_by_label("Baseline").set_input_files(tmp_path / "before.json")
        changes = page.get_by_role("region", name="Means of both reports")
        await expect(changes.get_by_role("row").last).to_contain_text("1.0000.500worse")
        await page.get_by_text("Answer").last.click()
        assert await findings(page) == []
        assert await page.locator("main img").count() == 0
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        await page.get_by_role("link", name="Its run").first.click()
        run = json.loads(now)["cases"][0]["attributes"]["run"]
        await page.wait_for_url(f"**/#/runs/{run}")
