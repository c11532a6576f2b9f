"""Compares a report with an earlier one, the baseline: which evaluations have become worse."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import fmean
from typing import Any, NamedTuple

from pydantic_evals.reporting import EvaluationReport, ReportCase, ReportCaseFailure, TableResult

from .intervals import Interval, amount_interval, grouped_interval, mean_interval

Report = EvaluationReport[Any, Any, Any]

INTERVALS = "Means with 95 % confidence intervals"
"""The title of the table of intervals among the analyses of a report."""


class Measured(NamedTuple):
    """The values of one evaluation, by case, each with those of its repeats; an assertion is 1 or 0.

    ``is_share``: all values are assertions.
    """

    is_share: bool
    values: dict[str, list[float]]

    @property
    def interval(self) -> Interval:
        """The mean over the cases."""
        return grouped_interval([*self.values.values()], shares=self.is_share)


def measured(report: Report) -> dict[str, Measured]:
    """The evaluations of a report by name: assertions and scores.

    An evaluator may return an assertion for one case and a score for another: both are values of its evaluation. A case
    whose run has failed has neither: see ``compare_with_baseline``.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    scores: set[str] = set()
    for case in report.cases:
        scores.update(case.scores)
        for name, result in (*case.assertions.items(), *case.scores.items()):
            found[name][case_name(case)].append(float(result.value))
    return {name: Measured(name not in scores, dict(values)) for name, values in sorted(found.items())}


def case_name(case: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any]) -> str:
    """The name of a case, without the number of its repeat."""
    return case.source_case_name or case.name


Amount = Callable[[ReportCase[Any, Any, Any]], float | None]
"""What is read of a completed run, such as its cost; None if that is not known."""


def interval_of_runs(report: Report, amount: Amount) -> Interval | None:
    """The mean of an amount over the completed runs; None if it is known of none."""
    values: dict[str, list[float]] = defaultdict(list)
    for case in report.cases:
        if (value := amount(case)) is not None:
            values[case_name(case)].append(value)
    return amount_interval([*values.values()]) if values else None


def add_intervals(report: Report) -> None:
    """Adds the table of intervals to the analyses of a report."""
    rows: list[list[str | int | float | bool | None]] = []
    found = {name: one.interval for name, one in measured(report).items()}
    amounts: dict[str, Amount] = {
        "cost": lambda case: case.metrics.get("cost"),
        "output_tokens": lambda case: case.metrics.get("output_tokens"),
        "turns": lambda case: case.metrics.get("turns"),
        "seconds": lambda case: case.task_duration,
    }
    for name, amount in amounts.items():
        if of_runs := interval_of_runs(report, amount):
            found[name] = of_runs
    for name, interval in found.items():
        low, high = round(interval.low, 4), round(interval.high, 4)
        rows.append([name, interval.values, round(interval.mean, 4), low, high])
    if rows:
        columns = ["evaluation", "runs", "mean", "low", "high"]
        report.analyses.append(TableResult(title=INTERVALS, columns=columns, rows=rows))


class Regression(NamedTuple):
    """A fall of one evaluation; ``cases`` are those that fell, the deepest fall first."""

    evaluation: str
    before: float
    now: float
    cases: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(self.cases[:5]) + (", …" if len(self.cases) > 5 else "")
        return f"{self.evaluation} fell from {self.before:.3f} to {self.now:.3f}: {shown}"


class Comparison(NamedTuple):
    """The comparison with a baseline: what is a regression, and remarks."""

    regressions: tuple[Regression, ...]
    notes: tuple[str, ...]


def compare_with_baseline(report: Report, baseline: Report, tolerance: float = 0.0) -> Comparison:
    """The evaluations whose mean over the cases of both reports has fallen by more than ``tolerance``.

    With repeats in both, a fall also has to be outside of chance: greater than the 95 % interval of the difference that
    the repeats of each case give. A greater share of failed runs of a case, or of runs for which an evaluator has
    failed, is a regression of its own.
    """
    before, now = measured(baseline), measured(report)
    runs_before, runs = (Counter(map(case_name, one.cases)) for one in (baseline, report))
    regressions: list[Regression] = []
    notes: list[str] = []
    for name, earlier in before.items():
        current = now.get(name)
        common = [case for case in earlier.values if current and case in current.values]
        if current is None or not common:
            notes.append(f"{name} is in the baseline alone")
            continue
        # A judge may leave out a verdict that it has given before: those cases are not compared.
        lacking = [
            case
            for case, values in earlier.values.items()
            if case in runs and len(current.values.get(case, ())) / runs[case] < len(values) / runs_before[case]
        ]
        if lacking:
            notes.append(f"{name} is missing more often than in the baseline: {', '.join(sorted(lacking))}")
        falls = {case: fmean(earlier.values[case]) - fmean(current.values[case]) for case in common}
        fall = fmean(falls.values())
        if fall <= tolerance + 1e-9:
            continue
        worse = tuple(sorted((case for case in common if falls[case] > 0), key=lambda case: -falls[case]))
        found = Regression(
            name,
            fmean(fmean(earlier.values[case]) for case in common),
            fmean(fmean(current.values[case]) for case in common),
            worse,
        )
        if _is_chance(earlier, current, common):
            notes.append(f"within chance: {found}")
        else:
            regressions.append(found)
    failures_before = _failures(baseline)
    for what, shares in _failures(report).items():
        shares_before = failures_before.get(what, {})
        rises = {case: share - shares_before.get(case, 0.0) for case, share in shares.items()}
        worse = tuple(sorted((case for case in rises if rises[case] > 0), key=lambda case: -rises[case]))
        if worse:
            before_mean = fmean(1 - shares_before.get(case, 0.0) for case in worse)
            regressions.append(Regression(what, before_mean, fmean(1 - shares[case] for case in worse), worse))
    if missing := sorted(_cases(baseline) - _cases(report)):
        notes.append(f"cases in the baseline alone: {', '.join(missing)}")
    return Comparison(tuple(regressions), tuple(notes))


def _failures(report: Report) -> dict[str, dict[str, float]]:
    """The shares of failed runs, and of runs for which an evaluator has failed, by case; only of those with one."""
    runs = Counter(map(case_name, report.cases)) + Counter(map(case_name, report.failures))
    failed: dict[str, Counter[str]] = defaultdict(Counter)
    for failure in report.failures:
        failed["completed runs"][case_name(failure)] += 1
    for case in report.cases:
        for one in case.evaluator_failures:
            failed[f"{one.name} (the evaluator has failed)"][case_name(case)] += 1
    return {what: {case: count / runs[case] for case, count in counts.items()} for what, counts in failed.items()}


def _cases(report: Report) -> set[str]:
    return {case_name(case) for case in report.cases} | {case_name(failed) for failed in report.failures}


def _is_chance(earlier: Measured, current: Measured, common: list[str]) -> bool:
    """Whether a fall may be chance: both reports have repeats, and the interval of the difference includes 0."""
    if any(len(one.values[case]) < 2 for one in (earlier, current) for case in common):
        return False
    # The cases are the same in both reports, so only their repeats vary, and not which cases were drawn.
    intervals = [mean_interval(one.values[case]) for one in (earlier, current) for case in common]
    half = math.hypot(*(interval.high - interval.mean for interval in intervals)) / len(common)
    fall = fmean(fmean(earlier.values[case]) - fmean(current.values[case]) for case in common)
    return fall <= half
