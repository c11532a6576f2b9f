"""Writes manifests into files, loads them, and returns what is wrong with them."""

from pathlib import Path

import pytest
import yaml

from baton.resources.loader import Loaded, load_files
from baton.resources.problems import ManifestError
from tests.harness.environment import Json, manifest


class Writer:
    """Writes manifests into files, and loads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, *manifests: object, text: str | None = None) -> Loaded:
        return load_files([self.file(*manifests, text=text)])

    def file(self, *manifests: object, text: str | None = None, name: str = "m.yaml") -> Path:
        file = self.folder / name
        file.write_text(text if text is not None else yaml.safe_dump_all(manifests, sort_keys=False))
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
