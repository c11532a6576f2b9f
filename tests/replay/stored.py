"""Collects all names and shapes that histories hold, to compare them with the recorded ones in `stored.json`."""

from pathlib import Path
from typing import Any, get_args

from pydantic.json_schema import models_json_schema
from temporalio import activity, workflow

from baton.activities.agent_calls import AgentActivities
from baton.activities.memory import MemoryActivities
from baton.activities.model_calls import ModelActivities
from baton.activities.people import PeopleActivities
from baton.activities.pin import Pin
from baton.activities.runs import RunActivities
from baton.activities.teams import TeamActivities
from baton.activities.tool_calls import ToolActivities
from baton.contracts import (
    ark_status,
    control_messages,
    decisions,
    errors,
    inputs,
    message,
    panel,
    plan,
    requests,
    settings,
    status,
    trace,
    turn,
)
from baton.resources.base import JsonModel
from baton.temporal import search_attributes
from baton.workflows.registry import WORKFLOWS

STORED = Path(__file__).parent / "stored.json"

ACTIVITIES = (
    Pin.pin,
    ModelActivities.ask_model,
    AgentActivities.execute_agent,
    AgentActivities.cancel_agent,
    ToolActivities.use_tool,
    RunActivities.append,
    ModelActivities.select,
    TeamActivities.evaluate,
    TeamActivities.brief,
    TeamActivities.conclude,
    PeopleActivities.ask_person,
    PeopleActivities.check_reply,
    TeamActivities.perform,
    RunActivities.last_failures,
    RunActivities.expire,
    RunActivities.grant,
    ToolActivities.delegate,
    MemoryActivities.recall,
    MemoryActivities.remember,
    ToolActivities.review,
    RunActivities.report_spans,
)


STORED_AS = {
    "PanelState": "conversation__panel__PanelState",
    "PanelProgress": "conversation__carried__PanelState",
    "AskModelRequest": "AskRequest",
    "AskModelResult": "Asked",
    "UseToolRequest": "UseRequest",
    "UseToolResult": "Used",
    "EvaluateResult": "Evaluated",
    "SelectResult": "Selected",
    "PerformResult": "Performed",
    "SteerResult": "Steered",
    "TerminateRequest": "EndRequest",
    "TurnResult": "Turn",
    "SpeakerBrief": "Brief",
    "StopRequest": "Wish",
    "InboxState": "Said",
    "Continuation": "Carried",
    "ParallelState": "TogetherState",
    "TaskQueues": "Route",
    "SelectorPlan": "ChooserPlan",
    "SecretPlaceholder": "Blank",
    "ContributionsRef": "Shared",
}
"""Classes that had another name when their shape was recorded; a history holds no names of these classes."""


def stored() -> dict[str, Any]:
    """Names of workflows, activities, queries and errors, and the shape of every value."""
    definitions = [workflow._Definition.must_from_class(each) for each in WORKFLOWS]
    modules = (
        *(message, message, plan, plan, requests, panel, requests, control_messages, panel),
        *(status, status, status, turn, inputs, inputs, errors, decisions, message, requests),
        *(decisions, decisions, requests, requests, requests, plan, requests, decisions),
        ark_status,
        trace,
    )
    models = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, JsonModel) and each.__module__ == module.__name__
    ]
    _, shapes = models_json_schema([(each, "validation") for each in models])
    return {
        "task queue": settings.TASK_QUEUE,
        "search attributes": sorted(key.name for key in (*search_attributes.ALL, search_attributes.COST)),
        "workflows": sorted(str(each.name) for each in definitions),
        "queries": {str(each.name): sorted(map(str, each.queries)) for each in definitions},
        "updates": {str(each.name): sorted(map(str, each.updates)) for each in definitions},
        "activities": sorted(str(activity._Definition.must_from_callable(each).name) for each in ACTIVITIES),
        "errors": {name: each.family for name, each in vars(errors).items() if hasattr(each, "family")},
        "stop reasons": get_args(turn.StopReason),
        "phases": get_args(status.Phase),
        "shapes": {_recorded_name(name): _without_words(shape) for name, shape in shapes["$defs"].items()},
    }


def _without_words(schema: Any) -> Any:
    """A schema without its descriptions and titles, which nobody reads from a history."""
    if isinstance(schema, dict):
        words = {key for key in ("description", "title") if isinstance(schema.get(key), str)}
        return {key: _without_words(value) for key, value in schema.items() if key not in words}
    if isinstance(schema, str) and schema.startswith("#/$defs/"):
        return f"#/$defs/{_recorded_name(schema.removeprefix('#/$defs/'))}"
    return [_without_words(each) for each in schema] if isinstance(schema, list | tuple) else schema


def _recorded_name(shape: str) -> str:
    return STORED_AS.get(shape, shape)
