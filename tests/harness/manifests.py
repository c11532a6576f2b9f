"""Writes manifests into files, loads them, returns what is wrong with them, and makes catalogs of runs."""

from pathlib import Path

import pytest
import yaml

from baton.activities.runtime.outbound import Destination
from baton.resources.catalog import Catalog, Resource
from baton.resources.loader import Loaded, load_files
from baton.resources.problems import ManifestError
from baton.resources.provenance import Provenance
from baton.resources.run_catalog import RunCatalog
from tests.harness.environment import Json, manifest


class Writer:
    """Writes manifests into files, and loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, *manifests: object, text: str | None = None) -> Loaded:
        return load_files([self.file(*manifests, text=text)])

    def file(self, *manifests: object, text: str | None = None, name: str = "m.yaml") -> Path:
        file = self.folder / name
        file.write_text(
            text if text is not None else yaml.dump_all(manifests, Dumper=yaml.CSafeDumper, sort_keys=False)
        )
        return file

    def refusal(self, *manifests: object, text: str | None = None) -> list[str]:
        """The problems of manifests that are refused; their folder is removed from the texts."""
        with pytest.raises(ManifestError) as error:
            self.load(*manifests, text=text)
        return [str(problem).replace(f"{self.folder}/", "") for problem in error.value.problems]


def query(**spec: object) -> Json:
    """A Query named ``q``."""
    return manifest("Query", "q", {"input": "Why?", **spec})


def prealpha(kind: str, name: str, spec: Json) -> Json:
    """A manifest of a kind that ARK has in its pre-alpha version only."""
    return {**manifest(kind, name, spec), "apiVersion": "ark.mckinsey.com/v1prealpha1"}


def model(**config: object) -> Json:
    """A Model named ``m`` of type ``openai``."""
    return manifest("Model", "m", {"type": "openai", "model": {"value": "gpt"}, "config": {"openai": config}})


def own_catalog(*manifests: Resource) -> RunCatalog:
    """The catalog of a run with manifests of the worker's own files."""
    return RunCatalog.of_files(Catalog(manifests=manifests))


def own_server(url: str) -> Destination:
    """A server that a manifest of the worker names."""
    return Destination(url=url, provenance=Provenance.FILES, private_hosts=False)


def chosen_server(url: str, *, private_hosts: bool = False) -> Destination:
    """A server that a model has chosen."""
    return Destination(url=url, provenance=Provenance.MODEL, private_hosts=private_hosts)
