"""Rules over the events of a run, as ARK's evaluations of the type ``event`` have them.

An expression is either one of ARK's semantic expressions, such as ``tool.was_called() and query.was_resolved()``, or
CEL over ``events``. A semantic expression is read as a small part of Python's grammar and interpreted here: nothing in
it is executed as Python.
"""

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...resources.conditions import evaluate as evaluate_cel
from ..history.ark_events import ArkEvent
from ..history.events import (
    Event,
    ModelAnsweredEvent,
    ModelFailedEvent,
    RunEndedEvent,
    RunStartedEvent,
    ToolCalledEvent,
    ToolFailedEvent,
    ToolReturnedEvent,
    TurnEndedEvent,
    TurnStartedEvent,
)


class RuleError(ValueError):
    """A rule can't be evaluated."""


@dataclass(frozen=True)
class RunFacts:
    """What rules read: the events of a run, and the same with ARK's names."""

    events: Sequence[Event]
    ark_events: Sequence[ArkEvent]

    def holds(self, expression: str) -> bool:
        """Whether an expression is true of the run. Raises RuleError."""
        if re.search(r"\bevents\b", expression):
            facts = [
                {"reason": one.name, "time": one.time.isoformat(), "run": one.run, "data": one.data}
                for one in self.ark_events
            ]
            try:
                return evaluate_cel(expression, {"events": facts})
            except ValueError as error:
                raise RuleError(f"{expression}: {error}") from None
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except SyntaxError:
            raise RuleError(f"{expression}: is not an expression") from None
        value = _Interpreter(self._helpers(), expression).value(tree.body)
        if not isinstance(value, bool):
            raise RuleError(f"{expression}: returns {type(value).__name__}, not true or false")
        return value

    def _helpers(self) -> Mapping[str, Mapping[str, Callable[..., Any]]]:
        tools = _tools(self.events)
        agents = _agents(self.events)
        teams = _teams(self.events)
        return {
            **dict.fromkeys(("tool", "tools"), tools),
            **dict.fromkeys(("agent", "agents"), agents),
            **dict.fromkeys(("team", "teams"), teams),
            "query": _query(self.events),
            "llm": _models(self.events),
            "sequence": _sequence(self.ark_events),
        }


Helpers = Mapping[str, Callable[..., Any]]


def _tools(events: Sequence[Event]) -> Helpers:
    ended = [one for one in events if isinstance(one, ToolReturnedEvent | ToolFailedEvent)]
    called = [one.tool for one in events if isinstance(one, ToolCalledEvent)]

    def of(name: str | None) -> list[ToolReturnedEvent | ToolFailedEvent]:
        return [one for one in ended if name in (None, one.tool)]

    def metrics(name: str | None = None) -> dict[str, float]:
        calls = of(name)
        failed = sum(isinstance(one, ToolFailedEvent) for one in calls)
        total = sum(one.seconds for one in calls)
        return {
            "call_count": len(calls),
            "success_count": len(calls) - failed,
            "error_count": failed,
            "avg_duration": total / len(calls) if calls else 0.0,
            "total_duration": total,
        }

    def success_rate(name: str | None = None) -> float:
        found = metrics(name)
        return found["success_count"] / found["call_count"] if found["call_count"] else 0.0

    return {
        "was_called": lambda name=None: bool(called) if name is None else name in called,
        "get_call_count": lambda name=None: sum(name in (None, tool) for tool in called),
        "get_success_rate": success_rate,
        "had_error": lambda name=None: any(isinstance(one, ToolFailedEvent) for one in of(name)),
        "get_execution_metrics": metrics,
    }


def _agents(events: Sequence[Event]) -> Helpers:
    started = [one.speaker for one in events if isinstance(one, TurnStartedEvent) and one.kind == "agent"]
    ended = [one for one in events if isinstance(one, TurnEndedEvent) and one.speaker in started]

    def success_rate(name: str | None = None) -> float:
        turns = [one for one in ended if name in (None, one.speaker)]
        return sum(one.outcome == "completed" for one in turns) / len(turns) if turns else 0.0

    def tools_used(name: str) -> list[str]:
        used = (one.tool for one in events if isinstance(one, ToolCalledEvent) and one.speaker == name)
        return [*dict.fromkeys(used)]

    def summary(name: str) -> dict[str, Any]:
        turns = [one for one in ended if one.speaker == name]
        failed = any(one.outcome == "failed" for one in turns)
        status = "failed" if failed else "completed" if turns else "not_executed"
        return {"status": status, "execution_count": started.count(name), "tools_used": tools_used(name)}

    return {
        "was_executed": lambda name=None: bool(started) if name is None else name in started,
        "get_execution_count": lambda name=None: sum(name in (None, one) for one in started),
        "get_success_rate": success_rate,
        "get_tools_used": tools_used,
        "get_unique_agents": lambda: [*dict.fromkeys(started)],
        "get_execution_summary": summary,
    }


def _teams(events: Sequence[Event]) -> Helpers:
    strategies = {one.name: one.strategy for one in events if isinstance(one, RunStartedEvent) and one.kind == "team"}

    def agents_of(name: str) -> list[str]:
        turns = (one.speaker for one in events if isinstance(one, TurnStartedEvent) and one.team == name)
        return [*dict.fromkeys(turns)]

    def pattern(name: str) -> str:
        strategy = strategies.get(name)
        return "parallel" if strategy == "parallel" else "mixed" if strategy == "debate" else "sequential"

    return {
        "was_executed": lambda name=None: bool(strategies) if name is None else name in strategies,
        "was_team_executed": lambda name: name in strategies,
        "get_team_agents": agents_of,
        "detect_collaboration_pattern": pattern,
    }


def _models(events: Sequence[Event]) -> Helpers:
    answered = [one for one in events if isinstance(one, ModelAnsweredEvent)]
    failed = sum(isinstance(one, ModelFailedEvent) for one in events)
    calls = len(answered) + failed
    return {
        "get_call_count": lambda: calls,
        "get_success_rate": lambda: len(answered) / calls if calls else 0.0,
        "get_total_tokens": lambda: sum(one.usage.total_tokens for one in answered),
    }


def _query(events: Sequence[Event]) -> Helpers:
    root = events[0].run if events else ""
    ended = next((one for one in events if isinstance(one, RunEndedEvent) and one.run == root), None)
    seconds = (events[-1].at - events[0].at).total_seconds() if events else 0.0
    status = "incomplete" if ended is None else "success" if ended.phase == "Completed" else "error"
    targets = [one for one in events if isinstance(one, RunStartedEvent) and one.parent == root]
    kinds = Counter(type(one) for one in events)

    def complexity() -> dict[str, Any]:
        counts = {
            "agent_executions": kinds[TurnStartedEvent],
            "tool_calls": kinds[ToolCalledEvent],
            "team_executions": sum(isinstance(one, RunStartedEvent) and one.kind == "team" for one in events),
        }
        score = sum(counts.values())
        levels = ((3, "simple"), (10, "moderate"), (25, "complex"))
        level = next((name for most, name in levels if score <= most), "highly_complex")
        return {**counts, "complexity_score": score, "complexity_level": level}

    return {
        "was_resolved": lambda: status == "success",
        "get_execution_time": lambda: seconds,
        "get_resolution_status": lambda: status,
        "get_query_targets": lambda: max(1, len(targets)),
        "was_query_timeout": lambda threshold: seconds > threshold,
        "get_complexity_metrics": complexity,
    }


def _sequence(ark_events: Sequence[ArkEvent]) -> Helpers:
    """The helpers for sequences. ARK's documents name events as in ``ResolveStart``: Baton has ``QueryStarted``."""
    reasons = [one.name for one in ark_events]
    times = [one.time for one in ark_events]

    def first(name: str, after: int = -1) -> int | None:
        return next((index for index in range(after + 1, len(reasons)) if _is_event(reasons[index], name)), None)

    def in_order(names: Sequence[str], strict: bool = False) -> bool:
        place = -1
        for number, name in enumerate(names):
            found = first(name, place)
            if found is None or (strict and number and found != place + 1):
                return False
            place = found
        return True

    def between(start: str, end: str) -> float:
        begun = first(start)
        over = first(end, begun) if begun is not None else None
        if begun is None or over is None:
            raise RuleError(f"there is no {start if begun is None else end}")
        return (times[over] - times[begun]).total_seconds()

    return {
        "was_completed": lambda names: all(first(name) is not None for name in names),
        "check_execution_order": in_order,
        "get_time_between_events": between,
        "get_execution_flow": lambda: [{"reason": one.name, "time": one.time.isoformat()} for one in ark_events],
        "detect_parallel_execution": lambda threshold=1.0: _parallel(ark_events, threshold),
    }


def _parallel(ark_events: Sequence[ArkEvent], threshold: float) -> list[list[str]]:
    """Groups of events of different runs within so many seconds."""
    groups: list[list[str]] = []
    begun: datetime | None = None
    runs: set[str] = set()
    group: list[str] = []
    for one in ark_events:
        if begun is None or (one.time - begun).total_seconds() > threshold:
            if len(runs) > 1:
                groups.append(group)
            begun, runs, group = one.time, set(), []
        runs.add(one.run)
        group.append(one.name)
    return [*groups, group] if len(runs) > 1 else groups


_ENDINGS = (("Start", "Started"), ("Complete", "Completed"), ("Error", "Failed"))


def _is_event(reason: str, name: str) -> bool:
    """Whether an event has a name of ARK's documents, such as ``ToolCallStart`` for ``ToolCallStarted``."""
    name = f"Query{name.removeprefix('Query')}" if name.startswith(("Resolve", "QueryResolve")) else name
    name = name.replace("QueryResolve", "Query")
    for older, newer in _ENDINGS:
        if name.endswith(older):
            return reason in (name, name.removesuffix(older) + newer)
    return reason == name


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}

_SCOPES = ("current", "query")
"""The scopes of ARK that are the evaluated run."""

_NAMES = {"true": True, "false": False, "null": None}


class _Interpreter:
    """Evaluates the grammar of semantic expressions: calls of helpers, comparisons, ``and``, ``or``, ``not``."""

    def __init__(self, helpers: Mapping[str, Helpers], expression: str) -> None:
        self._helpers = helpers
        self._expression = expression

    def value(self, node: ast.expr) -> Any:  # noqa: C901  # one case for each kind of node
        """The value of an expression. Raises RuleError."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item) for item in items]
            case ast.Name(id=name) if name in _NAMES:
                return _NAMES[name]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.value(operand)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self.value(one) for one in values)
            case ast.BoolOp(op=ast.Or(), values=values):
                return any(self.value(one) for one in values)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(one) in _COMPARISONS for one in ops):
                return self._compare(left, ops, others)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=helper), attr=method)):
                return self._call(helper, method, node)
            case ast.Attribute(value=value, attr="length"):
                return len(self.value(value))
            case ast.Attribute(value=value, attr=name):
                found = self.value(value)
                if isinstance(found, Mapping) and name in found:
                    return found[name]
        raise RuleError(f"{self._expression}: '{ast.unparse(node)}' is not known")

    def _compare(self, left: ast.expr, comparisons: Sequence[ast.cmpop], others: Sequence[ast.expr]) -> bool:
        current = self.value(left)
        for comparison, other in zip(comparisons, others, strict=True):
            following = self.value(other)
            try:
                if not _COMPARISONS[type(comparison)](current, following):
                    return False
            except TypeError as error:
                raise RuleError(f"{self._expression}: {error}") from None
            current = following
        return True

    def _call(self, helper: str, method: str, node: ast.Call) -> Any:
        called = self._helpers.get(helper, {}).get(method)
        if called is None:
            raise RuleError(f"{self._expression}: there is no {helper}.{method}()")
        named = {keyword.arg or "": self.value(keyword.value) for keyword in node.keywords}
        scope = named.pop("scope", "current")
        if scope not in _SCOPES:
            raise RuleError(f"{self._expression}: the scope '{scope}' is not supported: a run is evaluated by itself")
        try:
            return called(*map(self.value, node.args), **named)
        except TypeError as error:
            raise RuleError(f"{self._expression}: {str(error).partition(') ')[2] or error}") from None
