"""Variants of a team that are compared: their files, and the manifests of each of them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_evals import Case, Dataset

from ...resources.agent import Agent
from ...resources.base import JsonObject
from ...resources.catalog import Resource
from ...resources.documents import Document, manifest_files, read_documents
from ...resources.loader import Loaded, load_documents
from ...resources.parse import manifest_of, split_list
from ...resources.problems import ManifestError
from ...resources.secret import Secret
from ...resources.team import Team
from ..errors import UsageError
from .datasets import dataset_of, load_dataset
from .evaluators import AgentJudge


class _FileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class JudgeSettings(_FileModel):
    """The judge of all variants, as the arguments of an ``AgentJudge``."""

    rubric: str
    agent: str | None = None
    model: str | None = None
    include_messages: bool = False
    include_tool_calls: bool = False


class Variant(_FileModel):
    """One variant: what it has other than the others.

    ``target`` is what is asked, ``files`` are manifests that are added to the common ones or replace them. ``model`` is
    the model of all agents, default members and selectors, a Model or a name; ``prompt`` is that of the target, an
    agent. ``set`` has fields of the specs of single manifests, as in ``{"agent/critic": {"prompt": "…"}}``.
    """

    name: str = Field(min_length=1)
    target: str | None = None
    files: list[str] = []
    model: str | None = None
    prompt: str | None = None
    set_: dict[str, dict[str, Any]] = Field({}, alias="set")


class VariantsFile(_FileModel):
    """A file of variants: one ``question``, or ``cases`` (a file, or a list as in it), asked ``times`` times each.

    With a ``run``, the variants are forks of it at the place ``at``, and the question or the inputs are messages there.
    """

    run: str | None = None
    at: str | int | None = None
    question: str | None = None
    cases: str | list[dict[str, Any]] | None = None
    evaluators: list[Any] = []
    judge: JudgeSettings | None = None
    times: int = Field(1, ge=1)
    target: str | None = None
    files: list[str] = []
    variants: list[Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_one_question(self) -> Self:
        asked = (self.question is not None) + (self.cases is not None)
        if asked > 1 or (asked == 0 and self.run is None):
            raise ValueError("needs either a question or cases, or a run to fork")
        names = [variant.name for variant in self.variants]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two variants have the name '{twice}'")
        return self


def read_variants(path: Path) -> VariantsFile:
    """Reads a file of variants. Raises UsageError."""
    try:
        return VariantsFile.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors())
        raise UsageError(f"{path}: {'; '.join(problems)}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {error}") from None


def dataset_of_variants(file: VariantsFile, path: Path) -> Dataset[Any, Any, Any]:
    """The cases that all variants are asked, with their evaluators and the judge. Raises UsageError.

    Forks of a run have one case without inputs, unless the file has others.
    """
    if isinstance(file.cases, str):
        dataset = load_dataset(path.parent / file.cases)
    elif file.cases is not None:
        dataset = dataset_of({"cases": file.cases}, path)
    else:
        dataset = Dataset[Any, Any, Any](
            name=path.stem, cases=[Case(name="question" if file.question else "fork", inputs=file.question)]
        )
    if file.evaluators:
        first, *_ = dataset.cases
        added = dataset_of({"cases": [{"inputs": first.inputs}], "evaluators": file.evaluators}, path)
        dataset.evaluators.extend(added.evaluators)
    if file.judge:
        dataset.evaluators.append(AgentJudge(**file.judge.model_dump()))
    return dataset


def manifests_of(variant: Variant, common: Sequence[Path], folder: Path, target: str | None) -> Loaded:
    """The manifests of a variant: the common ones, with its own and its changes. Raises ManifestError, UsageError."""
    own = [*_documents([folder / file for file in variant.files])]
    replaced = {_key(document) for document in own}
    documents = [*(one for one in _documents(common) if _key(one) not in replaced), *own]
    changes = {key.lower(): dict(fields) for key, fields in variant.set_.items()}
    if variant.prompt is not None:
        key = (variant.target or target or "").lower()
        if not key.startswith("agent/"):
            raise UsageError(
                f"variant {variant.name}: a prompt is for a target agent/NAME; use set for members of teams"
            )
        changes.setdefault(key, {})["prompt"] = variant.prompt
    known = {_key(document) for document in documents}
    if unknown := sorted(changes.keys() - known):
        raise UsageError(
            f"variant {variant.name}: the files have no {unknown[0]}; they have: {', '.join(sorted(known))}"
        )
    changed = [_changed(document, changes.get(_key(document), {})) for document in documents]
    if variant.model is not None:
        changed = [_with_model(document, variant.model) for document in changed]
    return load_documents(changed, folders=True)


def check_model_is_used(variant: Variant, reached: Iterable[Resource]) -> None:
    """Raises UsageError if the variant has a model that none of the manifests that its runs reach calls."""
    if variant.model is not None and not any(_model_fields(manifest, variant.model) for manifest in reached):
        raise UsageError(
            f"variant {variant.name}: nothing of the files that is asked has a model that could be {variant.model}"
        )


def _documents(paths: Sequence[Path]) -> Iterator[Document]:
    for path in paths:
        for file in manifest_files(path, recursive=False):
            for document in read_documents(file):
                yield from split_list(document)


def _key(document: Document) -> str:
    """The key of a manifest, as in ``agent/critic``."""
    data = document.data if isinstance(document.data, dict) else {}
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return f"{data.get('kind')}/{name}".lower()


def _changed(document: Document, fields: dict[str, Any]) -> Document:
    """The document with other fields of its spec."""
    data = cast(JsonObject, document.data)
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return document
    return replace(document, data={**data, "spec": {**spec, **fields}})


def _with_model(document: Document, model: str) -> Document:
    """The document with this model wherever its manifest has one."""
    try:
        manifest = manifest_of(document)
    except ManifestError:
        return document  # load_documents reports it, with all other errors
    fields = _model_fields(manifest, model) if manifest else {}
    if not fields:
        return document
    changed = _changed(document, fields)
    cast(JsonObject, cast(JsonObject, changed.data)["spec"]).pop("modelRef", None)
    return changed


def _model_fields(manifest: Resource | Secret, model: str) -> JsonObject:
    """The fields of a spec with which its agent, the default members of its panel, or its selector call this model."""
    named: JsonObject = {"name": model}
    if isinstance(manifest, Agent):
        return {} if manifest.is_a2a or manifest.spec.execution_engine else {"model": named}
    if not isinstance(manifest, Team):
        return {}
    fields: JsonObject = {}
    if manifest.spec.is_panel:
        fields["model"] = named
    selector = manifest.spec.selector
    if manifest.spec.rules.order == "selected" and not (selector and (selector.agent or selector.function)):
        own = selector.model_dump(mode="json", by_alias=True, exclude_unset=True) if selector else {}
        fields["selector"] = {**own, "model": named}
    return fields
