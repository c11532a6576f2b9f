"""The protocol between clients and runs, as a JSON Schema: inputs, signals, updates, queries, results."""

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import core_schema

from ..resources.base import JsonModel, JsonObject
from ..resources.query import TARGETS, QuerySpec, TargetType
from ..resources.schema import SchemaGenerator
from ..resources.strategies import STRATEGIES
from .control_messages import CancelRequest, PauseRequest, SteerRequest, SteerResult, TerminateRequest
from .decisions import ApproveRequest, GiveResultRequest, ReplyRequest
from .inputs import CLIENT_FIELDS, QueryInput, TurnInput
from .message import PersonDecision
from .status import Status
from .turn import TurnResult

Values = type[BaseModel] | None
"""The type of a message; None: any JSON object."""

SIGNALS: dict[str, Values] = {
    "terminate_team": TerminateRequest,
    "cancel": CancelRequest,
    "pause": PauseRequest,
    "resume": PauseRequest,
    "session": None,
    "steer": SteerRequest,
}
"""The signals of a run, by name. All fields of their values are optional, and so is the value itself."""

UPDATES: dict[str, tuple[Values, Values]] = {
    "steer": (SteerRequest, SteerResult),
    "session": (None, None),
    "approve": (ApproveRequest, PersonDecision),
    "reply": (ReplyRequest, PersonDecision),
    "give_result": (GiveResultRequest, PersonDecision),
}
"""The argument and the result of each update."""

QUERIES: dict[str, Values] = {"status": Status}
"""The result of each query. A query has no argument."""

WORKFLOW_TYPES: dict[str, TargetType | None] = {
    "query": None,
    **dict.fromkeys(STRATEGIES, "team"),
    **{kind: kind for kind in TARGETS.values() if kind != "team"},
}
"""What each workflow type that clients start runs; None for a query, whose targets are in its input."""


class RetryInput(JsonModel):
    """The input of a run that resumes a failed run of the same workflow id and type, which has this run id."""

    retries: str


def protocol_schema() -> JsonObject:
    """A JSON Schema (draft 2020-12) with the schema of each message at its place.

    For example, ``#/properties/updates/properties/approve/properties/argument`` is that of the update ``approve``.
    Readers of results have to ignore unknown fields, and fields that are missing have the default.
    """
    pairs = [*SIGNALS.values(), *(value for pair in UPDATES.values() for value in pair), *QUERIES.values()]
    models: set[type[BaseModel]] = {model for model in pairs if model} | {
        QueryInput,
        TurnInput,
        QuerySpec,
        RetryInput,
        TurnResult,
    }
    ordered = sorted(models, key=lambda model: model.__name__)
    refs, schema = models_json_schema(
        [(model, "validation") for model in ordered], schema_generator=_ProtocolSchemaGenerator
    )
    definitions = schema["$defs"]
    of_turns = definitions.pop("TurnInput")
    definitions["QueryInput"] = _query_input(definitions["QueryInput"])
    for kind in TARGETS.values():
        definitions[f"{kind.title()}Input"] = _turn_input(of_turns, kind)

    def reference(values: Values) -> JsonObject:
        return dict(refs[values, "validation"]) if values else {"type": "object", "additionalProperties": True}

    workflows = {
        name: _record(input=_or_retry(f"{kind.title()}Input" if kind else "QueryInput"), result=reference(Status))
        for name, kind in WORKFLOW_TYPES.items()
    }
    updates = {
        name: _record(argument=reference(argument), result=reference(result))
        for name, (argument, result) in UPDATES.items()
    }
    catalog = _record(
        workflows=_record(**workflows),
        signals=_record(**{name: reference(values) for name, values in SIGNALS.items()}),
        updates=_record(**updates),
        queries=_record(**{name: reference(values) for name, values in QUERIES.items()}),
        failure={
            "allOf": [reference(Status)],
            "description": "the first detail of the failure of a run that failed or was canceled",
        },
        memberResult={
            "allOf": [reference(TurnResult)],
            "description": "the result of a run that a team has started for one of its members",
        },
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Protocol",
        "description": "Workflow types with their inputs and results, signals, updates and queries of Baton",
        **catalog,
        "$defs": _reachable(catalog, dict(sorted(definitions.items()))),
    }


def _record(**properties: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {**properties},
        "required": [*properties],
        "additionalProperties": False,
    }


def _or_retry(name: str) -> JsonObject:
    return {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"$ref": "#/$defs/RetryInput"}]}


NOT_WRITTEN = frozenset({"retries", "forks", "redacted"})
"""The fields of a run's input that only Baton's own client sets."""


def _query_input(schema: JsonObject) -> JsonObject:
    """The input of a query, as clients may write it."""
    properties: JsonObject = {**_properties(schema), "spec": {"$ref": "#/$defs/QuerySpec"}}
    return {
        "title": "QueryInput",
        "description": (
            "The input of the workflow type `query`: a `spec`, or the `name` of a Query among `resources` or those that"
            " the worker knows. `resources` are inline manifests, `session` the initial values of the session."
        ),
        "type": "object",
        "properties": {name: value for name, value in properties.items() if name in CLIENT_FIELDS - NOT_WRITTEN},
    }


def _turn_input(schema: JsonObject, kind: TargetType) -> JsonObject:
    """The input of the workflow types that run a target of that kind, as clients may write it."""
    left_out = {*TARGETS.values(), *NOT_WRITTEN} - {kind}
    properties = {
        name: value for name, value in _properties(schema).items() if name in CLIENT_FIELDS and name not in left_out
    }
    return {
        "title": f"{kind.title()}Input",
        "description": (
            f"The input of a run of one {kind}: its name and the question. `resources` are inline manifests,"
            " `session` the initial values of the session."
        ),
        "type": "object",
        "properties": properties,
        "required": [kind, "input"],
    }


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    return properties


def _reachable(schema: object, definitions: JsonObject) -> JsonObject:
    """The definitions that a schema refers to, directly or not."""
    names = set[str]()
    left = [schema]
    while left:
        match left.pop():
            case {"$ref": str(ref)} if (name := ref.rpartition("/")[2]) not in names:
                names.add(name)
                left.append(definitions[name])
            case dict() as mapping:
                left.extend(mapping.values())
            case list() as items:
                left.extend(items)
    return {name: schema for name, schema in definitions.items() if name in names}


class _ProtocolSchemaGenerator(SchemaGenerator):
    """Leaves out null: no result has it, and in requests the field is left out. References stand alone.

    Generators of code make a type of its own of a reference with a description beside it.
    """

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonObject:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonObject:
        result = super().model_schema(schema)
        for value in _properties(result).values():
            if isinstance(value, dict) and "$ref" in value and len(value) > 1:
                value["allOf"] = [{"$ref": value.pop("$ref")}]
        return result
