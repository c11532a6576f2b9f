"""How does a program write an agent, a model or a query? With constructors that make their manifests."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from pydantic import BaseModel

from ...resources.query import TARGETS
from .manifest import Luggage, Manifest, fields, known, plain, schema_of

Value = str | Mapping[str, Any]
"""A text, or where it comes from, as in ``{"value_from": {"secret_key_ref": {"name": …, "key": …}}}``."""

Tool = str | Mapping[str, Any] | Manifest
"""A built-in tool by its name, a tool as a manifest has it, or a ``Manifest`` of the kind Tool."""

Schema = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model: then the answer is read into it."""


class Model(Manifest):
    """A language model. A key that is spelled out stays in this process, which then works on the run itself."""

    def __init__(
        self,
        name: str,
        *,
        model: Value,
        provider: Literal["openai", "azure", "gemini"] = "openai",
        base_url: Value | None = None,
        api_key: Value | None = None,
        properties: Mapping[str, Value] | None = None,
        fallback: "str | Model | None" = None,
        namespace: str = "default",
    ) -> None:
        luggage = Luggage()
        connection = fields({"base_url": _value(base_url), "api_key": _value(api_key)})
        if properties:
            connection["properties"] = {key: _value(value) for key, value in properties.items()}
        spec = {"type": "completions", "provider": provider, "model": _value(model), "config": {provider: connection}}
        if isinstance(fallback, str):
            spec["fallback"] = {"name": fallback}
        elif fallback:
            spec["fallback"] = luggage.reference(fallback)
        super().__init__("Model", name, spec, namespace=namespace, luggage=luggage)


class Agent(Manifest):
    """One speaker: a prompt for a model, with tools."""

    def __init__(
        self,
        name: str,
        *,
        prompt: str,
        model: str | Model | None = None,
        tools: Sequence[Tool] = (),
        parameters: Mapping[str, Value] | None = None,
        output_schema: Schema | None = None,
        namespace: str = "default",
        **more: Unpack["AgentOptions"],
    ) -> None:
        luggage = Luggage()
        schema, answers = schema_of(output_schema)
        values = [{"name": key, **_value(value)} for key, value in (parameters or {}).items()]
        known(AgentOptions, more, "Agent")
        spec = {
            "prompt": prompt,
            "model": {"name": model} if isinstance(model, str) else None,
            "model_ref": luggage.reference(model) if isinstance(model, Model) else None,
            "tools": [luggage.tool(tool) for tool in tools] or None,
            "parameters": values or None,
            "output_schema": schema,
        }
        super().__init__("Agent", name, fields({**spec, **more}), namespace=namespace, luggage=luggage, answers=answers)


class AgentOptions(TypedDict, total=False):
    """What else an agent may be told."""

    description: str
    max_iterations: int
    context_window: Mapping[str, int]
    parallel_tool_calls: bool


class Query(Manifest):
    """A question to agents, teams, models and tools, which are brought along."""

    def __init__(
        self,
        name: str,
        input: str,  # noqa: A002  # as the manifest calls it
        *,
        targets: Sequence[Manifest],
        parameters: Mapping[str, Value] | None = None,
        timeout: str | None = None,
        namespace: str = "default",
    ) -> None:
        luggage = Luggage()
        luggage.manifests.extend(targets)
        asked = [{"type": TARGETS.get(each.kind, each.kind.lower()), "name": each.name} for each in targets]
        values = [{"name": key, **_value(value)} for key, value in (parameters or {}).items()]
        spec = {"input": input, "targets": asked, "parameters": values or None, "timeout": timeout}
        answers = targets[0].answers if len(targets) == 1 else None
        super().__init__("Query", name, fields(spec), namespace=namespace, luggage=luggage, answers=answers)


def _value(given: Value | None) -> Any:
    """A value as manifests write it."""
    return {"value": given} if isinstance(given, str) else plain(given)
