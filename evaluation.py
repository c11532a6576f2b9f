"""Evaluators for ``baton.evaluate``, besides those of pydantic-evals: ``from baton.evaluation import AgentJudge``."""

from .starter.evaluation.evaluators import AgentJudge, JudgeVerdict, MaxCost, Speakers, StoppedWith

__all__ = ["AgentJudge", "JudgeVerdict", "MaxCost", "Speakers", "StoppedWith"]
