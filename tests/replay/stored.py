"""Collects all names and shapes that histories hold, to compare them with the recorded ones in `stored.json`."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic.json_schema import models_json_schema
from temporalio import activity, workflow

from baton import activities, contracts
from baton.contracts import errors, settings, status, turn
from baton.resources.base import JsonModel
from baton.temporal import search_attributes
from baton.workflows.registry import WORKFLOWS

STORED = Path(__file__).parent / "stored.json"


def modules_of(package: ModuleType) -> list[ModuleType]:
    """The modules directly in a package."""
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))
    return [importlib.import_module(name) for name in names]


def defined_in(module: ModuleType) -> Iterator[type]:
    """The classes that a module defines."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value


def activity_definitions() -> list[activity._Definition]:
    """The activities: methods of classes in the modules of ``activities``."""
    methods = [
        method
        for module in modules_of(activities)
        for owner in defined_in(module)
        for method in vars(owner).values()
        if callable(method)
    ]
    return [found for method in methods if (found := activity._Definition.from_callable(method))]


def stored_models() -> list[type[JsonModel]]:
    """The models of ``contracts``, and what activities take and return."""
    known = [model for module in modules_of(contracts) for model in defined_in(module) if issubclass(model, JsonModel)]
    for definition in activity_definitions():
        for value in (*(definition.arg_types or ()), definition.ret_type):
            if isinstance(value, type) and issubclass(value, JsonModel) and value not in known:
                known.append(value)
    return known


def stored() -> dict[str, Any]:
    """Names of workflows, activities, signals, queries and errors, and the shape of every value."""
    definitions = [workflow._Definition.must_from_class(each) for each in WORKFLOWS]
    _, shapes = models_json_schema([(model, "validation") for model in stored_models()])
    return {
        "task queue": settings.TASK_QUEUE,
        "search attributes": sorted(key.name for key in (*search_attributes.ALL, search_attributes.COST)),
        "workflows": sorted(str(each.name) for each in definitions),
        "signals": {str(each.name): sorted(name for name in each.signals if name) for each in definitions},
        "queries": {str(each.name): sorted(map(str, each.queries)) for each in definitions},
        "updates": {str(each.name): sorted(map(str, each.updates)) for each in definitions},
        "activities": sorted(str(each.name) for each in activity_definitions()),
        "errors": {name: each.family for name, each in vars(errors).items() if hasattr(each, "family")},
        "stop reasons": get_args(turn.StopReason),
        "phases": get_args(status.Phase),
        "shapes": {name: _without_words(shape) for name, shape in shapes["$defs"].items()},
    }


def _without_words(schema: Any) -> Any:
    """A schema without its descriptions and titles, which nobody reads from a history."""
    if isinstance(schema, dict):
        words = {key for key in ("description", "title") if isinstance(schema.get(key), str)}
        return {key: _without_words(value) for key, value in schema.items() if key not in words}
    return [_without_words(each) for each in schema] if isinstance(schema, list | tuple) else schema
