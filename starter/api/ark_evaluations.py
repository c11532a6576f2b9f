"""Runs ARK's Evaluations in files, as the cases of a dataset of pydantic-evals."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator as CaseEvaluator
from pydantic_evals.reporting import EvaluationReport, ReportCase, ReportCaseFailure, TableResult

from ...installation import version
from ...resources.base import Reference, parse_duration
from ...resources.catalog import Catalog
from ...resources.evaluation import EvaluatedQuery, Evaluation, Evaluator, GoldenDataset
from ...resources.query import Query
from ..errors import UsageError
from ..evaluation.ark_evaluators import ArkAssessment, EventRules
from ..evaluation.baseline import add_intervals
from ..evaluation.evaluators import ASSESSORS
from ..evaluation.event_rules import RunFacts
from ..evaluation.lifecycle import CURRENT_CASE, CurrentCase, RunLifecycle
from ..evaluation.trajectory import read_attempts, trajectory_of
from ..history.ark_events import ArkEvent, EventRecorder
from ..history.follow import follow
from ..history.run_events import RunEvent
from ..runs.runs import NoSuchRunError, RunHandle, find_run
from ..runs.start import run_manifest
from .client import Connection, RunOptions, manifests_digest
from .definitions import Manifests
from .evaluate import EvaluationRuns, progress_bar, slug
from .handle import Handle

BATCHES = "Batch evaluations"
"""The title of the table of batches among the analyses of a report."""


class Outcome(NamedTuple):
    """The outcome of an Evaluation: its mean score, None if no evaluator gave one, and whether all of it has passed."""

    score: float | None
    passed: bool


@dataclass(frozen=True)
class EvaluatedAnswer:
    """What one case evaluates: a given answer, or that of a query's run."""

    output: str | None = None
    query: EvaluatedQuery | None = None
    namespace: str = "default"


async def evaluate_ark(
    files: Manifests, evaluation: str, connection: Connection, max_concurrency: int, *, progress: bool
) -> EvaluationReport[Any, Any, Any]:
    """Runs all Evaluations in the files; each is a case of the report, or several for a dataset.

    Judges and services are asked in runs of their own, and a query that has no run yet is run; their ids follow from
    that of the ``evaluation``, so that nothing is paid for twice. Raises UsageError before the first run.
    """
    running = _ArkEvaluations(files, evaluation, EvaluationRuns(connection, files))
    dataset = running.dataset()
    token = ASSESSORS.set(running.runs)
    try:
        with progress_bar(evaluation, len(dataset.cases), shown=progress) as bar:
            report = await dataset.evaluate(
                running.answer,
                name=evaluation,
                task_name="ARK's evaluations",
                max_concurrency=max_concurrency,
                progress=False,
                lifecycle=lambda case: RunLifecycle(case, running.current(case), bar),
                metadata={"evaluation": evaluation, "baton": version()},
            )
    finally:
        ASSESSORS.reset(token)
    if running.runs.lost:
        raise running.runs.lost
    add_intervals(report)
    running.add_batches(report)
    return report


@dataclass
class _ArkEvaluations:
    """The evaluations of files."""

    files: Manifests
    id: str
    runs: EvaluationRuns
    _subjects: dict[str, EvaluatedAnswer] = field(default_factory=dict)
    """What the cases evaluate, by their names."""

    @property
    def _evaluations(self) -> list[Evaluation]:
        return [manifest for manifest in self.files.catalog.manifests if isinstance(manifest, Evaluation)]

    def _name(self, evaluation: Evaluation) -> str:
        """The name of an Evaluation in the report; with its namespace if those of others have the same name."""
        others = [one for one in self._evaluations if one.name == evaluation.name]
        return evaluation.name if len(others) == 1 else f"{evaluation.namespace}/{evaluation.name}"

    def dataset(self) -> Dataset[Any, Any, Any]:
        """The cases. Raises UsageError for an evaluation that can't be run."""
        cases: list[Case[Any, Any, Any]] = []
        timeouts = []
        for evaluation in self._evaluations:
            settings = evaluation.spec.settings
            timeouts.append(evaluation.spec.timeout)
            match evaluation.spec.kind_of:
                case "batch":
                    self._check_batch(evaluation)
                case "baseline":
                    instead = "compare reports with --save and --baseline"
                    raise UsageError(f"{evaluation.id}: the type 'baseline' is not supported: {instead}")
                case "direct":
                    answer = EvaluatedAnswer(output=settings.output)
                    cases.append(self._case(evaluation, settings.input, answer, self._assessment(evaluation)))
                case "dataset":
                    cases.extend(self._golden_cases(evaluation))
                case "query" | "event":
                    query = settings.query_ref or self._only_query(evaluation)
                    answer = EvaluatedAnswer(query=query, namespace=evaluation.namespace)
                    is_assessed = evaluation.spec.kind_of == "query"
                    evaluator = self._assessment(evaluation) if is_assessed else self._rules(evaluation)
                    cases.append(self._case(evaluation, {"query": query.name}, answer, evaluator))
        if not cases:
            raise UsageError("the files have no Evaluation that can be run")
        self.runs.timeout = max(timeouts, key=parse_duration)
        return Dataset(name="evaluations", cases=cases)

    def _case(
        self,
        evaluation: Evaluation,
        inputs: object,
        answer: EvaluatedAnswer,
        evaluator: CaseEvaluator[Any, Any, Any],
        part: str = "",
    ) -> Case[Any, Any, Any]:
        """A case of an evaluation, whose name ends with that of its ``part``. Raises UsageError for a name twice."""
        name = self._name(evaluation)
        about = {"evaluation": name, "type": evaluation.spec.kind_of}
        whole = f"{name}/{part}" if part else name
        if whole in self._subjects:
            raise UsageError(f"{evaluation.id}: there are two cases with the name {whole}")
        self._subjects[whole] = answer
        return Case(name=whole, inputs=inputs, metadata=about, evaluators=[evaluator])

    def _golden_cases(self, evaluation: Evaluation) -> list[Case[Any, Any, Any]]:
        """The expected answers of a GoldenDataset, which are assessed as answers."""
        reference = next(one for one in evaluation.references if "GoldenDataset" in one.kinds)
        golden = self._find(evaluation, reference, GoldenDataset)
        assessment = self._assessment(evaluation)
        return [
            self._case(evaluation, case.input, EvaluatedAnswer(output=case.expected_output), assessment, name)
            for name, case in golden.spec.test_cases.items()
        ]

    def _find(self, evaluation: Evaluation, reference: Reference, kind: type[Any]) -> Any:
        found = self.files.catalog.find(reference)
        if not isinstance(found, kind):
            raise UsageError(f"{evaluation.id}: {reference} is not in the files")
        return found

    def _only_query(self, evaluation: Evaluation) -> EvaluatedQuery:
        queries = [manifest for manifest in self.files.catalog.manifests if isinstance(manifest, Query)]
        if len(queries) != 1:
            raise UsageError(f"{evaluation.id}: name the query whose events are evaluated: config.queryRef")
        return EvaluatedQuery(name=queries[0].name, namespace=queries[0].namespace)

    def _check_batch(self, evaluation: Evaluation) -> None:
        settings = evaluation.spec.settings
        if settings.items or settings.template or settings.query_selector:
            raise UsageError(
                f"{evaluation.id}: items, template and querySelector are not supported yet: name evaluations"
            )
        self._check_cycles(evaluation, [])

    def _check_cycles(self, evaluation: Evaluation, batches: list[str]) -> None:
        """Raises UsageError if a batch is among its own evaluations; ``batches`` are those that led to it."""
        if evaluation.spec.kind_of != "batch":
            return
        path = [*batches, evaluation.id]
        if evaluation.id in batches:
            raise UsageError(f"{evaluation.id}: a batch can't contain itself: {' → '.join(path)}")
        for one in self._evaluations_of(evaluation):
            self._check_cycles(one, path)

    def _evaluations_of(self, batch: Evaluation) -> list[Evaluation]:
        """The evaluations of a batch. Raises UsageError if one is not in the files."""
        references = [one for one in batch.references if "Evaluation" in one.kinds]
        return [self._find(batch, reference, Evaluation) for reference in references]

    def _assessment(self, evaluation: Evaluation) -> CaseEvaluator[Any, Any, Any]:
        """The evaluator of an Evaluation: that of its Evaluator, with its own parameters."""
        reference = next((one for one in evaluation.references if "Evaluator" in one.kinds), None)
        parameters = self._parameters(evaluation)
        if reference is None:
            return ArkAssessment("default", parameters=parameters)
        evaluator: Evaluator = self._find(evaluation, reference, Evaluator)
        spec = evaluator.spec
        address = spec.address
        if address is not None and address.value is None:
            raise UsageError(f"{evaluator.id}: write the address as {{value: ADDRESS}}, or name an agent instead")
        return ArkAssessment(
            evaluator.name,
            address=address.value if address else None,
            agent=spec.agent.name if spec.agent else None,
            model=spec.model_ref.name if spec.model_ref else parameters.get("model.name"),
            parameters=parameters,
        )

    def _rules(self, evaluation: Evaluation) -> CaseEvaluator[Any, Any, Any]:
        rules = [
            {"name": rule.name, "expression": rule.expression, "weight": rule.weight}
            for rule in evaluation.spec.settings.rules
        ]
        return EventRules(rules, self._parameters(evaluation))

    def _parameters(self, evaluation: Evaluation) -> dict[str, str]:
        """The parameters of the Evaluator, and those of the Evaluation, which take precedence."""
        reference = next((one for one in evaluation.references if "Evaluator" in one.kinds), None)
        evaluator = self.files.catalog.find(reference) if reference else None
        common = evaluator.spec.parameters if isinstance(evaluator, Evaluator) else ()
        own = evaluation.spec.evaluator.parameters if evaluation.spec.evaluator else ()
        for parameter in (*common, *own):
            if parameter.value is None:
                raise UsageError(f"{evaluation.id}: the parameter {parameter.name} must be a value")
        return {parameter.name: parameter.value for parameter in (*common, *own) if parameter.value is not None}

    def current(self, case: Case[Any, Any, Any]) -> CurrentCase:
        """The current case; the ids of the runs of its judges follow from its own."""
        name = case.name or ""
        return CurrentCase(name, f"{self.id}-{slug(name)}")

    async def answer(self, inputs: object) -> str:
        """The answer that the current case evaluates."""
        current = CURRENT_CASE.get()
        subject = self._subjects[current.name]
        if subject.query is None:
            return subject.output or ""
        handle = await self._run_of(subject.query, subject.namespace)
        current.run_id = handle.id
        result = await self.runs.with_temporal(handle.result)
        client = await self.runs.connection.client()
        run: RunHandle = client.get_workflow_handle(handle.id)
        attempts = await read_attempts(client, handle.id)
        current.trajectory = trajectory_of(attempts)
        recorder = EventRecorder()
        ark_events: list[ArkEvent] = []

        def record(run_event: RunEvent) -> None:
            ark_events.extend(recorder.record(run_event))

        await follow(client, run, record, wait=False)
        current.facts = RunFacts(attempts[-1], ark_events)
        manifest = await run_manifest(client, run, result.status)
        spec = manifest.get("spec")
        question = spec.get("input") if isinstance(spec, dict) else None
        current.question = question if isinstance(question, str) else None
        return _response(subject.query, result.status.responses, result.message)

    async def _run_of(self, query: EvaluatedQuery, namespace: str) -> Handle[Any]:
        """The newest run of a query, or one that is started now if the files have the query."""
        connection = self.runs.connection
        namespace = query.namespace or namespace
        client = await connection.client()
        try:
            return Handle(client, await find_run(client, query.name, namespace))
        except NoSuchRunError:
            key = f"query/{query.name}" if namespace == "default" else f"query/{namespace}/{query.name}"
            definition = self.files.get(key)
            if definition is None:
                raise
        digest = manifests_digest(definition, None, RunOptions())[:10]
        run_id = f"{self.id}-{slug(query.name)}-{digest}"
        return await self.runs.connection.start(definition, id=run_id, once=True)

    def add_batches(self, report: EvaluationReport[Any, Any, Any]) -> None:
        """Adds the table of the batches: the mean score of their evaluations, and whether all of them have passed."""
        scores: dict[str, list[float]] = {}
        passed: dict[str, list[bool]] = {}
        for case in report.cases:
            name = _evaluation_of(case)
            scores.setdefault(name, []).extend(float(one.value) for one in case.scores.values())
            passed.setdefault(name, []).append(bool(case.assertions) and all(a.value for a in case.assertions.values()))
        for failure in report.failures:
            passed.setdefault(_evaluation_of(failure), []).append(False)

        def outcome_of(evaluation: Evaluation) -> Outcome:
            if evaluation.spec.kind_of == "batch":
                outcomes = [outcome_of(one) for one in self._evaluations_of(evaluation)]
                # A dataset of many cases counts as much as an evaluation of one answer.
                values = [one.score for one in outcomes if one.score is not None]
                return Outcome(fmean(values) if values else None, all(one.passed for one in outcomes))
            name = self._name(evaluation)
            values = scores.get(name, [])
            return Outcome(fmean(values) if values else None, all(passed.get(name, [False])))

        rows: list[list[str | int | float | bool | None]] = []
        for evaluation in self._evaluations:
            if evaluation.spec.kind_of == "batch":
                outcome = outcome_of(evaluation)
                score = None if outcome.score is None else round(outcome.score, 6)
                rows.append([self._name(evaluation), len(self._evaluations_of(evaluation)), score, outcome.passed])
        if rows:
            columns = ["evaluation", "evaluations", "score", "passed"]
            report.analyses.append(TableResult(title=BATCHES, columns=columns, rows=rows))


def _evaluation_of(case: ReportCase[Any, Any, Any] | ReportCaseFailure[Any, Any, Any]) -> str:
    """The name of the Evaluation to which a case belongs."""
    return str((case.metadata or {})["evaluation"])


def _response(query: EvaluatedQuery, responses: Any, message: str) -> str:
    """The answer of the target that an Evaluation names; without one that of the whole query."""
    if query.response_index is not None:
        if query.response_index >= len(responses):
            raise ValueError(
                f"the query has {len(responses)} answers: there is no responseIndex {query.response_index}"
            )
        return str(responses[query.response_index].message)
    if query.response_target is None:
        return message
    for response in responses:
        if response.target.name == query.response_target:
            return str(response.message)
    raise ValueError(f"the query has no target '{query.response_target}'")


def has_evaluations(catalog: Catalog) -> bool:
    """Whether there are Evaluations among manifests."""
    return any(isinstance(manifest, Evaluation) for manifest in catalog.manifests)
