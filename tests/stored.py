"""Which names stand in the histories of runs that go on? They are all here, to be compared with what they were."""

from pathlib import Path
from typing import Any, get_args

from pydantic.json_schema import models_json_schema
from temporalio import activity, workflow

from activities.append import Append
from activities.ask_model import AskModel
from activities.brief import Brief
from activities.conclude import Conclude
from activities.evaluate import Evaluate
from activities.perform import Perform
from activities.pin import Pin
from activities.select import Select
from activities.use_tool import UseTool
from conversation import (
    attributes,
    briefs,
    carried,
    errors,
    failure,
    inputs,
    message,
    panel,
    plan,
    requests,
    status,
    turn,
    wire,
    wishes,
)
from resources.base import Plain
from workflows.registry import WORKFLOWS

STORED = Path(__file__).parent / "stored.json"

ACTIVITIES = (
    Pin.pin,
    AskModel.ask_model,
    UseTool.use_tool,
    Append.append,
    Select.select,
    Evaluate.evaluate,
    Brief.brief,
    Conclude.conclude,
    Perform.perform,
)


def stored() -> dict[str, Any]:
    """Names of workflows, activities, queries and errors, and the shape of every value."""
    definitions = [workflow._Definition.must_from_class(each) for each in WORKFLOWS]
    modules = (message, plan, requests, briefs, wishes, panel, status, turn, inputs, carried, failure)
    models = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Plain) and each.__module__ == module.__name__
    ]
    _, shapes = models_json_schema([(each, "validation") for each in models])
    return {
        "task queue": wire.TASK_QUEUE,
        "search attributes": sorted(key.name for key in attributes.ALL),
        "workflows": sorted(str(each.name) for each in definitions),
        "queries": {str(each.name): sorted(map(str, each.queries)) for each in definitions},
        "updates": {str(each.name): sorted(map(str, each.updates)) for each in definitions},
        "activities": sorted(str(activity._Definition.must_from_callable(each).name) for each in ACTIVITIES),
        "errors": {name: each.family for name, each in vars(errors).items() if hasattr(each, "family")},
        "stop reasons": get_args(turn.StopReason),
        "phases": get_args(status.Phase),
        "shapes": _without_words(shapes["$defs"]),
    }


def _without_words(schema: Any) -> Any:
    """A schema without its descriptions and titles, which nobody reads from a history."""
    if isinstance(schema, dict):
        words = {key for key in ("description", "title") if isinstance(schema.get(key), str)}
        return {key: _without_words(value) for key, value in schema.items() if key not in words}
    return [_without_words(each) for each in schema] if isinstance(schema, list | tuple) else schema
