"""The options of a run, and the query that gives an input to its target."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from ...resources.base import JsonObject
from ...resources.functions import Function
from .arguments import check, check_list, check_mapping
from .manifest import ResourceDefinition
from .resources import QueryDefinition, ValueInput


class RunOptions(TypedDict, total=False):
    """Options of a run.

    ``id`` is the run's id: an open run of that id is joined. ``parameters`` are values for templates, ``session`` the
    first values of its session, ``timeout`` a duration such as ``"5m"``, ``budget`` what it may use, such as
    ``{"tokens": 20_000}``. ``conversation`` is the conversation that it goes on with. ``functions`` and ``resources``
    are added to those of the target.
    """

    id: str
    parameters: Mapping[str, ValueInput]
    session: JsonObject
    timeout: str
    budget: Mapping[str, Any]
    conversation: str
    functions: Sequence[Function]
    resources: Sequence[ResourceDefinition]


def query_for(target: ResourceDefinition, text: str | None, options: RunOptions) -> ResourceDefinition:
    """The query that gives an input to a target; raises TypeError if the input is missing or not allowed."""
    check(target, ResourceDefinition, "target", "an agent, a team, a model, a Query or a Manifest")
    if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
        raise TypeError(f"there is no option '{unknown[0]}'; known: {', '.join(sorted(RunOptions.__annotations__))}")
    check(text, (str, type(None)), "input", "a text")
    check(options.get("id"), (str, type(None)), "id", "a text")
    check_mapping(options.get("session"), "session")
    check_list(options.get("functions", ()), "functions", Callable, "a list of functions")  # type: ignore[arg-type]  # ABC
    check_list(options.get("resources", ()), "resources", ResourceDefinition, "a list of Manifests")
    if (target.kind == "Query") == (text is not None):
        raise TypeError("a Query has its own input" if text is not None else f"{target.name} needs an input")
    talk = options.get("conversation")
    check(talk, (str, type(None)), "conversation", "a text")
    if text is None and talk is not None:
        raise TypeError("a Query names its conversation itself: baton.Query(…, conversation=…)")
    if text is None:
        return target
    given, limit = options.get("parameters"), options.get("timeout")
    return QueryDefinition(
        target.name,
        text,
        targets=[target],
        parameters=given,
        timeout=limit,
        budget=options.get("budget"),
        conversation=talk,
        namespace=target.namespace,
    )
