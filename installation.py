"""What is installed: the distribution, the extras that its features need, and no other distribution in its folder.

The import of this module raises ImportError if pip has installed another distribution into the package's folder.
"""

import os
import re

DISTRIBUTION = "baton-teams"
"""The name that pip installs. The package on the index that is named ``baton``, as the import, is another project's."""

EXTRAS = {
    "worker": (
        "ahocorasick_rs",
        "alembic",
        "cachetools",
        "cel",
        "httpx",
        "httpx2",
        "jq",
        "jsonschema",
        "openai",
        "opentelemetry",
        "pythonjsonlogger",
        "regex",
        "sqlalchemy",
        "starlette",
        "uvicorn",
    ),
    "cli": ("cel", "jsonschema", "rich", "typer"),
    "server": (),  # a program, not a module
    "mcp": ("cryptography", "mcp"),
    "a2a": ("a2a",),
    "gateway": ("a2a", "ag_ui", "jwt", "mcp", "starlette", "uvicorn"),
    "evals": ("pydantic_evals",),
    "otel": (
        "opentelemetry.exporter.otlp",
        "opentelemetry.exporter.prometheus",
        "opentelemetry.sdk",
        "prometheus_client",
    ),
    "postgres": ("asyncpg",),
    "encryption": ("cryptography",),
    "anthropic": ("anthropic",),
    "bedrock": ("aiobotocore",),
    "s3": ("aioboto3",),
}
"""The extras in pyproject.toml, and the modules that are imported only where an extra is installed."""


class MissingExtraError(ImportError):
    """A feature needs packages of an extra that is not installed. The message says how to install it."""


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    from importlib.util import find_spec  # noqa: PLC0415  # most clients don't need it

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def install_hint(extra: str, feature: str) -> str:
    """The sentence that a feature needs an extra; ``feature`` is its subject, such as "a worker"."""
    return f'{feature} needs packages that are not installed: pip install "{DISTRIBUTION}[{extra}]"'


def missing_extra(extra: str, feature: str) -> str | None:
    """The sentence that a feature needs an extra; None if its packages are installed."""
    return None if all(map(is_installed, EXTRAS[extra])) else install_hint(extra, feature)


def require(extra: str, feature: str) -> None:
    """Raises MissingExtraError if the packages of an extra that a feature needs are not installed."""
    if missing := missing_extra(extra, feature):
        raise MissingExtraError(missing)


def version() -> str:
    """The version of Baton."""
    from importlib.metadata import version as version_of  # noqa: PLC0415  # takes 10 ms

    return version_of(DISTRIBUTION)


def _check_folder() -> None:
    """Raises ImportError if another distribution has installed its own ``baton`` into the package's folder.

    Pip overwrites files of the same name without a word. The names in a folder are read without importlib.metadata, as
    that takes longer than the rest of ``import baton``.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # pathlib takes 5 ms
    others = [name for name in os.listdir(folder) if re.fullmatch(r"baton-\d.*\.(dist|egg)-info", name)]  # noqa: PTH208
    if others:
        raise ImportError(
            f"the package 'baton' in {folder} is shared by '{DISTRIBUTION}' and another distribution, which is named "
            f"'baton': pip uninstall baton, then pip install --force-reinstall --no-deps {DISTRIBUTION}"
        )


_check_folder()
