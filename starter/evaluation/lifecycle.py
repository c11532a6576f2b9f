"""Gives the evaluators of a case its run: its id, its attributes and metrics, and its spans."""

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pydantic_evals import Case, CaseLifecycle
from pydantic_evals.evaluators import EvaluatorContext
from pydantic_evals.reporting import ReportCase, ReportCaseFailure
from rich.progress import Progress

from .evaluators import RUN
from .event_rules import RunFacts
from .trajectory import Trajectory


@dataclass
class CurrentCase:
    """One repeat of a case: its name, its id, the id of its run, and the run's trajectory once it has ended.

    The ids of the runs of judges and services begin with ``id``. ``run_id`` is None for an answer without a run. Of an
    evaluation of ARK, and of a fork, ``question`` is that of the evaluated query; ``facts`` are what rules of ARK read
    of its run.
    """

    name: str
    id: str
    run_id: str | None = None
    trajectory: Trajectory | None = None
    question: str | None = None
    facts: RunFacts | None = None


CURRENT_CASE: ContextVar[CurrentCase] = ContextVar("CURRENT_CASE")
"""The case of the current task: pydantic-evals passes a task the inputs alone."""


class RunLifecycle(CaseLifecycle[Any, Any, Any]):
    """The lifecycle of one repeat of a case."""

    def __init__(self, case: Case[Any, Any, Any], current: CurrentCase, bar: Progress | None) -> None:
        super().__init__(case)
        self._current = current
        self._bar = bar

    async def setup(self) -> None:
        """Makes it the current case."""
        CURRENT_CASE.set(self._current)

    async def prepare_context(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorContext[Any, Any, Any]:
        """The context with what happened in the run; the duration is that of the run, not of waiting for it."""
        trajectory = self._current.trajectory
        if trajectory is None:  # of an answer without a run
            return ctx
        question = self._current.question
        return replace(
            ctx,
            inputs=ctx.inputs if question is None else question,
            attributes={**ctx.attributes, RUN: self._current.run_id, **trajectory.attributes},
            metrics={**ctx.metrics, **trajectory.metrics},
            duration=trajectory.seconds,
            _span_tree=trajectory.spans,
        )

    async def teardown(self, result: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any] | None) -> None:
        """Advances the progress bar."""
        if self._bar:
            self._bar.advance(self._bar.task_ids[0])
