"""Evaluations: the cases of a dataset as durable queries, evaluators over runs, judges, intervals, baselines."""

import json
import math
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import (
    ArgumentCorrectness,
    EqualsExpected,
    EvaluationResult,
    Evaluator,
    EvaluatorSpec,
    HasMatchingSpan,
    MaxModelRequests,
    ToolCorrectness,
    TrajectoryMatch,
)
from pydantic_evals.evaluators.evaluator import EvaluatorFailure
from pydantic_evals.reporting import (
    EvaluationReport,
    EvaluationReportAdapter,
    ReportCase,
    ReportCaseFailure,
    TableResult,
)

import baton
from baton.evaluation import AgentJudge, MaxCost, Speakers, StoppedWith
from baton.starter.cli.evaluate import is_good, print_report
from baton.starter.cli.options import OutputFormat
from baton.starter.evaluation.baseline import Regression, add_intervals, compare_with_baseline
from baton.starter.evaluation.comparison import VariantReport, compare_variants
from baton.starter.evaluation.evaluators import read_verdict
from baton.starter.evaluation.intervals import amount_interval, grouped_interval, mean_interval, share_interval
from baton.testing import Reply, Request
from tests.harness.environment import Environment, agent, call, line
from tests.harness.user_machine import UserMachine


def connection(env: Environment) -> baton.Connection:
    return baton.connect(client=env.client, task_queue=env.task_queue)


def dataset(*questions: str, evaluators: list[Evaluator[Any, Any, Any]] | None = None) -> Dataset[Any, Any, Any]:
    cases = [Case(name=f"case {text}", inputs=text, expected_output=text.upper()) for text in questions]
    return Dataset(name="letters", cases=cases, evaluators=evaluators or [EqualsExpected()])


def shout(request: Request) -> Reply:
    return Reply(text=request["messages"][-1]["content"].upper())


SHOUTER = baton.Agent("shouter", prompt="You are shouter.")


async def test_each_case_is_a_run_and_the_report_is_that_of_pydantic_evals(env: Environment) -> None:
    env.answer = lambda request: Reply(text="?") if "b" in request["messages"][-1]["content"] else shout(request)
    async with connection(env) as opened:
        report = await baton.evaluate(dataset("a", "b", "c"), SHOUTER, id="letters-1", connection=opened)
        passed = {case.name: case.assertions["EqualsExpected"].value for case in report.cases}
        assert passed == {"case a": True, "case b": False, "case c": True}
        runs = [case.attributes["run"] for case in report.cases]
        assert all(run.startswith("letters-1-case-") for run in runs)
        assert (await (await opened.attach(runs[0])).result()).message == "A"
    assert report.cases[0].metrics["requests"] == 1
    assert report.experiment_metadata
    assert report.experiment_metadata["evaluation"] == "letters-1"
    again = EvaluationReportAdapter.validate_json(EvaluationReportAdapter.dump_json(report))
    assert again.cases[0].output == "A"
    table = report.analyses[0].model_dump()
    (row,) = [row for row in table["rows"] if row[0] == "EqualsExpected"]
    assert row[1:3] == [3, round(2 / 3, 4)]


@pytest.mark.full
async def test_an_evaluation_that_is_started_again_pays_for_what_was_changed_alone(env: Environment) -> None:
    env.answer = shout
    async with connection(env) as opened:
        await baton.evaluate(dataset("a", "b"), SHOUTER, id="again", connection=opened)
        assert len(env.model.requests) == 2
        report = await baton.evaluate(dataset("a", "b", "c"), SHOUTER, id="again", connection=opened)
        assert len(env.model.requests) == 3, "the new case alone"
        assert [case.output for case in report.cases] == ["A", "B", "C"]
        changed = baton.Agent("shouter", prompt="You are another shouter.")
        await baton.evaluate(dataset("a", "b", "c"), changed, id="again", connection=opened)
        assert len(env.model.requests) == 6, "the prompt is another one"


@pytest.mark.full
async def test_repeats_are_runs_of_their_own_and_at_most_so_many_run_at_once(env: Environment) -> None:
    most = 0

    def answer(request: Request) -> Reply:
        nonlocal most
        most = max(most, sum(not each.answered for each in env.model.requests))
        return Reply(text="A", delay=0.05)

    env.answer = answer
    async with connection(env) as opened:
        options: dict[str, Any] = {"id": "repeats", "repeat": 3, "max_concurrency": 2, "connection": opened}
        report = await baton.evaluate(dataset("a", "b"), SHOUTER, **options)
        assert len(env.model.requests) == 6
        assert most <= 2
        assert len({case.attributes["run"] for case in report.cases}) == 6
        await baton.evaluate(dataset("a", "b"), SHOUTER, **options)
        assert len(env.model.requests) == 6
    groups = report.case_groups()
    assert groups
    assert {group.name: len(group.runs) for group in groups} == {"case a": 3, "case b": 3}


async def test_evaluators_see_what_was_said_and_done_before_a_retry_once(env: Environment) -> None:
    calculates = call("calculator", expression="1 + 1")
    fails = {"status": 400, "text": "no"}
    env.script(line("one", calculates, "It is 2."), line("two", calculates, fails, fails))
    members = [baton.Agent(name, prompt=f"You are {name}.", tools=["calculator"]) for name in ("one", "two")]
    pair: baton.Team[str] = baton.Team("pair", strategy="sequential", members=members)
    async with connection(env) as opened:
        questions = dataset("x", evaluators=[Speakers(["one", "two"], "exact")])
        report = await baton.evaluate(questions, pair, id="retried", connection=opened)
        run = f"{report.failures[0].error_message.split()[3]}"
        with pytest.raises(baton.RunFailed):
            await (await opened.retry(run)).result()
        env.script(line("two", "", "Fine."))
        await (await opened.retry(run)).result()
        report = await baton.evaluate(questions, pair, id="retried", connection=opened)
    (case,) = report.cases
    assert [one.value for one in case.assertions.values()] == [True]
    assert case.attributes["messages"] == [{"speaker": "one", "text": "It is 2."}, {"speaker": "two", "text": "Fine."}]
    assert [made["speaker"] for made in case.attributes["tool_calls"]] == ["one", "two"]
    assert {name: case.metrics[name] for name in ("requests", "tool_calls", "turns")} == {
        "requests": 4,
        "tool_calls": 2,
        "turns": 2,
    }


async def test_evaluators_see_who_spoke_the_tools_their_arguments_and_the_spans(env: Environment) -> None:
    env.script(line("one", call("calculator", expression="1 + 1"), "It is 2."), line("two", "Fine."))
    two = [baton.Agent("one", prompt="You are one.", tools=["calculator"]), baton.Agent("two", prompt="You are two.")]
    pair: baton.Team[str] = baton.Team("pair", strategy="sequential", members=two)
    evaluators: list[Evaluator[Any, Any, Any]] = [
        Speakers(["one", "two"], "exact"),
        StoppedWith(["completed"]),
        ToolCorrectness(["calculator"]),
        TrajectoryMatch(["calculator"], order="exact"),
        ArgumentCorrectness("calculator", {"expression": "1 + 1"}),
        MaxModelRequests(3),
        HasMatchingSpan({"name_equals": "invoke_agent one", "some_descendant_has": {"name_contains": "execute_tool"}}),
        MaxCost(1.0),
    ]
    async with connection(env) as opened:
        report = await baton.evaluate(dataset("x", evaluators=evaluators), pair, connection=opened)
    (case,) = report.cases
    assert not case.evaluator_failures
    failed = {name: one.reason for name, one in case.assertions.items() if not one.value}
    assert failed == {"MaxCost": "the price of no model is known"}
    assert case.scores["TrajectoryMatch"].value == 1.0
    assert case.attributes["tool_calls"][0]["arguments"] == '{"expression": "1 + 1"}'
    assert case.metrics["turns"] == 2, "of a team"


async def test_a_judge_is_a_run_that_is_asked_once(env: Environment) -> None:
    asked = Counter[str]()
    asked_texts: list[str] = []

    def answer(request: Request) -> Reply:
        asked_texts.append(request["messages"][-1]["content"])
        asked[(system := request["messages"][0]["content"].split()[0])] += 1
        verdict = {"reason": "It is loud.", "passed": True, "score": 0.75}
        return Reply(text=json.dumps(verdict)) if system == "Judging." else shout(request)

    env.answer = answer
    judge = baton.Agent("strict", prompt="Judging.")
    judged = dataset("a", evaluators=[AgentJudge("Is it loud?", agent="strict")])
    options: dict[str, Any] = {"id": "judged", "judges": [judge]}
    async with connection(env) as opened:
        for _ in range(2):
            report = await baton.evaluate(judged, SHOUTER, connection=opened, **options)
            (case,) = report.cases
            assert (case.assertions["judge_passed"].value, case.scores["judge_score"].value) == (True, 0.75)
            assert case.assertions["judge_passed"].reason == "It is loud."
    assert asked == {"You": 1, "Judging.": 1}
    (text,) = [one for one in asked_texts if "Criteria" in one]
    assert "<Criteria>\nIs it loud?\n</Criteria>" in text
    assert "<Answer>\nA\n</Answer>" in text


async def test_a_verdict_has_the_same_name_whatever_else_the_judge_answers(env: Environment) -> None:
    def answer(request: Request) -> Reply:
        text = request["messages"][-1]["content"]
        verdict = {"passed": False} if "<Answer>\nA\n" in text else {"score": 0.5}
        return Reply(text=json.dumps(verdict)) if "Criteria" in text else shout(request)

    env.answer = answer
    evaluators: list[Evaluator[Any, Any, Any]] = [
        AgentJudge("Is it loud?"),
        AgentJudge("Is it polite?", evaluation_name="tone"),
    ]
    async with connection(env) as opened:
        report = await baton.evaluate(dataset("a", "b", evaluators=evaluators), SHOUTER, connection=opened)
    a, b = report.cases
    assert ({*a.assertions}, {*a.scores}) == ({"judge_passed", "tone_passed"}, set())
    assert ({*b.assertions}, {*b.scores}) == (set(), {"judge_score", "tone_score"})


async def test_a_failed_run_is_among_the_failures_and_a_judge_without_a_verdict_among_those_of_evaluators(
    env: Environment,
) -> None:
    def answer(request: Request) -> Reply:
        text = request["messages"][-1]["content"]
        return Reply(status=400) if text == "b" else Reply(text="no verdict" if "Criteria" in text else "A")

    env.answer = answer
    judged = dataset("a", "b", evaluators=[AgentJudge("Is it loud?", agent="strict")])
    judge = baton.Agent("strict", prompt="Judging.")
    async with connection(env) as opened:
        report = await baton.evaluate(judged, SHOUTER, connection=opened, judges=[judge])
    assert [failure.name for failure in report.failures] == ["case b"]
    assert "failed" in report.failures[0].error_message
    (failure,) = report.cases[0].evaluator_failures
    assert "no verdict" in failure.error_message


async def test_a_case_that_cannot_run_is_an_error_before_anything_is_paid_for(env: Environment) -> None:
    wrong = Dataset(name="wrong", cases=[Case(inputs="a"), Case(inputs=7)])
    async with connection(env) as opened:
        with pytest.raises(TypeError, match="case 2: input is a number"):
            await baton.evaluate(wrong, SHOUTER, connection=opened)
    assert env.model.requests == []


def test_verdicts_are_read_from_answers() -> None:
    assert read_verdict('```json\n{"score": 0.5, "reason": "x"}\n```').score == 0.5
    for answer in ("yes", '{"reason": "x"}', '{"score": 7}'):
        with pytest.raises(ValueError, match="judge's answer"):
            read_verdict(answer)


def test_intervals_are_those_of_the_textbooks() -> None:
    assert [round(one, 3) for one in share_interval(8, 10)[:3]] == [0.8, 0.49, 0.943]
    assert [round(one, 2) for one in mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])[:3]] == [3.0, 1.04, 4.96]
    assert amount_interval([[0.1, 0.2, 1.4]]).low == 0, "no run takes less than no time"
    two = mean_interval([0.0, 1.0])
    assert math.isclose(two.high - two.mean, 12.706 * 0.5, rel_tol=1e-3)
    repeated = grouped_interval([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], shares=True)
    assert (repeated.mean, repeated.low, repeated.high, repeated.values) == (0.5, 0.0, 1.0, 6)


def test_repeats_of_a_case_do_not_narrow_the_intervals_of_cost_tokens_turns_and_seconds() -> None:
    used = {"one": 10.0, "two": 20.0, "three": 60.0}
    cases = [
        completed(name, repeat, metrics=dict.fromkeys(("cost", "input_tokens", "output_tokens", "turns"), amount))
        for name, amount in used.items()
        for repeat in range(5)
    ]
    for case in cases:
        case.task_duration = case.metrics["cost"]
    report = report_of(*cases)
    add_intervals(report)
    rows = {row[0]: row[1:] for row in report.analyses[0].model_dump()["rows"]}
    independent = mean_interval([*used.values()])
    expected = [15, 30, 0, round(independent.high, 4)]
    assert {name: rows[name] for name in ("cost", "output_tokens", "turns", "seconds")} == dict.fromkeys(
        ("cost", "output_tokens", "turns", "seconds"), expected
    )
    (variant,) = compare_variants("c", dataset("a"), [VariantReport("small", "agent/one", report)]).variants
    assert variant.cost
    assert variant.tokens
    assert variant.seconds
    assert variant.cost == variant.seconds
    assert (variant.cost.low, variant.cost.high, variant.cost.values) == (0, independent.high, 15)
    assert variant.tokens.high == 2 * independent.high


def test_repeats_that_have_all_passed_have_an_interval_by_the_number_of_their_cases() -> None:
    passed = grouped_interval([[1.0] * 3, [1.0] * 3], shares=True)
    assert passed == share_interval(2, 2)._replace(values=6)
    assert passed.low < 0.4
    half = grouped_interval([[1.0, 0.0], [0.0, 1.0]], shares=True)
    assert half == share_interval(1, 2)._replace(values=4)


CASES = {
    "name": "letters",
    "evaluators": ["EqualsExpected", {"Speakers": ["shouter"]}],
    "cases": [{"name": text, "inputs": text, "expected_output": text.upper()} for text in "abc"],
}


def write_cases(folder: Path, **changes: Any) -> Path:
    file = folder / "cases.yaml"
    file.write_text(yaml.safe_dump({**CASES, **changes}))
    return file


@pytest.mark.full
def test_the_command_prints_a_table_saves_a_baseline_and_ends_with_2_on_a_regression(machine: UserMachine) -> None:
    machine.model._answer = shout
    cases, manifests = write_cases(machine.folder), machine.write(agent("shouter"))
    done = machine.run("eval", "-f", cases, "-f", manifests, "--id", "first", "--save", "baseline.json")
    assert done.returncode == 0
    assert "Evaluation Summary" in done.stdout
    assert "95 % confidence intervals" in done.stdout
    assert len(machine.model.requests) == 3
    again = machine.run("eval", "-f", cases, "-f", manifests, "--id", "first", "-o", "json")
    assert len(machine.model.requests) == 3, "nothing is paid for twice"
    assert [case["output"] for case in json.loads(again.stdout)["cases"]] == ["A", "B", "C"]
    same = machine.run("eval", "-f", cases, "-f", manifests, "--id", "second", "--baseline", "baseline.json")
    assert (same.returncode, "no regression" in same.stderr) == (0, True)
    machine.model._answer = lambda request: Reply(text="A")
    worse = machine.run("eval", "-f", cases, "-f", manifests, "--id", "third", "--baseline", "baseline.json")
    assert worse.returncode == 2
    assert "regression: EqualsExpected fell from 1.000 to 0.333: b, c" in worse.stderr
    tolerated = ("--baseline", "baseline.json", "--tolerance", "0.7")
    assert machine.run("eval", "-f", cases, "-f", manifests, "--id", "third", *tolerated).returncode == 0


@pytest.mark.slow
def test_a_report_is_saved_although_nobody_reads_what_is_printed(machine: UserMachine) -> None:
    machine.model._answer = shout
    cases, manifests = write_cases(machine.folder), machine.write(agent("shouter"))
    with machine.start("eval", "-f", cases, "-f", manifests, "--save", "report.json") as process:
        assert process.stdout
        process.stdout.close()
        process.wait()
    saved = json.loads((machine.folder / "report.json").read_text())
    assert [case["output"] for case in saved["cases"]] == ["A", "B", "C"]


def test_mistakes_in_files_are_named_before_anything_is_paid_for(machine: UserMachine) -> None:
    manifests = machine.write(agent("one"), agent("two"))
    for changes, told in (
        ({"evaluators": ["Nothing"]}, "Nothing"),
        ({"evaluators": [{"Speakers": [["one"]]}]}, "Speakers needs a list of names"),
        ({"cases": []}, "has no cases"),
        ({"cases": [{"name": "late", "inputs": 42}]}, "cases.yaml: case late: input is a number, must be"),
        (
            {"cases": [{"inputs": "a"}, {"inputs": {"day": date(2026, 1, 31)}}]},
            "cases.yaml: case 2: input can't be written as JSON: Object of type date",
        ),
        ({}, "name the target, such as team/NAME; the files have: agent/one, agent/two"),
    ):
        target = () if "agent/one" in told else ("agent/one",)
        done = machine.run("eval", *target, "-f", write_cases(machine.folder, **changes), "-f", manifests)
        assert done.returncode == 1
        assert told in " ".join(done.stderr.split())
    cases = write_cases(machine.folder)
    done = machine.run("eval", "agent/one", "-f", cases, "-f", manifests, "--save", "no-folder/report.json")
    assert (done.returncode, "no-folder/report.json can't be written" in done.stderr) == (1, True)
    assert "one file must have the cases, and none has them" in machine.run("eval", "-f", manifests).stderr
    assert machine.model.requests == []


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar(machine: UserMachine) -> None:
    machine.model._answer = shout
    cases, manifests = write_cases(machine.folder), machine.write(agent("shouter"))
    terminal = machine.terminal("eval", "agent/shouter", "-f", cases, "-f", manifests, "--id", "shown")
    terminal.wait_for("100%")
    assert terminal.end() == 0


async def test_a_run_that_is_started_once_is_not_started_again_after_its_end(env: Environment) -> None:
    env.answer = shout
    async with connection(env) as opened:
        first = await opened.run(SHOUTER, "a", id="once-a", once=True)
        again = await opened.run(SHOUTER, "a", id="once-a", once=True)
        assert (first.message, again.message, len(env.model.requests)) == ("A", "A", 1)
        await opened.run(SHOUTER, "a", id="once-a")
        assert len(env.model.requests) == 2
        with pytest.raises(TypeError, match="once needs an id"):
            await opened.start(SHOUTER, "a", once=True)


SOURCE = EvaluatorSpec(name="Check", arguments=None)


def result_of(name: str, value: Any, reason: str = "") -> EvaluationResult[Any]:
    return EvaluationResult(name=name, value=value, reason=reason, source=SOURCE)


def completed(
    name: str,
    repeat: int = 0,
    *,
    reason: str = "",
    evaluator_has_failed: bool = False,
    metrics: dict[str, float] | None = None,
    **results: bool | float,
) -> ReportCase:
    """A repeat of a case whose run has completed, and for which evaluators give ``results``, or one has failed.

    Without ``results``, there is the assertion ``check``.
    """
    failures = [EvaluatorFailure(name="check", error_message=reason, error_stacktrace="", source=SOURCE)]
    found = {} if evaluator_has_failed else results or {"check": True}
    assertions = {name: result_of(name, value, reason) for name, value in found.items() if isinstance(value, bool)}
    scores = {name: result_of(name, value, reason) for name, value in found.items() if name not in assertions}
    return ReportCase(
        name=f"{name} [{repeat}]",
        source_case_name=name,
        inputs="Why?",
        metadata=None,
        expected_output=None,
        output="So.",
        metrics=metrics or {},
        attributes={"stop_reason": "completed"},
        scores=scores,
        labels={},
        assertions=assertions,
        task_duration=1.0,
        total_duration=1.0,
        evaluator_failures=failures if evaluator_has_failed else [],
    )


def failed(name: str, repeat: int = 0) -> ReportCaseFailure:
    """A repeat of a case whose run has failed."""
    return ReportCaseFailure(
        name=f"{name} [{repeat}]",
        source_case_name=name,
        inputs="Why?",
        metadata=None,
        expected_output=None,
        error_message="it has failed",
        error_stacktrace="",
    )


def report_of(*cases: ReportCase | ReportCaseFailure) -> EvaluationReport[Any, Any, Any]:
    return EvaluationReport(
        name="letters",
        cases=[one for one in cases if isinstance(one, ReportCase)],
        failures=[one for one in cases if isinstance(one, ReportCaseFailure)],
    )


def test_more_failed_repeats_of_a_case_than_in_the_baseline_are_a_regression(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = report_of(*(completed("late", repeat) for repeat in range(3)), failed("late", 3))
    half = report_of(completed("late"), completed("late", 1), failed("late", 2), failed("late", 3))
    assert compare_with_baseline(half, before).regressions == (Regression("completed runs", 0.75, 0.5, ("late",)),)
    none = report_of(*(failed("late", repeat) for repeat in range(4)))
    assert compare_with_baseline(none, before).regressions == (Regression("completed runs", 0.75, 0.0, ("late",)),)
    assert not is_good(none, before, 0.0)
    assert compare_with_baseline(before, half).regressions == ()
    capsys.readouterr()
    assert not is_good(before, half, 0.0), "a run has failed"
    assert "no regression, but 1 run has failed" in capsys.readouterr().err


def test_one_case_of_many_that_fails_in_all_repeats_is_a_regression_and_one_repeat_is_chance() -> None:
    def repeated(passed: int) -> EvaluationReport[Any, Any, Any]:
        """Ten cases with five repeats, of which the first case has passed so many."""
        others = [completed(f"case-{number}", repeat) for number in range(1, 10) for repeat in range(5)]
        return report_of(*(completed("case-0", repeat, check=repeat < passed) for repeat in range(5)), *others)

    (regression,) = compare_with_baseline(repeated(0), repeated(5)).regressions
    assert regression == Regression("check", 1.0, pytest.approx(0.9), ("case-0",))  # type: ignore[arg-type]
    chance = compare_with_baseline(repeated(4), repeated(5))
    assert chance == ((), ("within chance: check fell from 1.000 to 0.980: case-0",))


def test_more_failures_of_an_evaluator_than_in_the_baseline_are_a_regression() -> None:
    before = report_of(completed("late"), completed("late", 1, evaluator_has_failed=True))
    now = report_of(*(completed("late", repeat, evaluator_has_failed=True) for repeat in range(2)))
    (regression,) = compare_with_baseline(now, before).regressions
    assert regression == Regression("check (the evaluator has failed)", 0.5, 0.0, ("late",))
    assert compare_with_baseline(before, now).regressions == ()


def test_an_evaluation_that_is_missing_more_often_than_in_the_baseline_is_noted() -> None:
    both: dict[str, Any] = {"judge_passed": True, "judge_score": 0.9}
    before = report_of(*(completed(name, repeat, **both) for name in ("late", "lost") for repeat in range(2)))
    now = report_of(
        completed("late", 0, **both),
        completed("late", 1, judge_score=0.9),
        *(completed("lost", repeat, judge_passed=True) for repeat in range(2)),
    )
    assert compare_with_baseline(now, before) == (
        (),
        (
            "judge_passed is missing more often than in the baseline: late",
            "judge_score is missing more often than in the baseline: lost",
        ),
    )
    assert compare_with_baseline(before, now) == ((), ())


def test_an_assertion_of_one_case_does_not_replace_the_score_of_another() -> None:
    before = report_of(completed("late", check=0.9), completed("lost", check=True))
    now = report_of(completed("late", check=0.1), completed("lost", check=True))
    (regression,) = compare_with_baseline(now, before).regressions
    assert (regression.before, round(regression.now, 2), regression.cases) == (0.95, 0.55, ("late",))


def test_nothing_that_a_judge_or_a_service_has_said_is_a_command_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "so\x1b]0;owned\x07\x9b2J\u202e"
    report = report_of(completed("late", reason=text), completed(text, reason=text, evaluator_has_failed=True))
    report.analyses.append(TableResult(title=text, columns=[text], rows=[[text]]))
    for earlier in (None, report):
        print_report(report, earlier, OutputFormat.text)
        printed = capsys.readouterr().out
        assert {each for each in printed if each != "\n" and not each.isprintable()} == set()
        assert "so␛]0;owned␇" in printed
