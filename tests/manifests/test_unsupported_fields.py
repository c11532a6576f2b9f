"""Fields and kinds that are ignored or not supported yet: references are checked, and a run is refused or warned."""

import re

import pytest

from baton.resources.loader import Loaded
from baton.resources.problems import ManifestError
from tests.harness.environment import Environment, Json, agent, line, manifest, team
from tests.harness.manifests import Writer, model, query
from tests.harness.processes import baton, process_env
from tests.harness.remote_agents import a2a_agent

HOST = {"value": "http://host"}
ASKED = query(targets=[{"type": "agent", "name": "a"}])
USER = agent("a", tools=[{"name": "t"}])


def tool(kind: str, name: str = "t", **spec: object) -> Json:
    return manifest("Tool", name, {"type": kind, **spec})


def behind(kind: str, name: str, tool_name: str = "t") -> Json:
    """A tool that asks an agent or a team."""
    return tool(kind, tool_name, **{kind: {"name": name}})


MCP = tool("mcp", mcp={"mcpServerRef": {"name": "s"}, "toolName": "f"})
OLD_MCP = tool("mcp", mcpServer={"name": "s"}, function="f")
SERVER = manifest("MCPServer", "s", {"address": HOST})
AZURE = {"baseUrl": "https://host", "auth": {"managedIdentity": {"clientId": "c"}}}
WITHOUT_KEY = manifest("Model", "m", {"provider": "azure", "model": "gpt", "config": {"azure": AZURE}})


def test_a_memory_without_a_manifest_is_noticed(write: Writer) -> None:
    asked = query(targets=[{"type": "agent", "name": "a"}], memory="talks")
    (notice,) = write.load(asked, agent("a")).notices()
    assert "Memory default/talks is not in the files: unless the worker has it, the journal stores" in str(notice)
    assert not write.load(asked, agent("a"), manifest("Memory", "talks", {"address": HOST})).notices()


def refused(loaded: Loaded) -> list[str]:
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError) as error:
        loaded.needed_by(start)
    return [f"{problem.resource}: {problem.field}: {problem.text}" for problem in error.value.problems]


@pytest.mark.parametrize(
    ("manifests", "says"),
    [
        (
            [ASKED, agent("a", modelRef={"name": "m"}), WITHOUT_KEY],
            "Model/default/m: spec.config.azure.auth.managedIdentity: managedIdentity",
        ),
    ],
    ids=["managedIdentity"],
)
def test_a_run_that_needs_an_unsupported_field_is_refused_in_one_sentence(
    write: Writer, manifests: list[Json], says: str
) -> None:
    loaded = write.load(*manifests)
    assert loaded.unresolved() == []
    (said,) = refused(loaded)
    assert said.startswith(says)
    assert said.endswith(" is valid but not supported yet: remove it to run this")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (MCP, "Tool/default/t: spec.mcp.mcpServerRef.name: MCPServer default/s is not in the files"),
        (OLD_MCP, "Tool/default/t: spec.mcpServer.name: MCPServer default/s is not in the files"),
        (behind("agent", "x"), "Tool/default/t: spec.agent.name: Agent default/x is not in the files"),
        (behind("team", "x"), "Tool/default/t: spec.team.name: Team default/x is not in the files"),
        (
            agent("x", executionEngine={"name": "e", "namespace": "n"}),
            "Agent/default/x: spec.executionEngine.name: ExecutionEngine n/e is not in the files",
        ),
        (
            a2a_agent("x"),
            "Agent/default/x: metadata.annotations.a2a.server/name: A2AServer default/far is not in the files",
        ),
        (
            manifest("Memory", "m", {"address": {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}}),
            "Memory/default/m: spec.address.valueFrom.configMapKeyRef.name: ConfigMap default/c is not in the files",
        ),
    ],
)
def test_a_reference_to_a_missing_resource_is_reported(write: Writer, given: Json, says: str) -> None:
    (problem,) = write.load(given, agent("a")).unresolved()
    assert says in str(problem)


@pytest.mark.parametrize(
    ("manifests", "says"),
    [
        (
            [agent("a", tools=[{"name": "t"}]), behind("agent", "a")],
            "Tool/default/t: spec.agent.name: the agent contains itself (a → t → a): remove one of them",
        ),
        (
            [team("d", "a", strategy="sequential"), agent("a", tools=[{"name": "t"}]), behind("team", "d")],
            "Tool/default/t: spec.team.name: the team contains itself (d → a → t → d): remove one of them",
        ),
        (
            [
                team("d", "b", strategy="parallel", aggregator="a"),
                agent("b"),
                agent("a", tools=[{"name": "t"}]),
                behind("team", "d"),
            ],
            "Tool/default/t: spec.team.name: the team contains itself (d → a → t → d): remove one of them",
        ),
    ],
    ids=["agent", "team", "aggregator"],
)
def test_an_agent_that_would_call_itself_through_a_tool_is_refused(
    write: Writer, manifests: list[Json], says: str
) -> None:
    (said,) = write.refusal(*manifests)
    assert says in said


def test_an_agent_that_two_others_call_through_tools_is_no_cycle(write: Writer) -> None:
    write.load(
        agent("a", tools=[{"name": "t"}, {"name": "u"}]),
        behind("agent", "b"),
        behind("agent", "c", "u"),
        agent("b", tools=[{"name": "v"}]),
        agent("c", tools=[{"name": "v"}]),
        behind("agent", "d", "v"),
        agent("d"),
    )


@pytest.mark.parametrize(("kind", "fits"), [("mcp", True), ("custom", True), ("http", False), ("agent", False)])
def test_the_type_of_an_agents_tool_must_match_its_manifest(write: Writer, kind: str, fits: bool) -> None:
    user = agent("a", tools=[{"name": "t", "type": kind}])
    if fits:
        write.load(user, MCP, SERVER)
    else:
        (said,) = write.refusal(user, MCP, SERVER)
        says = f"spec.tools[0].type: is '{kind}', but Tool/default/t is of the type 'mcp'"
        assert f"Agent/default/a: {says}" in said


def test_ignored_fields_and_deprecated_values_are_reported_on_stderr(write: Writer) -> None:
    heedless = query(targets=[{"type": "agent", "name": "a"}], serviceAccount="clerk", evaluators=[{"name": "e"}])
    file = write.file(heedless, agent("a"), model(), manifest("A2ATask", "e", {}), manifest("ToolInteraction", "v", {}))
    done = baton("validate", "-f", file, env=process_env())
    assert (done.returncode, done.stdout) == (0, "3 manifests are valid\n")
    assert [re.sub(rf"{file}:\d+", "m", said) for said in done.stderr.splitlines()] == [
        "note: ignored, because no run needs them: m: A2ATask, m: ToolInteraction",
        "warning: m: Model/default/m: spec.type: 'openai' is deprecated: "
        "write type: completions, and provider: 'openai'",
        "warning: m: Query/default/q: spec.evaluators: is ignored: no answer is evaluated",
        "warning: m: Query/default/q: spec.serviceAccount: has no effect without a Role: unless the worker has Roles, "
        "the run may use everything",
    ]


def test_the_current_form_of_a_model_is_read_without_a_warning(write: Writer) -> None:
    today = {"type": "completions", "provider": "azure", "model": "gpt", "config": {"azure": {"baseUrl": "http://h"}}}
    assert write.load(manifest("Model", "m", today)).notices() == []


async def test_a_query_with_a_service_account_and_one_target_runs(env: Environment) -> None:
    env.script(line("a", "Here."))
    given = {"input": "Why?", "target": {"type": "agent", "name": "a"}, "serviceAccount": "clerk"}
    handle = await env.start("query", {"name": "q", "spec": given, "resources": [agent("a")]})
    status = await env.status(handle)
    assert (status.phase, status.message) == ("Completed", "Here.")


async def test_a_model_in_the_current_form_is_asked_at_its_address(env: Environment) -> None:
    env.answer = lambda request: line("", f"I am {request['model']}.").say[0]
    config = {"openai": {"baseUrl": env.model_url}}
    today = manifest("Model", "m", {"type": "completions", "provider": "openai", "model": "gpt", "config": config})
    status = await env.status(await env.start_query([today], "model/m"))
    assert status.message == "I am gpt."
