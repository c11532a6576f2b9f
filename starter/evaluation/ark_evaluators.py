"""The evaluators of ARK's Evaluations: a judge or a service by criteria, and rules over events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, FiniteFloat, ValidationError
from pydantic_evals.evaluators import EvaluationReason, Evaluator, EvaluatorContext, EvaluatorOutput

from ...resources.base import JsonObject
from .evaluators import as_text, assessors, in_sections, read_verdict
from .lifecycle import CURRENT_CASE

MIN_SCORE = 0.7
"""The score from which an answer passes, unless the parameter min-score says otherwise."""

CRITERIA = {
    "relevance": "the answer is about what was asked",
    "accuracy": "its facts are right and reliable",
    "completeness": "nothing that the question asks for is missing",
    "conciseness": "it is short, and has nothing beside the point",
    "clarity": "it is easy to read and to understand",
    "usefulness": "it helps the one who asks",
}
"""What the criteria of the parameter ``scope`` mean (ARK: evaluations)."""


class ServiceResponse(BaseModel):
    """The response of an evaluator's service (ARK: evaluations)."""

    score: FiniteFloat | None = None
    passed: bool = False
    metadata: dict[str, Any] | None = None
    error: str | None = None


@dataclass(repr=False)
class ArkAssessment(Evaluator[Any, Any, Any]):
    """Assesses an answer by a service at ``address``, an ``agent``, or the default judge with a ``model``."""

    evaluator: str
    address: str | None = None
    agent: str | None = None
    model: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)

    async def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorOutput:
        """The score, and whether it is at least the parameter min-score. Raises ValueError without a score."""
        question = as_text(ctx.inputs)
        if self.address:
            return await self._by_service(ctx, question)
        minimum = number_of(self.parameters, "min-score", MIN_SCORE)
        scope = [name.strip() for name in self.parameters.get("scope", "all").split(",")]
        criteria = CRITERIA if "all" in scope else {name: CRITERIA.get(name, name) for name in scope}
        parts = {"Criteria": "\n".join(f"{name}: {meaning}" for name, meaning in criteria.items())}
        if context := self.parameters.get("context"):
            parts["Context"] = context
        parts["Question"] = question
        if ctx.expected_output is not None:
            parts["Expected answer"] = as_text(ctx.expected_output)
        parts["Answer"] = as_text(ctx.output)
        judged = CURRENT_CASE.get().id
        verdict = read_verdict(await assessors().ask_judge(self.agent, self.model, in_sections(parts), judged))
        score = verdict.score if verdict.score is not None else float(bool(verdict.passed))
        return _outcome(score, score >= minimum, verdict.reason)

    async def _by_service(self, ctx: EvaluatorContext[Any, Any, Any], question: str) -> EvaluatorOutput:
        config: JsonObject = {"input": question, "output": as_text(ctx.output)}
        parameters = dict(self.parameters)
        if ctx.expected_output is not None:
            parameters["expected-output"] = as_text(ctx.expected_output)
        body: JsonObject = {
            "type": "direct",
            "config": config,
            "parameters": {**parameters},
            "evaluatorName": self.evaluator,
        }
        response, score = read_response(await assessors().ask_service(self.address or "", body, CURRENT_CASE.get().id))
        reason = json.dumps(response.metadata, ensure_ascii=False) if response.metadata else ""
        return _outcome(score, response.passed, reason)


def read_response(answer: str) -> tuple[ServiceResponse, float]:
    """The response of a service, and its score. Raises ValueError without a finite score, or if it reports an error."""
    try:
        response = ServiceResponse.model_validate_json(answer)
    except ValidationError:
        response = ServiceResponse()
    if response.error:
        raise ValueError(f"the service reports: {response.error}")
    if response.score is None:
        raise ValueError(f"the service's response has no score: {answer[:200]!r}")
    return response, response.score


@dataclass(repr=False)
class EventRules(Evaluator[Any, Any, Any]):
    """Rules ``{name, expression, weight}`` over the events of a run; the score is the weight of those that hold."""

    rules: list[dict[str, Any]]
    parameters: dict[str, str] = field(default_factory=dict)

    def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> EvaluatorOutput:
        """The score, and whether it is at least the parameter min-score. Raises RuleError."""
        facts = CURRENT_CASE.get().facts
        assert facts, "an evaluation of the type 'event' has a run"
        rules = [(rule, facts.holds(rule["expression"])) for rule in self.rules]
        total = sum(rule["weight"] for rule in self.rules)
        score = sum(rule["weight"] for rule, holds in rules if holds) / total if total else 0.0
        broken = ", ".join(rule["name"] for rule, holds in rules if not holds)
        minimum = number_of(self.parameters, "min-score", MIN_SCORE)
        return _outcome(score, score >= minimum, f"not met: {broken}" if broken else "all rules are met")


def number_of(parameters: Mapping[str, str], name: str, default: float) -> float:
    """The number in a parameter. Raises ValueError."""
    try:
        return float(parameters.get(name, default))
    except ValueError:
        raise ValueError(f"the parameter {name} is not a number: {parameters[name]}") from None


def _outcome(score: float, passed: bool, reason: str) -> EvaluatorOutput:
    return {"score": EvaluationReason(score, reason), "passed": EvaluationReason(passed, reason)}
