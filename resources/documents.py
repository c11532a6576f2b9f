"""Reads YAML and JSON files as plain values with line numbers, within limits of size and depth."""

import math
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import BinaryIO, cast

import yaml
from pydantic import JsonValue

from .base import Path
from .problems import ManifestError, Problem

VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_HELM = re.compile(
    r"\{\{-|-\}\}|\{\{\s*(?:\$|\.(?:Values|Release|Chart|Capabilities|Files|Template)\b"
    r"|(?:include|template|define|if|with|range|toYaml|tpl|default|required)\s+[^\s}])"
)
"""Expressions of Helm charts. A plain ``{{.name}}`` is a placeholder of a manifest's own templates (ARK: queries)."""

FREE_TEXT = frozenset(
    {
        "prompt",
        "input",
        "description",
        "goal",
        "role",
        "stance",
        "terminatePrompt",
        "selectorPrompt",
        "data",
        "outputSchema",
        "inputSchema",
        "annotations",
        "instructions",
        "files",
    }
)
"""Fields with free text, which may legitimately contain such expressions."""

RENDER_CHART = "looks like an unrendered Helm template: run 'helm template CHART > FILE' first"


NOT_REPLACED = "was not replaced: set the variable and run 'envsubst < FILE > RENDERED' first, or write the value"
"""The error text for a variable."""


def unrendered(data: JsonValue) -> Iterator[tuple[Path, str]]:
    """The unrendered variables and Helm expressions outside free text, as paths and error texts."""
    for path, text in _texts(data):
        if FREE_TEXT.isdisjoint(path):
            if variable := VARIABLE.search(text):
                yield path, f"'{variable[0]}' {NOT_REPLACED}"
            elif _HELM.search(text) or (path[0] == "metadata" and "{{" in text):
                yield path, RENDER_CHART


def variables_in_free_text(data: JsonValue) -> Iterator[tuple[Path, str]]:
    """The places in free text that look like a variable, as paths and warning texts."""
    for path, text in _texts(data):
        if not FREE_TEXT.isdisjoint(path) and (variable := VARIABLE.search(text)):
            yield path, f"'{variable[0]}' is read literally; if it is a variable, run 'envsubst' first"


def _texts(value: JsonValue, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All texts in a value, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*path, step))


def not_yaml(problem: str | None, text: str) -> str:
    """The error text for a text that is not YAML; ``problem`` is that of the parser."""
    return RENDER_CHART if _HELM.search(text) else f"is not YAML: {_EXPLAINED.get(problem or '', problem)}"


_INDENTATION = "its indentation doesn't match the lines above"
_EXPLAINED = {
    "did not find expected key": _INDENTATION,
    "did not find expected '-' indicator": _INDENTATION,
    "mapping values are not allowed in this context": "an unexpected colon: check the indentation, or add quotes",
    "could not find expected ':'": "a key without a colon, or a text whose quotes are not closed",
    "found character that cannot start any token": "a character that can't begin a value: use spaces, or quotes",
}
"""What common errors of the parser mean."""


STDIN = FilePath("-")  # as in kubectl apply -f -
MAX_BYTES = 4_000_000
MAX_VALUES = 100_000
MAX_DEPTH = 64


def is_stream(file: FilePath) -> bool:
    """Whether it can be read once only: standard input, or the output of a command, as in ``-f <(command)``."""
    if file == STDIN:
        return True
    is_of_process = file.is_relative_to("/dev") or file.is_relative_to("/proc")
    return is_of_process and stat.S_ISFIFO(file.stat().st_mode)


@dataclass(frozen=True)
class Document:
    """A YAML document, with the lines of all its values."""

    file: str
    data: JsonValue = field(repr=False)
    lines: dict[Path, int] = field(repr=False)

    def line(self, path: Path) -> int:
        """The line of the value at ``path``, or of its nearest parent; 0 if there are no lines."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 0)

    def part(self, path: Path) -> "Document":
        """A document for the part at ``path``, without its data: errors in it name the lines of this one."""
        lines = {place[len(path) :]: line for place, line in self.lines.items() if place[: len(path)] == path}
        return Document(self.file, None, lines)


class _Loader(yaml.CSafeLoader):
    """YAML 1.2's core schema: no dates, no ``yes`` for true, no numbers in base 60."""

    yaml_implicit_resolvers = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("int", r"[-+]?(0|[1-9][0-9]*)", [*"-+0123456789"]),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)", [*"-+.0123456789"]),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_documents(file: FilePath) -> list[Document]:
    """Reads all documents of a YAML or JSON file, within the limits above. Raises ManifestError."""
    return parse_documents(_PAIR.sub(_character, _text(file)) if file.suffix == ".json" else _text(file), file)


def parse_documents(text: str, file: FilePath) -> list[Document]:
    """Parses the documents in a text; errors name ``file``. Raises ManifestError."""
    documents = list[Document]()
    try:
        _check_shape(text)
        loader = _Loader(text)
        reader = _Reader(loader)
        while loader.check_node():
            if node := loader.get_node():
                reader.lines = {}
                documents.append(Document(str(file), reader.value(node, ()), reader.lines))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _refusal(file, not_yaml(error.problem or error.context, text), mark.line + 1 if mark else 1) from None
    except yaml.YAMLError as error:
        raise _refusal(file, not_yaml(str(error).splitlines()[0], text)) from None
    return documents


def manifest_files(path: FilePath, *, recursive: bool) -> list[FilePath]:
    """The file itself, or all ``.yaml``, ``.yml`` and ``.json`` files in a folder, sorted by name.

    With ``recursive`` also those in its subfolders. A folder that can't be listed is in the list: reading it raises.
    """
    manifest_paths: list[FilePath] = []
    for folder, folders, files in os.walk(path, onerror=lambda error: manifest_paths.append(FilePath(error.filename))):
        folders[:] = [name for name in folders if recursive and not name.startswith(".")]
        names = (FilePath(name) for name in files if not name.startswith("."))
        manifest_paths.extend(folder / name for name in names if name.suffix in (".yaml", ".yml", ".json"))
    return sorted(manifest_paths)


_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
"""A character that is a pair of UTF-16 surrogates in JSON; YAML doesn't support such pairs."""


def _character(pair: re.Match[str]) -> str:
    return pair[1] + bytes.fromhex(pair[2] + pair[3]).decode("utf-16-be")


def _text(file: FilePath) -> str:
    try:
        with _opened(file) as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _refusal(file, f"is larger than {MAX_BYTES // 1_000_000} MB, the limit for a file of manifests")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refusal(file, "is not UTF-8 text") from None
    except OSError as error:
        raise _refusal(file, f"can't be read: {error.strerror}") from None


def _opened(file: FilePath) -> BinaryIO:
    if file == STDIN:
        return sys.stdin.buffer
    if not (stat.S_ISREG(mode := file.stat().st_mode) or is_stream(file)):  # opening a pipe would block
        raise _refusal(file, "is a folder that can't be listed" if stat.S_ISDIR(mode) else "is not a regular file")
    return file.open("rb")


def _check_shape(text: str) -> None:
    """Raises if the text is nested too deeply, which would overflow the stack, or has far too many values."""
    depth = 0
    for count, event in enumerate(_events(text)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _wrong(f"nested deeper than {MAX_DEPTH}", event)
        if count > 4 * MAX_VALUES:  # a value has at most four events: a document with an empty list
            raise _wrong(f"more than {MAX_VALUES:,} values", event)


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        if "maximum nesting depth" in (error.problem or ""):  # the C parser's own limit, which it reads ahead to
            error.problem = f"nested deeper than {MAX_DEPTH}"
        raise


def _refusal(file: FilePath, text: str, line: int = 0) -> ManifestError:
    return ManifestError([Problem(str(file), line, "", "", text)])


def _wrong(problem: str, place: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]  # a mark of the C parser


@dataclass
class _Reader:
    """Converts the YAML nodes of a file to plain values and records their lines. Aliases count as expanded."""

    loader: yaml.CSafeLoader
    lines: dict[Path, int] = field(default_factory=dict)
    values: int = 0
    characters: int = 0

    def value(self, node: yaml.Node, path: Path) -> JsonValue:
        self.values += 1
        self.characters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if self.values > MAX_VALUES or self.characters > MAX_BYTES or len(path) > MAX_DEPTH:
            raise _wrong("too large or too deep, or an alias that contains itself", node)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise _wrong(f"the tag {node.tag} is not known", node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, JsonValue]:
        merged: dict[str, JsonValue] = {}
        mapping: dict[str, JsonValue] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else ""
            self.characters += len(key)
            if not key:
                raise _wrong("a key must be text", key_node)
            if key in mapping:
                raise _wrong(f"the key '{key}' appears twice", key_node)
            if key == "<<":
                merged = self._merged(value_node, path) | merged
            else:
                self.lines[*path, key] = key_node.start_mark.line + 1
                mapping[key] = self.value(value_node, (*path, key))
        return merged | mapping

    def _merged(self, node: yaml.Node, path: Path) -> dict[str, JsonValue]:
        merged: dict[str, JsonValue] = {}
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.value(source, (*path, "<<"))
            if not isinstance(value, dict):
                raise _wrong("'<<' merges mappings only", source)
            merged = value | merged
        return merged

    def _scalar(self, node: yaml.Node) -> JsonValue:
        try:
            value = self.loader.construct_object(node)
        except (ValueError, KeyError, AttributeError, TypeError):
            raise _wrong(f"the value does not fit its tag {node.tag}", node) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong("not a number in JSON", node)
        if not isinstance(value, str | int | float | None):
            raise _wrong(f"the tag {node.tag} is not known", node)
        return cast(JsonValue, value)
