"""The secrets in the variables of a worker's environment: keys, tokens, passwords, and the values of headers."""

from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from ...conversation.temporal.encryption import KEYS

_KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "TEMPORAL_API_KEY",
)
_PAIRS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Headers as ``name=secret,…``."""

_LINES = ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS")
"""Headers as lines ``name: secret``."""


def environment_secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets of an environment, also those that a library reads there and Baton does not."""
    yield from (environment.get(name, "") for name in _KEYS)
    yield from (each.rpartition(":")[2] for each in environment.get(KEYS, "").replace(",", " ").split())
    for name in _PAIRS:
        for pair in environment.get(name, "").split(","):
            yield from _of_header(unquote(pair.partition("=")[2]))
    for name in _LINES:
        for line in environment.get(name, "").splitlines():
            yield from _of_header(line.partition(":")[2])
    yield _password(environment.get("BATON_JOURNAL_URL", ""))


def _of_header(value: str) -> Iterator[str]:
    """The value of a header, and what comes after its scheme, as in ``Bearer TOKEN``."""
    value = value.strip()
    yield value
    if (scheme := value.partition(" "))[2] and scheme[0].lower() in ("basic", "bearer", "token"):
        yield scheme[2].strip()


def _password(url: str) -> str:
    """The password of a database's address."""
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""
