"""ARK's Evaluators, Evaluations and golden datasets: read by the loader, and run by `baton eval`."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_evals.reporting import EvaluationReport

import baton
from baton.resources.problems import ManifestError
from baton.starter.api.ark_evaluations import evaluate_ark
from baton.starter.errors import UsageError
from baton.starter.evaluation.ark_evaluators import EventRules, read_response
from baton.starter.evaluation.event_rules import RuleError, RunFacts
from baton.starter.evaluation.lifecycle import CURRENT_CASE, CurrentCase
from baton.starter.history.ark_events import ArkEvent, EventRecorder
from baton.starter.history.follow import follow
from baton.starter.history.stream import stream_events
from baton.testing import Reply, Request
from tests.harness.environment import Environment, Json, agent, call, line, manifest, team
from tests.harness.manifests import Writer
from tests.harness.tool_server import Answer, ToolServer
from tests.harness.user_machine import UserMachine
from tests.starter.test_evaluation import connection


def evaluation(name: str, **spec: Any) -> Json:
    return manifest("Evaluation", name, spec)


def parameters(**values: str) -> list[Json]:
    return [{"name": name.replace("_", "-"), "value": value} for name, value in values.items()]


GOLDEN = manifest(
    "GoldenDataset",
    "cities",
    {
        "testCases": {
            "england": {"input": "What is the capital of England?", "expectedOutput": "London"},
            "morocco": {"input": "What is the capital of Morocco?", "expectedOutput": "Rabat"},
        }
    },
)
JUDGED = {"name": "judged", "parameters": parameters(scope="accuracy,clarity", min_score="0.6")}
EVALUATOR = manifest("Evaluator", "judged", {"agent": {"name": "judge"}, "parameters": parameters(scope="all")})
DIRECT = evaluation(
    "direct", type="direct", config={"input": "Capital of France?", "output": "Paris"}, evaluator=JUDGED
)
OLDER = evaluation("older", mode="direct", input="Capital of Spain?", output="Berlin", evaluator=JUDGED)
DATASET = evaluation("golden", mode="dataset", goldenDatasetRef={"name": "cities"}, evaluator=JUDGED)
OF_QUERY = evaluation("of-query", type="query", config={"queryRef": {"name": "ask"}}, evaluator=JUDGED)
EVENTS = evaluation(
    "events",
    type="event",
    config={
        "queryRef": {"name": "ask"},
        "rules": [
            {"name": "used", "expression": "tool.was_called() and tools.was_called('calculator')", "weight": 3},
            {"name": "cel", "expression": "events.exists(e, e.reason == 'ToolCallCompleted')", "weight": 1},
            {"name": "unmet", "expression": "not agents.was_executed('one')", "weight": 1},
        ],
    },
)
BATCH = evaluation("batch", type="batch", config={"evaluations": [{"name": "direct"}, {"name": "of-query"}]})
QUERY = manifest("Query", "ask", {"input": "What is 1 + 1?", "target": {"type": "agent", "name": "one"}})
ALL = [GOLDEN, EVALUATOR, DIRECT, OLDER, DATASET, OF_QUERY, EVENTS, BATCH, QUERY]
AGENTS = [agent("one", "calculator"), agent("judge")]


def answer(request: Request) -> Reply:
    """The agent calculates; the judge knows that Berlin is wrong."""
    messages = request["messages"]
    if "judge" in messages[0]["content"]:
        score = 0.2 if "Berlin" in messages[-1]["content"] else 0.9
        return Reply(text=json.dumps({"reason": "known", "score": score}))
    if messages[-1]["role"] == "tool":
        return Reply(text="It is 2.")
    return Reply.model_validate(call("calculator", expression="1 + 1"))


@pytest.mark.slow
def test_evaluations_of_all_types_are_run_and_paid_for_once(machine: UserMachine) -> None:
    machine.model._answer = answer
    file = machine.write(*AGENTS, *ALL)
    done = machine.run("eval", "-f", file, "--id", "first", "-o", "json", "--save", "report.json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    cases = {case["name"]: case for case in report["cases"]}
    found = {
        name: (case["scores"]["score"]["value"], case["assertions"]["passed"]["value"]) for name, case in cases.items()
    }
    assert found == {
        "direct": (0.9, True),
        "older": (0.2, False),
        "golden/england": (0.9, True),
        "golden/morocco": (0.9, True),
        "of-query": (0.9, True),
        "events": (0.8, True),
    }
    assert cases["events"]["scores"]["score"]["reason"] == "not met: unmet"
    assert cases["of-query"]["output"] == "It is 2."
    (batches,) = [one for one in report["analyses"] if one["title"] == "Batch evaluations"]
    assert batches["rows"] == [["batch", 2, 0.9, True]]
    asked = [one.body["messages"][-1]["content"] for one in machine.model.requests]
    (of_query,) = [text for text in asked if "It is 2." in text and "Criteria" in text]
    assert "<Question>\nWhat is 1 + 1?\n</Question>" in of_query
    assert "accuracy: " in of_query
    assert "relevance: " not in of_query, "the Evaluation's scope replaces that of the Evaluator"
    paid = len(machine.model.requests)
    again = machine.run("eval", "-f", file, "--id", "first", "--baseline", "report.json")
    assert (again.returncode, len(machine.model.requests)) == (0, paid)


@pytest.mark.slow
def test_a_service_of_arks_protocol_evaluates(machine: UserMachine, tool_server: ToolServer) -> None:
    tool_server.answers(Answer(text=json.dumps({"score": "0.85", "passed": True, "metadata": {"why": "good"}})))
    service = manifest("Evaluator", "judged", {"address": {"value": f"{tool_server.url}/evaluate"}})
    file = machine.write(service, DIRECT)
    for _ in range(2):
        done = machine.run("eval", "-f", file, "--id", "served", "-o", "json")
        assert done.returncode == 0
        (case,) = json.loads(done.stdout)["cases"]
        assert not case["evaluator_failures"], case["evaluator_failures"]
        assert (case["scores"]["score"]["value"], case["assertions"]["passed"]["value"]) == (0.85, True)
    (request,) = tool_server.seen
    body = json.loads(request.body)
    assert body["type"] == "direct"
    assert body["config"] == {"input": "Capital of France?", "output": "Paris"}
    assert body["evaluatorName"] == "judged"
    assert body["parameters"]["min-score"] == "0.6"


async def evaluated(env: Environment, write: Writer, *manifests: Json) -> EvaluationReport[Any, Any, Any]:
    """The report of Evaluations, whose default judge thinks little of answers with 'second' in them."""

    def judge(request: Request) -> Reply:
        first, *_, last = request["messages"]
        if not first["content"].startswith("You judge"):
            return Reply(text="It is 2.")
        return Reply(text=json.dumps({"score": 0.25 if "second" in last["content"] else 1.0}))

    env.answer = judge
    files = baton.load(write.file(*manifests))
    async with connection(env) as opened:
        return await evaluate_ark(files, "assessed", opened, 10, progress=False)


def assessed(report: EvaluationReport[Any, Any, Any]) -> dict[str, tuple[object, object]]:
    return {case.name: (case.output, case.scores["score"].value) for case in report.cases}


def direct(name: str, output: str, namespace: str = "default") -> Json:
    one = evaluation(name, type="direct", config={"input": "Which?", "output": output})
    one["metadata"]["namespace"] = namespace
    return one


@pytest.mark.full
async def test_cases_whose_long_names_begin_alike_are_judged_by_their_own_answers(
    env: Environment, write: Writer
) -> None:
    long = "the-letter-is-polite-and-names-the-amount-of-v"
    of_query = evaluation("of-query", type="query", config={"queryRef": {"name": "ask"}})
    report = await evaluated(
        env, write, agent("one"), QUERY, of_query, direct(f"{long}1", "first"), direct(f"{long}2", "second")
    )
    assert assessed(report) == {
        f"{long}1": ("first", 1.0),
        f"{long}2": ("second", 0.25),
        "of-query": ("It is 2.", 1.0),
    }
    runs = {case.name: case.attributes["run"] for case in report.cases if "run" in case.attributes}
    assert list(runs) == ["of-query"], "the others have no run"
    async with connection(env) as opened:
        assert (await (await opened.attach(runs["of-query"])).result()).message == "It is 2."


async def test_evaluations_of_one_name_in_different_namespaces_are_cases_of_their_own(
    env: Environment, write: Writer
) -> None:
    batch = evaluation("all", type="batch", config={"evaluations": [{"name": "letter", "namespace": "b"}]})
    report = await evaluated(
        env,
        write,
        direct("letter", "first", "a"),
        direct("letter", "second", "b"),
        direct("other", "first", "b"),
        batch,
    )
    assert assessed(report) == {"a/letter": ("first", 1.0), "b/letter": ("second", 0.25), "other": ("first", 1.0)}
    assert batches_of(report) == [["all", 1, 0.25, False]]


def batch_of(name: str, *evaluations: str) -> Json:
    return evaluation(name, type="batch", config={"evaluations": [{"name": one} for one in evaluations]})


def batches_of(report: EvaluationReport[Any, Any, Any]) -> object:
    (table,) = [one.model_dump() for one in report.analyses if one.title == "Batch evaluations"]
    return table["rows"]


async def test_each_evaluation_of_a_batch_counts_once_and_a_batch_may_contain_batches(
    env: Environment, write: Writer
) -> None:
    cases = {f"case-{number}": {"input": "Which?", "expectedOutput": f"second {number}"} for number in range(3)}
    report = await evaluated(
        env,
        write,
        batch_of("outer", "good", "inner"),
        batch_of("inner", "good", "many"),
        batch_of("passing", "batch-of-good"),
        batch_of("batch-of-good", "good"),
        direct("good", "first"),
        manifest("GoldenDataset", "answers", {"testCases": cases}),
        evaluation("many", type="dataset", config={"goldenDatasetRef": {"name": "answers"}}),
    )
    assert batches_of(report) == [
        ["batch-of-good", 1, 1.0, True],
        ["inner", 2, 0.625, False],
        ["outer", 2, 0.8125, False],
        ["passing", 1, 1.0, True],
    ]


async def test_a_batch_that_contains_itself_is_refused_before_anything_is_paid_for(
    env: Environment, write: Writer
) -> None:
    cycle = (batch_of("outer", "good", "inner"), batch_of("inner", "outer"))
    with pytest.raises(UsageError, match=r"a batch can't contain itself: .*inner → .*outer → .*inner"):
        await evaluated(env, write, direct("good", "first"), *cycle)
    assert env.model.requests == []


def rules_of(*expressions: str) -> Sequence[Json]:
    return [{"name": "rule", "expression": expression, "weight": 1} for expression in expressions]


def test_rules_of_one_name_each_count() -> None:
    CURRENT_CASE.set(CurrentCase("case", "id", facts=RunFacts([], [])))
    context: Any = None  # rules read the current case
    outcome: Any = EventRules([*rules_of("true", "false")]).evaluate(context)
    assert (outcome["score"].value, outcome["score"].reason) == (0.5, "not met: rule")


@pytest.mark.parametrize("answer", ["{}", '{"score": null}', '{"score": "nan", "passed": true}', '{"score": 1e999}'])
def test_a_response_of_a_service_without_a_finite_score_is_an_error(answer: str) -> None:
    with pytest.raises(ValueError, match="score"):
        read_response(answer)


@pytest.mark.slow
def test_what_cannot_be_run_is_named_before_anything_is_paid_for(machine: UserMachine) -> None:
    for manifests, told in (
        ([evaluation("b", type="baseline", config={})], "'baseline' is not supported"),
        ([DIRECT], "Evaluator default/judged is not in the files"),
        ([BATCH], "is not in the files"),
        ([evaluation("e", type="event", config={"rules": [{"name": "r", "expression": "x"}]})], "name the query"),
    ):
        done = machine.run("eval", "-f", machine.write(*manifests))
        assert done.returncode == 1
        assert told in done.stderr
    assert machine.model.requests == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"type": "direct", "config": {"input": "a"}}, "spec.config.output: is missing"),
        ({"mode": "direct", "output": "a"}, "spec.input: is missing"),
        ({"type": "query", "config": {}}, "spec.config.queryRef: is missing"),
        ({"type": "query", "config": {"queryRef": {"name": "q"}, "input": "a"}}, "is for the type 'direct'"),
        ({"type": "batch", "config": {}}, "spec.config.evaluations: is missing"),
        ({"type": "event", "config": {}}, "spec.config.rules: is missing"),
        ({"mode": "dataset"}, "spec.goldenDatasetRef: is missing"),
        ({"type": "direct", "mode": "direct", "input": "a", "output": "b"}, "can't be combined with type"),
        ({"type": "often"}, "'often' is unknown"),
    ],
)
def test_a_wrong_evaluation_is_refused_with_its_field(write: Writer, spec: Json, told: str) -> None:
    with pytest.raises(ManifestError) as error:
        write.load(manifest("Evaluation", "e", spec))
    assert told in str(error.value)


async def facts_of(env: Environment) -> RunFacts:
    env.script(line("one", call("calculator", expression="1 + 1"), "It is 2."), line("two", "Fine."))
    resources = [agent("one", "calculator"), agent("two"), team("pair", "one", "two", strategy="sequential")]
    handle = await env.start_query(resources, "team/pair")
    await env.status(handle)
    events = [event async for event in stream_events(env.client, handle, wait=False, live=False)]
    recorder = EventRecorder()
    ark_events: list[ArkEvent] = []
    await follow(env.client, handle, lambda event: ark_events.extend(recorder.record(event)), wait=False)
    return RunFacts(events, ark_events)


async def test_semantic_expressions_are_those_of_arks_reference(env: Environment) -> None:
    facts = await facts_of(env)
    true = (
        "tool.was_called()",
        "tools.was_called('calculator', scope='current')",
        "tool.get_call_count() == 1",
        "tool.get_success_rate() >= 0.8",
        "not tools.had_error('calculator')",
        "tools.get_execution_metrics('calculator').call_count == 1",
        "agent.was_executed() and agents.was_executed('two')",
        "agent.get_execution_count() <= 5",
        "agent.get_success_rate() >= 0.9",
        "agents.get_tools_used('one').length == 1",
        "agents.get_execution_summary('one').status == 'completed'",
        "query.was_resolved() and query.get_resolution_status() == 'success'",
        "query.get_execution_time() <= 60.0",
        "not query.was_query_timeout(60.0)",
        "query.get_query_targets() >= 1",
        "query.get_complexity_metrics().complexity_level != 'highly_complex'",
        "sequence.was_completed(['ResolveStart', 'ToolCallStart', 'ResolveComplete'])",
        "sequence.check_execution_order(['LLMCallStart', 'ToolCallStart', 'ToolCallComplete'], strict=false)",
        "sequence.get_time_between_events('ResolveStart', 'ResolveComplete') <= 60.0",
        "sequence.get_execution_flow().length >= 5",
        "sequence.detect_parallel_execution(1.0).length >= 0",
        "team.was_executed() and teams.was_team_executed('pair')",
        "teams.get_team_agents('pair').length == 2",
        "teams.detect_collaboration_pattern('pair') == 'sequential'",
        "llm.get_call_count() == 3 and llm.get_success_rate() == 1 and llm.get_total_tokens() > 0",
        "events.exists(e, e.reason == 'ToolCallCompleted')",
    )
    assert [expression for expression in true if not facts.holds(expression)] == []
    false = (
        "tools.was_called('nothing')",
        "sequence.check_execution_order(['ToolCallStart', 'ResolveStart'])",
        "events.exists(e, e.reason == 'Nothing')",
        "teams.was_team_executed('other') or llm.get_call_count() > 3",
    )
    assert [expression for expression in false if facts.holds(expression)] == []
    for wrong, told in (
        ("tool.nothing()", "there is no tool.nothing()"),
        ("__import__('os').system('x')", "is not known"),
        ("tool.was_called().__class__", "is not known"),
        ("tools.was_called('x', scope='session')", "the scope 'session' is not supported"),
        ("tool.get_call_count()", "returns int, not true or false"),
        ("tool.was_called(", "is not an expression"),
        ("query.get_execution_time() < 'x'", "not supported between"),
        ("[x for x in tool]", "is not known"),
        ("query.get_resolution_status() is 'success'", "is 'success'' is not known"),
    ):
        with pytest.raises(RuleError, match=told.replace("(", r"\(").replace(")", r"\)")):
            facts.holds(wrong)
