"""Evaluators over runs, in addition to those of pydantic-evals: who spoke, how a run ended, what a judge says."""

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field, ValidationError
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext, EvaluatorOutput

from ...resources.base import JsonObject

RUN = "run"
"""The name of the attribute with the id of a case's run."""


class JudgeVerdict(BaseModel):
    """The answer of a judge: whether the answer passed, a score from 0 to 1, and why; one of the first two can lack."""

    reason: str = Field("", description="one or two sentences")
    passed: bool | None = Field(None, description="whether the answer meets the criteria")
    score: float | None = Field(None, ge=0, le=1, description="how well it meets them, from 0 to 1")


class Assessors(Protocol):
    """How evaluators ask judges and services: each answer is that of a run, which is started once."""

    async def ask_judge(self, agent: str | None, model: str | None, text: str, judged_run: str) -> str:
        """The answer of a judge: of an agent, or of the default judge with a Model or the default one."""

    async def ask_service(self, address: str, body: JsonObject, judged_run: str) -> str:
        """The answer of a service over HTTP to a POST."""


ASSESSORS: ContextVar[Assessors] = ContextVar("ASSESSORS")
"""How evaluators ask in the current evaluation."""


def assessors() -> Assessors:
    """How evaluators ask in the current evaluation. Raises RuntimeError outside of one."""
    current = ASSESSORS.get(None)
    if current is None:
        raise RuntimeError("a judge can be asked only in baton.evaluate, baton.compare and the commands")
    return current


@dataclass(repr=False)
class AgentJudge(Evaluator[Any, Any, Any]):
    """A Baton agent judges the answer by a ``rubric``.

    ``agent`` is an agent in the files or of the workers; without one a default judge is asked, with the Model
    ``model`` or else the default one. The call is a run of its own, whose id follows from that of the case's run, the
    judge's manifests and what it is asked: it is never paid for twice. The judge answers with JSON, as in
    ``{"reason": "…", "passed": true, "score": 0.8}``; ``passed`` becomes the assertion ``judge_passed``, and ``score``
    the score ``judge_score``. ``evaluation_name`` replaces ``judge`` in these names.
    ``include_messages`` shows it all messages of the run, and ``include_tool_calls`` the tool calls.
    """

    rubric: str
    agent: str | None = None
    model: str | None = None
    include_input: bool = True
    include_expected_output: bool = True
    include_messages: bool = False
    include_tool_calls: bool = False
    evaluation_name: str | None = None

    def get_default_evaluation_name(self) -> str:
        """The beginning of the names in reports."""
        return self.evaluation_name or "judge"

    async def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorOutput:
        """Asks the judge. Raises ValueError if its answer is no verdict, and RunFailed if its run fails."""
        answer = await assessors().ask_judge(self.agent, self.model, self._text(ctx), ctx.attributes[RUN])
        verdict = read_verdict(answer)
        name = self.get_default_evaluation_name()
        # The names don't depend on what else was answered: otherwise a verdict would not be compared with earlier ones.
        results: dict[str, EvaluationReason] = {}
        if verdict.passed is not None:
            results[f"{name}_passed"] = EvaluationReason(verdict.passed, verdict.reason)
        if verdict.score is not None:
            results[f"{name}_score"] = EvaluationReason(verdict.score, verdict.reason)
        return results

    def _text(self, ctx: EvaluatorContext[Any, Any, Any]) -> str:
        parts = {"Criteria": self.rubric}
        if self.include_input:
            parts["Question"] = as_text(ctx.inputs)
        if self.include_expected_output and ctx.expected_output is not None:
            parts["Expected answer"] = as_text(ctx.expected_output)
        if self.include_messages:
            said = "\n\n".join(f"{message['speaker']}: {message['text']}" for message in ctx.attributes["messages"])
            parts["Conversation"] = said
        if self.include_tool_calls:
            called = [f"{call['tool']} {call['arguments'] or ''}" for call in ctx.attributes["tool_calls"]]
            parts["Tool calls"] = "\n".join(called) or "none"
        parts["Answer"] = as_text(ctx.output)
        return in_sections(parts)


def read_verdict(answer: str) -> JudgeVerdict:
    """The verdict in a judge's answer: JSON, alone or within a text. Raises ValueError if there is none."""
    start, end = answer.find("{"), answer.rfind("}")
    try:
        verdict = JudgeVerdict.model_validate_json(answer[start : end + 1])
    except ValidationError:
        raise ValueError(f'the judge\'s answer is not a verdict such as {{"passed": true}}: {answer[:200]!r}') from None
    if verdict.passed is None and verdict.score is None:
        raise ValueError(f"the judge's answer has neither 'passed' nor 'score': {answer[:200]!r}")
    return verdict


def in_sections(parts: Mapping[str, str]) -> str:
    """Texts with their names, as a judge reads them."""
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts.items())


def as_text(value: object) -> str:
    """A value as text: JSON, unless it is a text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@dataclass(repr=False)
class Speakers(Evaluator[Any, Any, Any]):
    """Whether those members spoke, by the authors of the run's messages.

    ``order`` is ``exact`` for these and no other messages, ``in_order`` if others may come between them, and
    ``any_order`` if only their presence counts.
    """

    expected: list[str]
    order: Literal["exact", "in_order", "any_order"] = "in_order"

    def __post_init__(self) -> None:
        check_names("Speakers", self.expected)

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluationReason:
        """Passes if they spoke as expected; the reason has who spoke."""
        spoke: list[str] = ctx.attributes["speakers"]
        if self.order == "exact":
            passed = spoke == self.expected
        elif self.order == "any_order":
            passed = set(self.expected) <= set(spoke)
        else:
            remaining = iter(spoke)
            passed = all(name in remaining for name in self.expected)
        return EvaluationReason(passed, f"spoke: {', '.join(spoke) or 'nobody'}")


@dataclass(repr=False)
class StoppedWith(Evaluator[Any, Any, Any]):
    """Whether the run ended with one of these stop reasons, such as ``completed`` or ``max_turns``."""

    reasons: list[str]

    def __post_init__(self) -> None:
        check_names("StoppedWith", self.reasons)

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluationReason:
        """Passes if the stop reason is one of them."""
        reason = ctx.attributes["stop_reason"]
        return EvaluationReason(reason in self.reasons, f"stopped with: {reason}")


@dataclass(repr=False)
class MaxCost(Evaluator[Any, Any, Any]):
    """Whether the run cost at most so many US dollars; it fails if the price of no model is known."""

    dollars: float

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluationReason:
        """Passes if the cost is known and is not higher."""
        cost = ctx.metrics.get("cost")
        if cost is None:
            return EvaluationReason(False, "the price of no model is known")
        return EvaluationReason(cost <= self.dollars, f"${cost:.4f}")


def check_names(evaluator: str, value: object) -> None:
    """Raises ValueError for anything but a list of texts, which would never match."""
    if not (isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)):
        raise ValueError(f"{evaluator} needs a list of names, as in [one, two]")


EVALUATORS: tuple[type[Evaluator[Any, Any, Any]], ...] = (AgentJudge, Speakers, StoppedWith, MaxCost)
"""The evaluators that a file of cases can name, in addition to those of pydantic-evals."""
