"""Runs the evaluations of files, and prints their reports."""

import asyncio
import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError
from pydantic_evals.evaluators import Evaluator
from pydantic_evals.reporting import EvaluationReport, EvaluationReportAdapter
from rich.console import Console

from ...contracts.settings import importable_from_here
from ...resources.catalog import Resource
from ...resources.loader import load_files
from ..api.ark_evaluations import evaluate_ark, has_evaluations
from ..api.client import Connection, Target
from ..api.definitions import Manifests, ResourceDefinition, load, load_definitions
from ..api.evaluate import CaseInputsError, compare, evaluate, slug
from ..errors import UsageError
from ..evaluation.baseline import compare_with_baseline
from ..evaluation.comparison import VariantsComparison
from ..evaluation.datasets import is_dataset, load_dataset
from ..evaluation.variants import (
    VariantsFile,
    check_model_is_used,
    dataset_of_variants,
    manifests_of,
    read_variants,
)
from ..runs.runs import find_run
from ..runs.start import asked_query, new_run_id
from ..text import escape_control_characters
from .options import OutputFormat
from .terminal import check_file, dump, print_message, print_result, write_file

WIDTH = 100
"""The width of a report that is printed through a pipe; on a terminal it is as wide as the terminal."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The arguments of ``baton eval``."""

    target: str | None
    files: Sequence[Path]
    recursive: bool
    id: str | None
    repeat: int
    concurrency: int
    timeout: str | None
    baseline: Path | None
    tolerance: float
    save: Path | None
    evaluators: Sequence[str]
    output: OutputFormat


async def run_comparison(
    path: Path,
    files: Sequence[Path],
    *,
    own_id: str | None,
    times: int | None,
    concurrency: int,
    run_timeout: str | None,
    at: str | None = None,
) -> VariantsComparison:
    """Asks all variants of a file their cases, or forks its run ``at`` a place with each of them.

    Raises UsageError, ManifestError and NotForkedError before the first run.
    """
    variants = read_variants(path)
    if variants.run is None and (at is not None or variants.at is not None):
        raise UsageError(f"{path}: at is a place in a run, and the file has no run")
    if variants.run is not None and run_timeout:
        raise UsageError("a fork keeps the timeout of its run: leave out --timeout")
    dataset = dataset_of_variants(variants, path)
    common = [*(path.parent / file for file in variants.files), *files]
    compared: dict[str, Target[Any] | Manifests] = {}
    judges: dict[str, ResourceDefinition[Any]] = {**Manifests(load_files(common))}
    for variant in variants.variants:
        manifests = Manifests(manifests_of(variant, common, path.parent, variants.target))
        if variants.run is not None:
            compared[variant.name] = manifests
            check_model_is_used(variant, manifests.catalog.manifests)
            continue
        target = find_target(manifests, variant.target or variants.target)
        compared[variant.name] = target
        check_model_is_used(variant, _reached(target))
    place = at if at is not None else variants.at
    comparison = own_id or new_run_id(slug(path.stem))
    print_message(f"comparison {comparison}", style="dim")
    with explain_return(comparison), errors_of_cases_in(path):
        async with Connection() as connection:
            if variants.run is not None:
                await check_targets(connection, variants.run, variants)
            return await compare(
                dataset,
                compared,
                run=variants.run,
                at=None if place is None else str(place),
                id=comparison,
                times=times or variants.times,
                max_concurrency=concurrency,
                judges=judges,
                connection=connection,
                timeout=run_timeout,
            )


def _reached(target: Target[Any]) -> Sequence[Resource]:
    """What runs of a target reach of the files; nothing if the target is one of the workers."""
    return load_definitions([target]).catalog.manifests if isinstance(target, ResourceDefinition) else ()


async def check_targets(connection: Connection, run: str, variants: VariantsFile) -> None:
    """Raises UsageError if a variant of a fork of a run has another target than the run. Raises NoSuchRunError."""
    client = await connection.client()
    handle = await find_run(client, run, "default")
    query = await asked_query(client, handle.id, (await handle.describe()).run_id)
    asked = {f"{reference.kinds[0]}/{reference.name}".lower() for reference in query.targets()} if query else set()
    for variant in variants.variants:
        target = variant.target or variants.target
        if target and target.lower() not in asked:
            shown = f", {', '.join(sorted(asked))}" if asked else ""
            raise UsageError(
                f"variant {variant.name}: a fork keeps the targets of its run{shown}: {target} is not one of them"
            )


async def run_evaluation(settings: EvaluationSettings) -> bool:
    """Runs the evaluation of the files, and prints its report.

    Returns whether all runs have completed, without a regression. Raises UsageError and ManifestError before a run.
    """
    check_file(settings.save)
    datasets = [path for path in settings.files if is_dataset(path)]
    files = load(*(path for path in settings.files if path not in datasets), recursive=settings.recursive)
    if not datasets and has_evaluations(files.catalog):
        return await run_ark_evaluations(files, settings)
    if len(datasets) != 1:
        which = "none has" if not datasets else f"{', '.join(map(str, datasets))} have"
        raise UsageError(f"one file must have the cases, and {which} them: a mapping with a list of 'cases'")
    dataset = load_dataset(datasets[0], own_evaluators(settings.evaluators))
    earlier = read_report(settings.baseline) if settings.baseline else None
    target = find_target(files, settings.target)
    evaluation = settings.id or new_run_id(slug(dataset.name))
    print_message(f"evaluation {evaluation}", style="dim")
    with explain_return(evaluation), errors_of_cases_in(datasets[0]):
        async with Connection() as connection:
            report = await evaluate(
                dataset,
                target,
                id=evaluation,
                repeat=settings.repeat,
                max_concurrency=settings.concurrency,
                judges=files,
                connection=connection,
                timeout=settings.timeout,
            )
    return finish(report, earlier, settings)


async def run_ark_evaluations(files: Manifests, settings: EvaluationSettings) -> bool:
    """Runs ARK's Evaluations in the files, as ``run_evaluation`` does."""
    if settings.target or settings.repeat > 1 or settings.timeout:
        raise UsageError("ARK's Evaluations define what they evaluate: pass no target, --repeat or --timeout")
    earlier = read_report(settings.baseline) if settings.baseline else None
    evaluation = settings.id or new_run_id("evaluations")
    print_message(f"evaluation {evaluation}", style="dim")
    with explain_return(evaluation):
        async with Connection() as connection:
            shown = sys.stderr.isatty()
            report = await evaluate_ark(files, evaluation, connection, settings.concurrency, progress=shown)
    return finish(report, earlier, settings)


def finish(
    report: EvaluationReport[Any, Any, Any],
    earlier: EvaluationReport[Any, Any, Any] | None,
    settings: EvaluationSettings,
) -> bool:
    """Prints and saves a report; returns whether all is good."""
    try:
        print_report(report, earlier, settings.output)
        return is_good(report, earlier, settings.tolerance)
    finally:  # also if the reader of what is printed has gone
        if settings.save:
            write_file(settings.save, EvaluationReportAdapter.dump_json(report, indent=2).decode())


def is_good(
    report: EvaluationReport[Any, Any, Any], earlier: EvaluationReport[Any, Any, Any] | None, tolerance: float
) -> bool:
    """Whether all runs have completed and nothing is worse than in the earlier report; prints what is."""
    for failure in report.failures:
        print_message(f"failed: {failure.name}: {failure.error_message}", style="red")
    if earlier is None:
        return not report.failures
    compared = compare_with_baseline(report, earlier, tolerance)
    for note in compared.notes:
        print_message(f"note: {note}")
    for regression in compared.regressions:
        print_message(f"regression: {regression}", style="red")
    failed = len(report.failures)
    if not compared.regressions:
        but = f", but {failed} run{' has' if failed == 1 else 's have'} failed" if failed else ""
        print_message(f"no regression{but}")
    return not (compared.regressions or failed)


def print_report(
    report: EvaluationReport[Any, Any, Any], earlier: EvaluationReport[Any, Any, Any] | None, output: OutputFormat
) -> None:
    """Prints a report in pydantic-evals' format: as a table, beside the earlier one, or as JSON or YAML."""
    if output is OutputFormat.text:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        baseline = earlier and _printable(earlier)
        _printable(report).print(console=console, baseline=baseline, include_errors=False, include_reasons=True)
    else:
        print_result(dump(EvaluationReportAdapter.dump_python(report, mode="json"), output))


def _printable(report: EvaluationReport[Any, Any, Any]) -> EvaluationReport[Any, Any, Any]:
    """The report without control characters: much of it was said by models and services."""
    content = EvaluationReportAdapter.dump_python(report, mode="json")
    return EvaluationReportAdapter.validate_python(_escaped(content))


def _escaped(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return escape_control_characters(value)
        case list():
            return [*map(_escaped, value)]
        case dict():
            return {escape_control_characters(key): _escaped(content) for key, content in value.items()}
    return value


def find_target(files: Manifests, name: str | None) -> Target[Any]:
    """The target of an evaluation: the named one, or the only outermost team, or the only agent, of the files.

    A name that the files don't have is that of a manifest of the workers. Raises UsageError.
    """
    if name:
        return files.get(name) or name
    return sole_target(files)


def sole_target(files: Manifests) -> ResourceDefinition[Any]:
    """The only outermost team of the files, or their only agent. Raises UsageError."""
    from ..diagram.build import outermost_teams

    teams = [f"team/{team.name}" for team in outermost_teams(files.catalog)]
    agents = [key for key in files if key.startswith("agent/")]
    candidates = teams or agents
    if len(candidates) != 1:
        raise UsageError(f"name the target, such as team/NAME; the files have: {', '.join(candidates) or 'none'}")
    return files[candidates[0]]


def own_evaluators(modules: Sequence[str]) -> list[type[Evaluator[Any, Any, Any]]]:
    """The evaluators that Python modules define. Raises UsageError."""
    found: list[type[Evaluator[Any, Any, Any]]] = []
    importable_from_here()
    for name in modules:
        try:
            module = importlib.import_module(name.removesuffix(".py").replace("/", "."))
        except ImportError as error:
            raise UsageError(f"--evaluators {name}: {error}") from None
        if name.endswith(".py") and (module.__file__ is None or not Path(module.__file__).samefile(name)):
            raise UsageError(f"--evaluators {name}: another module has this name: {module.__file__}; rename the file")
        classes = (one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__)
        found.extend(one for one in classes if issubclass(one, Evaluator))
    return found


def read_report(path: Path) -> EvaluationReport[Any, Any, Any]:
    """A report that ``--save`` has written. Raises UsageError and OSError."""
    try:
        return EvaluationReportAdapter.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UsageError(f"{path} is not a pydantic-evals report: {error.errors()[0]['msg']}") from None


@contextmanager
def errors_of_cases_in(path: Path) -> Iterator[None]:
    """Names the file of a case whose inputs are wrong. Raises UsageError."""
    try:
        yield
    except CaseInputsError as error:
        raise UsageError(f"{path}: {error}") from None


@contextmanager
def explain_return(evaluation: str) -> Iterator[None]:
    """Says how to go on if the command is interrupted."""
    try:
        yield
    except asyncio.CancelledError:
        print_message(f"Interrupted; runs that have begun continue. Continue with: --id {evaluation}")
        raise
