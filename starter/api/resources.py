"""Definitions of models, agents and queries in Python: ``baton.Model``, ``baton.Agent``, ``baton.Query``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pydantic import BaseModel

from ...resources.functions import Function
from ...resources.model import ProviderName
from ...resources.query import TARGETS
from ...resources.skill_folder import read_skill
from .arguments import check, check_list, check_mapping
from .manifest import Dependencies, ResourceDefinition, camel_case, reject_unknown, schema_of, spec_fields

ValueInput = str | Mapping[str, Any]
"""A text, or its source, as in ``{"value_from": {"secret_key_ref": {"name": …, "key": …}}}``."""

ToolInput = str | Mapping[str, Any] | ResourceDefinition | Function
"""The name of a built-in tool, an entry of ``tools`` as in a manifest, a ``Manifest`` of the kind Tool, a function."""

SchemaInput = Mapping[str, Any] | type[BaseModel]
"""A JSON Schema, or a pydantic model, into which the answer is read."""


class ModelDefinition(ResourceDefinition):
    """A language model. A literal API key stays in this process, which then executes the run itself.

    ``connection`` are more fields of its provider's connection, such as ``{"region": "us-east-1"}``; ``timeout`` is how
    long one answer may take, such as ``10m``; ``pricing`` what a million tokens cost, ``{"input": …, "output": …}``.
    """

    def __init__(
        self,
        name: str,
        *,
        model: ValueInput,
        provider: ProviderName = "openai",
        base_url: ValueInput | None = None,
        api_key: ValueInput | None = None,
        properties: Mapping[str, ValueInput] | None = None,
        connection: Mapping[str, ValueInput | int] | None = None,
        timeout: str | None = None,
        pricing: Mapping[str, float] | None = None,
        fallback: "str | ModelDefinition | None" = None,
        namespace: str = "default",
    ) -> None:
        check(provider, str, "provider", "'openai', 'azure' or 'gemini'")
        check_mapping(properties, "properties")
        dependencies = Dependencies()
        fields = spec_fields({"base_url": _value(base_url), "api_key": _value(api_key), **(connection or {})})
        if properties:
            fields["properties"] = {key: _value(value) for key, value in properties.items()}
        spec = {"type": "completions", "provider": provider, "model": _value(model), "config": {provider: fields}}
        check_mapping(pricing, "pricing")
        spec.update(spec_fields({"timeout": timeout or None, "pricing": pricing}))
        if isinstance(fallback, str):
            spec["fallback"] = {"name": fallback}
        elif fallback:
            spec["fallback"] = dependencies.reference(fallback)
        super().__init__("Model", name, spec, namespace=namespace, dependencies=dependencies)


class SkillDefinition(ResourceDefinition):
    """A skill: a folder with a SKILL.md, as it is now. Raises ValueError for a folder that is none."""

    def __init__(self, folder: str | Path, *, namespace: str = "default") -> None:
        check(folder, (str, Path), "folder", "the path of a folder")
        name, spec = read_skill(Path(folder))
        super().__init__("Skill", name, spec.model_dump(exclude_unset=True), namespace=namespace)


class AgentDefinition(ResourceDefinition):
    """An agent: a system prompt for a model, with tools."""

    def __init__(
        self,
        name: str,
        *,
        prompt: str,
        model: str | ModelDefinition | None = None,
        tools: Sequence[ToolInput] = (),
        skills: Sequence[str | SkillDefinition] = (),
        parameters: Mapping[str, ValueInput] | None = None,
        output_schema: SchemaInput | None = None,
        namespace: str = "default",
        **more: Unpack["AgentOptions"],
    ) -> None:
        check_list(tools, "tools", wanted="a list of tools")
        check_list(skills, "skills", wanted="a list of names and Skills")
        dependencies = Dependencies(namespace)
        schema, output_model = schema_of(output_schema)
        values = _parameters(parameters)
        reject_unknown(AgentOptions, more, "Agent")
        spec = {
            "prompt": prompt,
            "model": {"name": model} if isinstance(model, str) else None,
            "model_ref": dependencies.reference(model) if isinstance(model, ModelDefinition) else None,
            "tools": [dependencies.tool(tool) for tool in tools] or None,
            "skills": [dependencies.reference(skill) for skill in skills] or None,
            "parameters": values or None,
            "output_schema": schema,
        }
        super().__init__(
            "Agent",
            name,
            spec_fields({**spec, **more}),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model,
        )


class AgentOptions(TypedDict, total=False):
    """More fields of an agent, each as the manifest's field of that name in camelCase."""

    description: str
    max_iterations: int
    context_window: Mapping[str, int]
    parallel_tool_calls: bool
    budget: Mapping[str, Any]


class QueryDefinition(ResourceDefinition):
    """A question to agents, teams, models and tools, which a run of it brings along."""

    def __init__(
        self,
        name: str,
        input: str,  # noqa: A002  # the manifest's name of the field
        *,
        targets: Sequence[ResourceDefinition],
        parameters: Mapping[str, ValueInput] | None = None,
        timeout: str | None = None,
        budget: Mapping[str, Any] | None = None,
        conversation: str | None = None,
        namespace: str = "default",
    ) -> None:
        check_mapping(budget, "budget")
        check_list(targets, "targets", ResourceDefinition, "a list of agents, teams, models or Manifests")
        dependencies = Dependencies()
        dependencies.definitions.extend(targets)
        entries = [{"type": TARGETS.get(each.kind, each.kind.lower()), "name": each.name} for each in targets]
        values = _parameters(parameters)
        asked = {"input": input, "targets": entries, "parameters": values or None}
        spec = {**asked, "timeout": timeout, "conversation_id": conversation}
        output_model = targets[0].output_model if len(targets) == 1 else None
        super().__init__(
            "Query",
            name,
            spec_fields({**spec, "budget": budget}),
            namespace=namespace,
            dependencies=dependencies,
            output_model=output_model,
        )


def _parameters(given: Mapping[str, ValueInput] | None) -> list[dict[str, Any]]:
    check_mapping(given, "parameters")
    for name, value in (given or {}).items():
        check(value, (str, Mapping), f"parameters['{name}']", "a text or {'value_from': …}")
    return [{"name": name, **_value(value)} for name, value in (given or {}).items()]


def _value(given: ValueInput | None) -> Any:
    """A value as in a manifest."""
    return {"value": given} if isinstance(given, str) else camel_case(given)
