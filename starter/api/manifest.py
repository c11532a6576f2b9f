"""What does a program make? Manifests as a file would hold them, with all that they bring along."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from pydantic import BaseModel, JsonValue
from pydantic.alias_generators import to_camel
from pydantic_core import to_jsonable_python

from ...resources.base import API_VERSION, JsonObject
from ...resources.documents import Document
from ...resources.functions import Function, name_of
from ...resources.loader import Loaded, load_documents

AS_THEY_ARE = ("output_schema", "outputSchema", "session", "parameters", "properties", "labels", "data")
"""Mappings whose keys are the program's own words."""


class Manifest:
    """A manifest of any kind: ``Manifest("Tool", "weather", {...})``, with a ``spec`` as a file has it.

    It brings along the manifests and functions in ``luggage``. ``answers`` is the pydantic model that its answer is
    read into. Raises ManifestError for all that is wrong with it, as a file's manifest is refused.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, object],
        *,
        namespace: str = "default",
        luggage: "Luggage | None" = None,
        answers: type[BaseModel] | None = None,
    ) -> None:
        metadata = {"name": name, "namespace": namespace}
        given = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        self.kind, self.name, self.namespace, self.answers = kind, name, namespace, answers
        self.manifest = cast(JsonObject, to_jsonable_python(given, by_alias=True))
        self.luggage = luggage or Luggage()
        load([self])

    def everything(self) -> Iterator["Manifest"]:
        """The manifest, and all that it brings along."""
        yield self
        for each in self.luggage.manifests:
            yield from each.everything()

    def functions(self) -> tuple[Function, ...]:
        """The functions that it and whatever it brings along name."""
        return distinct(function for each in self.everything() for function in each.luggage.functions)


class Luggage:
    """The manifests and functions that stand in what a program has given, while names take their places."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.functions: list[Function] = []

    def function(self, given: Function) -> str:
        """The name of a function that is brought along."""
        self.functions.append(given)
        return name_of(given)

    def speaker(self, given: object) -> object:
        """Who speaks, as ``{name, type}``; a name, true and false stand for themselves."""
        if isinstance(given, Manifest):
            self.manifests.append(given)
            return {"name": given.name, "namespace": given.namespace, "type": given.kind.lower()}
        return {"name": self.function(given), "type": "activity"} if callable(given) else plain(given)

    def named(self, given: object) -> object:
        """A text, or a function by its name, perhaps with parameters: ``{"function": f, "parameters": {...}}``."""
        if callable(given):
            return {"function": self.function(given)}
        if isinstance(given, Mapping) and callable(inner := given.get("function")):
            return {**given, "function": self.function(inner)}
        return given

    def reference(self, given: object) -> object:
        """A resource by its name."""
        if isinstance(given, Manifest):
            self.manifests.append(given)
            return {"name": given.name, "namespace": given.namespace}
        return plain(given)

    def tool(self, given: object) -> object:
        """A tool, as ``{name}``."""
        if isinstance(given, Manifest):
            self.manifests.append(given)
            return {"name": given.name, "type": "custom"}
        return {"name": given} if isinstance(given, str) else plain(given)


def plain(given: object) -> object:
    """A value with its keys in camelCase, as a manifest has them."""
    if isinstance(given, Mapping):
        return {
            to_camel(key): value if key in AS_THEY_ARE and isinstance(value, Mapping) else plain(value)
            for key, value in given.items()
        }
    return [plain(one) for one in given] if isinstance(given, list | tuple) else given


def fields(given: Mapping[str, object]) -> dict[str, object]:
    """A spec's fields without those that are left out, which are None."""
    return cast(dict[str, object], plain({key: value for key, value in given.items() if value is not None}))


def schema_of(given: object) -> tuple[object, type[BaseModel] | None]:
    """A JSON Schema, and the pydantic model that it was given as, if it was."""
    if isinstance(given, type) and issubclass(given, BaseModel):
        return given.model_json_schema(), given
    return given, None


def known(options: type, given: Mapping[str, Any], what: str) -> None:
    """Raises TypeError for an option that there is not, as Python does for an argument."""
    if unknown := sorted(given.keys() - options.__annotations__.keys()):
        raise TypeError(f"{what}() got an unexpected keyword argument '{unknown[0]}'")


def load(made: Iterable[Manifest]) -> Loaded:
    """Reads manifests, each once, as the loader reads a file's; raises ManifestError."""
    documents: list[JsonValue] = []
    for each in (inner for one in made for inner in one.everything()):
        if each.manifest not in documents:
            documents.append(each.manifest)
    return load_documents(Document("", data, {}) for data in documents)


def distinct(functions: Iterable[Function]) -> tuple[Function, ...]:
    """Functions, each once. Raises ValueError for two that go by one name."""
    known: dict[str, Function] = {}
    for one in functions:
        if known.setdefault(name_of(one), one) is not one:
            raise ValueError(f"two functions go by the name '{name_of(one)}': name one by @baton.function('…')")
    return tuple(known.values())
