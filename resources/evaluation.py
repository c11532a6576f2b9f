"""``kind: Evaluator``, ``Evaluation`` and ``GoldenDataset``: how answers are evaluated (ARK: evaluations).

No run depends on them: ``baton eval`` reads them. ARK has had two forms of an Evaluation: with ``mode``, and its fields
in the ``spec``, and later with ``type``, and its fields in ``config``. Both are read.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .base import NOT_SUPPORTED_YET, Duration, FieldError, JsonModel, JsonObject, Name, NoEffect, Ref, Reference, Text
from .labels import LabelSelector
from .manifest import Manifest
from .values import Address, Parameter, ValueSource

EvaluationType = Literal["direct", "dataset", "query", "batch", "event", "baseline"]

AUTOMATIC = NoEffect("no evaluation starts by itself; `baton eval` runs those of the files")
EXPIRES = NoEffect("the runs of an evaluation are kept like others")


class EvaluatorSelector(JsonModel):
    """The queries that ARK evaluates by itself."""

    resource_type: str = Field("Query", description="'Query'")
    api_group: str | None = Field(None, description="'ark.mckinsey.com'")
    match_labels: dict[Text, str] = Field({}, description="labels of the queries")
    match_expressions: tuple[JsonObject, ...] = Field((), description="expressions {key, operator, values}")
    namespaces: tuple[str, ...] = Field((), description="namespaces of the queries")


class EvaluatorSpec(JsonModel):
    """The ``spec`` of an Evaluator: a service, an agent, or neither: then a default judge evaluates."""

    address: Address | None = Field(None, description="the address of a service of ARK's protocol, as {value: ADDRESS}")
    agent: Ref | None = Field(None, description="{name} of an agent that judges, instead of a service")
    model_ref: Ref | None = Field(None, description="{name} of the Model of the default judge")
    description: str | None = Field(None, description="a description for people")
    parameters: tuple[Parameter, ...] = Field(
        (), description="parameters, such as scope and min-score; an Evaluation can replace them"
    )
    selector: Annotated[EvaluatorSelector | None, AUTOMATIC] = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.address and self.agent:
            raise FieldError(("agent",), "can't be combined with address: keep one of them")
        return self


class Evaluator(Manifest):
    """What evaluates answers."""

    kind: Literal["Evaluator"] = "Evaluator"
    spec: EvaluatorSpec = Field(description="who evaluates, and how")

    @property
    def address(self) -> ValueSource | None:
        """The address of its service."""
        return self.spec.address

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        if self.spec.agent:
            yield self._refer(("spec", "agent", "name"), ("Agent",), self.spec.agent)
        if self.spec.model_ref:
            yield self._refer(("spec", "modelRef", "name"), ("Model",), self.spec.model_ref)


class EvaluatorRef(Ref):
    """The Evaluator of an Evaluation, with parameters of its own."""

    parameters: tuple[Parameter, ...] = Field((), description="parameters, in addition to those of the Evaluator")


class EvaluatedQuery(Ref):
    """A query whose answer is evaluated: that of its newest run."""

    response_target: str | None = Field(None, description="the name of the target whose answer is evaluated")
    response_index: int | None = Field(None, ge=0, description="the index of the answer, as in older releases")


class EventRule(JsonModel):
    """An expression over the events of a run."""

    name: Text = Field(description="the rule's name")
    expression: Text = Field(description="the expression, such as tool.was_called(), or in CEL over events")
    description: str | None = Field(None, description="a description for people")
    weight: float = Field(1, ge=0, description="its share of the score")


class EvaluationConfig(JsonModel):
    """The fields of an Evaluation that belong to its type."""

    input: str | None = Field(None, description="the question, of the type 'direct'")
    output: str | None = Field(None, description="the answer, of the type 'direct'")
    query_ref: EvaluatedQuery | None = Field(None, description="{name, namespace} of a query whose run is evaluated")
    evaluations: tuple[Ref, ...] = Field((), description="names of Evaluations, of the type 'batch'")
    rules: tuple[EventRule, ...] = Field((), description="rules {name, expression, weight}, of the type 'event'")
    items: Annotated[tuple[JsonObject, ...], NOT_SUPPORTED_YET] = ()
    template: Annotated[JsonObject | None, NOT_SUPPORTED_YET] = None
    query_selector: Annotated[LabelSelector | None, NOT_SUPPORTED_YET] = None
    concurrency: Annotated[int | None, NoEffect("see baton eval --concurrency")] = None
    continue_on_failure: Annotated[bool | None, NoEffect("all evaluations are run")] = None
    golden_dataset_ref: Ref | None = Field(None, description="{name} of a GoldenDataset, of the mode 'dataset'")


class EvaluationSpec(JsonModel):
    """The ``spec`` of an Evaluation: what is evaluated, and by which Evaluator."""

    type: EvaluationType | None = Field(
        None, description="'direct' (the default), 'dataset', 'query', 'batch' or 'event'; 'baseline' is not supported"
    )
    mode: EvaluationType | None = Field(None, description="the same, as in older releases")
    config: EvaluationConfig | None = Field(None, description="the fields of the type")
    evaluator: EvaluatorRef | None = Field(None, description="{name, parameters} of the Evaluator")
    input: str | None = Field(None, description="the question, as in older releases")
    output: str | None = Field(None, description="the answer, as in older releases")
    query_ref: EvaluatedQuery | None = Field(None, description="the query, as in older releases")
    golden_dataset_ref: Ref | None = Field(None, description="{name} of a GoldenDataset")
    timeout: Duration = Field("5m", description="how long each run of a judge or a service may take")
    ttl: Annotated[Duration | None, EXPIRES] = None

    @property
    def kind_of(self) -> EvaluationType:
        """Its type."""
        return self.type or self.mode or "direct"

    @property
    def settings(self) -> EvaluationConfig:
        """The fields of its type, wherever they are written."""
        older = {
            name: value
            for name in ("input", "output", "query_ref", "golden_dataset_ref")
            if (value := getattr(self, name)) is not None
        }
        return (self.config or EvaluationConfig()).model_copy(update=older)

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:  # noqa: C901  # one case for each type
        if self.type and self.mode:
            raise FieldError(("mode",), "can't be combined with type: keep one of them")
        settings = self.settings
        where: tuple[str, ...] = () if self.mode else ("config",)
        has_text = settings.input is not None or settings.output is not None
        match self.kind_of:
            case "direct":
                for name in ("input", "output"):
                    if not getattr(settings, name):
                        raise FieldError((*where, name), "is missing: the type 'direct' has an input and an output")
                if settings.query_ref:
                    raise FieldError((*where, "queryRef"), "is for the types 'query' and 'event'")
            case "query":
                if not settings.query_ref:
                    raise FieldError((*where, "queryRef"), "is missing: the type 'query' names a query")
                if has_text:
                    raise FieldError((*where, "input"), "is for the type 'direct'; the query has both")
            case "batch" if not (settings.evaluations or settings.items or settings.query_selector):
                raise FieldError((*where, "evaluations"), "is missing: the type 'batch' names evaluations")
            case "event" if not settings.rules:
                raise FieldError((*where, "rules"), "is missing: the type 'event' has rules")
            case "dataset" if not settings.golden_dataset_ref:
                raise FieldError((*where, "goldenDatasetRef"), "is missing: the mode 'dataset' names a GoldenDataset")
        return self


class Evaluation(Manifest):
    """An evaluation of one or several answers."""

    kind: Literal["Evaluation"] = "Evaluation"
    spec: EvaluationSpec = Field(description="what is evaluated, and how")

    def _references(self) -> Iterator[Reference]:
        yield from super()._references()
        settings = self.spec.settings
        if self.spec.evaluator:
            yield self._refer(("spec", "evaluator", "name"), ("Evaluator",), self.spec.evaluator)
        if settings.golden_dataset_ref:
            path = ("spec", "goldenDatasetRef", "name")
            yield self._refer(path, ("GoldenDataset",), settings.golden_dataset_ref)
        for index, evaluation in enumerate(settings.evaluations):
            yield self._refer(("spec", "config", "evaluations", index, "name"), ("Evaluation",), evaluation)


class GoldenCase(JsonModel):
    """A question with the answer that is expected."""

    input: Text = Field(description="the question")
    expected_output: Text = Field(description="the expected answer")
    metadata: dict[str, str] = Field({}, description="values for people")


class GoldenDatasetSpec(JsonModel):
    """The ``spec`` of a GoldenDataset."""

    test_cases: dict[Name, GoldenCase] = Field(min_length=1, description="the cases by name, {input, expectedOutput}")


class GoldenDataset(Manifest):
    """Questions with expected answers."""

    kind: Literal["GoldenDataset"] = "GoldenDataset"
    spec: GoldenDatasetSpec = Field(description="its cases")
