"""Reads the cases of evaluations from files, in pydantic-evals' format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_evals import Dataset
from pydantic_evals.evaluators import Evaluator

from ..errors import UsageError
from .evaluators import EVALUATORS


def is_dataset(path: Path) -> bool:
    """Whether a file has cases, and no manifests: a mapping with ``cases``, and without ``kind``."""
    if not path.is_file() or path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return False
    try:
        data = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError):  # several documents, or no YAML: the loader of manifests says so
        return False
    return isinstance(data, dict) and "cases" in data and "kind" not in data


def load_dataset(path: Path, evaluators: Sequence[type[Evaluator[Any, Any, Any]]] = ()) -> Dataset[Any, Any, Any]:
    """The dataset in a file, whose cases may use Baton's evaluators and others. Raises UsageError."""
    try:
        data = yaml.safe_load(path.read_text())
        if not isinstance(data, dict):
            raise UsageError(f"{path}: is not a mapping with cases")
        return dataset_of(data, path, evaluators)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {error}") from None


def dataset_of(
    data: dict[str, Any], path: Path, evaluators: Sequence[type[Evaluator[Any, Any, Any]]] = ()
) -> Dataset[Any, Any, Any]:
    """The dataset in a mapping from a file. Raises UsageError."""
    try:
        dataset = Dataset[Any, Any, Any].from_dict(data, [*EVALUATORS, *evaluators], default_name=path.stem)
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UsageError(f"{path}: {'; '.join(problems)}") from None
    except ExceptionGroup as group:
        raise UsageError(f"{path}: {'; '.join(str(error) for error in group.exceptions)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not dataset.cases:
        raise UsageError(f"{path}: has no cases")
    return dataset
