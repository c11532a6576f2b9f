"""The program that applies the hook of BATON_REDACT to texts. A slow pattern or function is ended with its process."""

import importlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..contracts.settings import REDACT
from ..installation import DISTRIBUTION, MissingExtraError, is_installed

PRESIDIO = "presidio"

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

Redact = Callable[[str], str]


def load(hook: str) -> Redact:
    """The function that a value of the setting names.

    Raises ValueError, OSError, ImportError or AttributeError, with a text for the operator.
    """
    if hook == PRESIDIO:
        return presidio_patterns()
    if _FUNCTION.fullmatch(hook):
        module, _, name = hook.partition(":")
        function: Any = importlib.import_module(module)
        for attribute in name.split("."):
            function = getattr(function, attribute)
        if not callable(function):
            raise ValueError(f"{hook} is not a function")
        redact: Redact = function
        return redact
    if hook.startswith("{"):
        return _by_patterns(json.loads(hook))
    return _by_patterns(yaml.safe_load(Path(hook).read_text(encoding="utf-8")))


def _by_patterns(patterns: object) -> Redact:
    """Replaces each match of a pattern by its name, as in ``[email]``."""
    if not isinstance(patterns, Mapping) or not patterns:
        raise ValueError("write patterns by name, such as email: '[\\w.+-]+@[\\w-]+\\.[\\w.-]+'")
    compiled = []
    for name, pattern in patterns.items():
        try:
            compiled.append((f"[{name}]", re.compile(str(pattern))))
        except re.error as error:
            raise ValueError(f"the pattern '{name}' is not a regular expression: {error}") from None

    def redact(text: str) -> str:
        for placeholder, pattern in compiled:
            text = pattern.sub(placeholder.replace("\\", r"\\"), text)
        return text

    return redact


RECOGNIZERS = (
    "CreditCardRecognizer",
    "CryptoRecognizer",
    "EmailRecognizer",
    "IbanRecognizer",
    "IpRecognizer",
    "MacAddressRecognizer",
    "PhoneRecognizer",
    "UkNinoRecognizer",
    "UsSsnRecognizer",
)
"""Presidio's recognizers that need no language model, and hardly match anything else."""

LOWEST_SCORE = 0.4
"""Of a match: lower ones need words around them, which only a language model of spaCy finds."""


def presidio_patterns() -> Redact:
    """Replaces what Presidio's recognizers find by the kind of the data, as in ``[email_address]``.

    Raises MissingExtraError without the extra, which is in no lock, because it brings spaCy. Names of people and places
    need a model of spaCy, and so a function of one's own.
    """
    if not is_installed("presidio_analyzer"):
        raise MissingExtraError(f'{REDACT}={PRESIDIO} needs packages: pip install "{DISTRIBUTION}[presidio]"')
    predefined: Any = importlib.import_module("presidio_analyzer.predefined_recognizers")
    recognizers = [getattr(predefined, name)() for name in RECOGNIZERS]
    for recognizer in recognizers:
        if recognizer.name == "EmailRecognizer":
            recognizer.validate_result = lambda _: None  # it would load a list of domains from the internet

    def redact(text: str) -> str:
        found = [
            match
            for recognizer in recognizers
            for match in recognizer.analyze(text, recognizer.supported_entities, None)
            if match.score >= LOWEST_SCORE
        ]
        parts: list[str] = []
        end = 0
        for match in sorted(found, key=lambda match: (match.start, -match.score)):
            if match.start >= end:
                parts += (text[end : match.start], f"[{match.entity_type.lower()}]")
            end = max(end, match.end)  # of several that overlap, the first one stands for all
        return "".join(parts) + text[end:]

    return redact


_redact = load(os.environ[REDACT]) if REDACT in os.environ else str


def redact_texts(texts: list[str]) -> list[str]:
    """The texts without personal data. Of a JSON object or array its strings and numbers are redacted one by one.

    An error of the hook has only its type as the message: its text could repeat the personal data.
    """
    try:
        return [_redacted(text) for text in texts]
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(type(error).__name__) from None


def _redacted(text: str) -> str:
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return _called(text)
        clean = _redacted_json(value)
        return text if clean == value else json.dumps(clean, ensure_ascii=False)
    return _called(text)


def _redacted_json(value: Any) -> Any:
    match value:
        case str():
            return _called(value)
        case dict():
            return {_called(name): _redacted_json(item) for name, item in value.items()}
        case list():
            return [_redacted_json(item) for item in value]
        case int() | float() if not isinstance(value, bool):
            text = json.dumps(value)
            return value if (clean := _called(text)) == text else clean
    return value


def _called(text: str) -> str:
    clean = _redact(text)
    if not isinstance(clean, str):
        raise TypeError("the hook returned no text")
    return clean
