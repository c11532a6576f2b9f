"""Fixtures for pytest: ``pytest_plugins = ["baton.testing.pytest"]`` in a conftest.py, or ``-p baton.testing.pytest``.

They need no plugin for async tests, and can be used in async tests as well.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pytest
from temporalio.client import Client

from ..resources.functions import Function
from ..starter.api.definitions import Source
from .environments import Environment, ModelSource, environment, server


class EnvironmentFactory(Protocol):
    """The type of the fixture ``baton_environment``."""

    def __call__(
        self,
        *manifests: Source,
        model: ModelSource | None = None,
        functions: Sequence[Function] = (),
        settings: Mapping[str, str] | None = None,
        server: str | Client | None = None,
        recursive: bool = False,
    ) -> Environment:
        """Opens an environment, as ``baton.testing.environment`` does, until the test ends."""
        ...


@pytest.fixture(scope="session")
def baton_server() -> Iterator[str]:
    """The address of a Temporal server that all tests of a process share. Override it to use another server."""
    with server() as address:
        yield address


@pytest.fixture
def baton_environment(baton_server: str) -> Iterator[EnvironmentFactory]:
    """Opens environments on that server: ``env = baton_environment("teams/", model={…})``."""
    with contextlib.ExitStack() as opened:

        def opened_environment(
            *manifests: Source,
            model: ModelSource | None = None,
            functions: Sequence[Function] = (),
            settings: Mapping[str, str] | None = None,
            server: str | Client | None = None,
            recursive: bool = False,
        ) -> Environment:
            return opened.enter_context(
                environment(
                    *manifests,
                    model=model,
                    functions=functions,
                    settings=settings,
                    server=server or baton_server,
                    recursive=recursive,
                )
            )

        yield opened_environment
