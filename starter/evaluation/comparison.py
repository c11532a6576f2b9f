"""The comparison of variants: their quality, cost, time and stop reasons, with intervals."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_evals import Dataset
from pydantic_evals.reporting import EvaluationReport

from .baseline import case_name, interval_of_runs, measured
from .intervals import Interval, grouped_interval


class Estimate(BaseModel):
    """A mean with its 95 % confidence interval, over ``values`` values."""

    mean: float
    low: float
    high: float
    values: int

    @classmethod
    def of(cls, interval: Interval) -> "Estimate":
        """The same as a model."""
        return cls(mean=interval.mean, low=interval.low, high=interval.high, values=interval.values)

    def shown(self, digits: int, unit: str = "") -> str:
        """The estimate as text, such as ``0.80 [0.49, 0.94]``."""
        text = f"{unit}{self.mean:.{digits}f}"
        return text if self.low == self.high else f"{text} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class ComparedVariant(BaseModel):
    """What was measured of a variant.

    ``quality`` is the mean of its scores and of its passed assertions, from 0 to 1; None without evaluators. A run that
    has failed has the quality 0. ``cost`` is in US dollars a run, None if the price of no model is known; ``tokens``
    and ``seconds`` are those of a run that has completed. ``evaluations`` are the single ones. ``errors`` are those of
    runs that have failed, without duplicates.
    """

    name: str
    target: str
    runs: int
    failed: int
    quality: Estimate | None = None
    cost: Estimate | None = None
    tokens: Estimate | None = None
    seconds: Estimate | None = None
    stop_reasons: dict[str, int]
    evaluations: dict[str, Estimate]
    errors: list[str] = []


class VariantReport(NamedTuple):
    """A variant with the report of its evaluation."""

    name: str
    target: str
    report: EvaluationReport[Any, Any, Any]


class VariantsComparison(BaseModel):
    """The comparison of variants under an id."""

    id: str
    variants: list[ComparedVariant]


def compare_variants(
    comparison: str, dataset: Dataset[Any, Any, Any], reports: Sequence[VariantReport]
) -> VariantsComparison:
    """What was measured of the variants, which have been asked the cases of a dataset."""
    has_evaluators = bool(dataset.evaluators) or any(case.evaluators for case in dataset.cases)
    variants = [_compared(*one, has_evaluators=has_evaluators) for one in reports]
    return VariantsComparison(id=comparison, variants=variants)


def _compared(
    name: str, target: str, report: EvaluationReport[Any, Any, Any], *, has_evaluators: bool
) -> ComparedVariant:
    qualities: dict[str, list[float]] = defaultdict(list)
    for case in report.cases:
        values = [float(one.value) for one in (*case.assertions.values(), *case.scores.values())]
        # An evaluator that has failed says nothing good of the case.
        values += [0.0] * len(case.evaluator_failures)
        if values:
            qualities[case_name(case)].append(sum(values) / len(values))
    for failure in report.failures:
        qualities[case_name(failure)].append(0.0)
    reasons = Counter(str(case.attributes["stop_reason"]) for case in report.cases)
    if report.failures:
        reasons["failed"] = len(report.failures)
    quality = _quality([*qualities.values()]) if has_evaluators and qualities else None
    cost = interval_of_runs(report, lambda case: case.metrics.get("cost"))
    tokens = interval_of_runs(report, lambda case: case.metrics["input_tokens"] + case.metrics["output_tokens"])
    seconds = interval_of_runs(report, lambda case: case.task_duration)
    return ComparedVariant(
        name=name,
        target=target,
        runs=len(report.cases) + len(report.failures),
        failed=len(report.failures),
        quality=Estimate.of(quality) if quality else None,
        cost=Estimate.of(cost) if cost else None,
        tokens=Estimate.of(tokens) if tokens else None,
        seconds=Estimate.of(seconds) if seconds else None,
        stop_reasons=dict(reasons),
        evaluations={key: Estimate.of(one.interval) for key, one in measured(report).items()},
        errors=[*dict.fromkeys(failure.error_message for failure in report.failures)],
    )


def _quality(groups: Sequence[Sequence[float]]) -> Interval:
    values = {value for group in groups for value in group}
    interval = grouped_interval(groups, shares=values <= {0.0, 1.0})
    if any(value < 0 or value > 1 for value in values):  # scores of other scales
        return interval
    return interval._replace(low=max(0.0, interval.low), high=min(1.0, interval.high))


COLUMNS = ("VARIANT", "RUNS", "QUALITY", "COST", "TOKENS", "SECONDS", "STOPPED")
"""The columns of the table."""


def row_of(variant: ComparedVariant) -> list[str]:
    """The cells of a variant's row."""
    return [
        variant.name,
        str(variant.runs),
        variant.quality.shown(2) if variant.quality else "",
        variant.cost.shown(4, "$") if variant.cost else "",
        variant.tokens.shown(0) if variant.tokens else "",
        variant.seconds.shown(1) if variant.seconds else "",
        ", ".join(f"{count} {reason}" for reason, count in variant.stop_reasons.items()),
    ]
