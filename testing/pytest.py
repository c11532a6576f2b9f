"""For pytest: ``pytest_plugins = ["baton.testing.pytest"]`` in a conftest.py, or ``-p baton.testing.pytest``.

The fixtures need no plugin for async tests, and can be used in async tests as well. Recordings, which are files named
``NAME.run.json``, are tests: each is replayed with the manifests of the option ``baton_manifests``.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from temporalio.client import Client

from ..resources.functions import Function
from ..starter.api.definitions import Source
from ..starter.operations.recording import SUFFIX
from .environments import Environment, ModelSource, environment, server
from .replays import own_settings, play


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of recordings to those of pytest's configuration file."""
    parser.addini("baton_manifests", "The files and folders of manifests for recordings.", type="paths", default=[])


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "RecordingFile | None":
    """Collects a recording, if the configuration names manifests."""
    if file_path.name.endswith(SUFFIX) and parent.config.getini("baton_manifests"):
        return RecordingFile.from_parent(parent, path=file_path)
    return None


class RecordingFile(pytest.File):
    """The file of a recording, with one test."""

    def collect(self) -> "Iterator[RecordingItem]":
        """The test, under the name of the recording."""
        yield RecordingItem.from_parent(self, name=self.path.name.removesuffix(SUFFIX))


class RecordingItem(pytest.Item):
    """Replays a recording, and fails if a call or the answer differs."""

    def runtest(self) -> None:
        """Replays it."""
        manifests = self.config.getini("baton_manifests")
        replay = play(self.path, manifests, models="recorded", tools="recorded", settings=own_settings())
        if not replay.unchanged:
            pytest.fail(replay.report, pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The heading of a failure."""
        return self.path, None, f"recording {self.name}"


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
