"""Parameters: values from manifests, ConfigMaps, Secrets and the query, in inputs and prompts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from temporalio.client import Client

from baton.resources.loader import load_files
from baton.resources.problems import ManifestError
from tests.harness.environment import KEY, Environment, Json, agent, line
from tests.harness.manifests import Writer, query

SECRET = "pass-0123456789-word"

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "office"}, "data": {"city": "Turin"}}
HELD = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "safe"}, "stringData": {"code": SECRET}}


def literal(name: str, value: str) -> Json:
    return {"name": name, "value": value}


def source(parameter: str, kind: str, **where: Any) -> Json:
    return {"name": parameter, "valueFrom": {kind: where}}


OF_SECRET = source("code", "secretKeyRef", name="safe", key="code")
OF_CONFIG = source("city", "configMapKeyRef", name="office", key="city")


@pytest_asyncio.fixture(loop_scope="session")
async def env(client: Client, tmp_path: Path) -> AsyncIterator[Environment]:
    """A worker with a Secret."""
    (tmp_path / "secret.yaml").write_text(yaml.safe_dump(HELD))
    async with Environment.running(client, tmp_path, load_files([tmp_path / "secret.yaml"])) as env:
        yield env


def received(env: Environment, role: str) -> list[str]:
    """The message of a role in the last model call."""
    return [each["content"] for each in env.model.requests[-1].body["messages"] if each["role"] == role]


async def test_an_input_is_filled_from_values_and_config_maps(env: Environment) -> None:
    given = [literal("who", "Ada"), OF_CONFIG]
    handle = await env.start_query(
        [agent("one"), CONFIG], "agent/one", input="Where is {{who}} in {{.city}}?", parameters=given
    )
    status = await env.status(handle)
    assert status.phase == "Completed", status.error
    assert received(env, "user") == ["Where is Ada in Turin?"]
    assert env.transcript(status.responses[0].head.id)[0]["content"] == "Where is Ada in Turin?"  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["{{not}} a template", "Go: {{range .x}}", "{{"])
async def test_a_text_without_parameters_is_not_changed(env: Environment, text: str) -> None:
    await env.status(await env.start_query([agent("one", prompt=f"{text}.")], "agent/one", input=text))
    assert received(env, "user") == [text]
    assert received(env, "system") == [f"{text}."]


async def test_a_secret_in_an_input_reaches_the_model_and_nothing_else(env: Environment) -> None:
    env.script(
        line(
            "one",
            {"text": f"The code is {SECRET}!", "calls": [{"name": "noop", "arguments": {"message": SECRET}}]},
            "Done.",
        )
    )
    handle = await env.start_query(
        [agent("one", "noop")],
        "agent/one",
        input="The code: {{code}}. Say {{it}}, {{code}}.",
        parameters=[OF_SECRET, literal("it", "it")],
    )
    status = await env.status(handle)
    assert status.message == "Done.", status.error
    assert received(env, "user") == [f"The code: {SECRET}. Say it, {SECRET}."]
    said = env.transcript(status.responses[0].head.id)  # type: ignore[union-attr]
    assert [row["content"] for row in said] == [
        "The code: [code]. Say it, [code].",
        "The code is [secret]!",
        "[secret]",
        "Done.",
    ]
    assert SECRET.encode() not in env.journal_bytes
    async for run in env.closed_runs():
        assert SECRET not in str(await run.fetch_history())


async def test_a_prompt_is_filled_with_the_parameters_of_the_query(env: Environment) -> None:
    prompt = "You serve {{customer}} in {{city}} with the code {{code}}."
    given = [source("customer", "queryParameterRef", name="name"), OF_CONFIG, OF_SECRET]
    handle = await env.start_query(
        [agent("one", prompt=prompt, parameters=given), CONFIG], "agent/one", parameters=[literal("name", "Ada")]
    )
    assert (await env.status(handle)).phase == "Completed"
    assert received(env, "system") == [f"You serve Ada in Turin with the code {SECRET}."]


async def test_a_secret_query_parameter_stays_secret_in_a_prompt(env: Environment) -> None:
    given = [source("pin", "queryParameterRef", name="code")]
    handle = await env.start_query(
        [agent("one", prompt="It is {{pin}}.", parameters=given)], "agent/one", parameters=[OF_SECRET]
    )
    assert (await env.status(handle)).phase == "Completed"
    assert received(env, "system") == [f"It is {SECRET}."]
    async for run in env.closed_runs():
        assert SECRET not in str(await run.fetch_history())


async def test_an_optional_value_that_is_missing_is_empty(env: Environment) -> None:
    given = [
        source("a", "configMapKeyRef", name="office", key="none", optional=True),
        source("b", "secretKeyRef", name="nowhere", key="x", optional=True),
    ]
    handle = await env.start_query([agent("one"), CONFIG], "agent/one", input="<{{a}}{{b}}>", parameters=given)
    assert (await env.status(handle)).phase == "Completed"
    assert received(env, "user") == ["<>"]


@pytest.mark.parametrize(
    ("parameters", "text", "wrong"),
    [
        ([literal("city", "x")], "{{town}}", "spec.input: unknown name 'town'; known: city"),
        ([literal("a", "x"), literal("a", "y")], "{{a}}", "spec.parameters: 'a' appears twice"),
        ([{"name": "a"}], "{{a}}", "spec.parameters[0]: needs either value or valueFrom"),
        ([literal("a", "x")], "{{if .a}}", "spec.input: '{{if .a}}' is invalid"),
        ([source("a", "queryParameterRef", name="b")], "{{a}}", "a query's parameter can't refer to another"),
        (
            [source("a", "serviceRef", name="b")],
            "{{a}}",
            "valueFrom.serviceRef: is for the addresses",
        ),
    ],
)
async def test_a_wrong_parameter_fails_the_query_and_says_why(
    env: Environment, parameters: list[Json], text: str, wrong: str
) -> None:
    status = await env.status(await env.start_query([agent("one")], "agent/one", input=text, parameters=parameters))
    assert wrong in (status.error or "")
    assert not env.model.requests


async def test_an_agent_with_a_parameter_that_the_query_lacks_is_refused(env: Environment) -> None:
    one = agent("one", prompt="{{a}}", parameters=[source("a", "queryParameterRef", name="town")])
    wrong = "Agent/default/one: the query has no parameter 'town'; it has: city"
    status = await env.status(await env.start_query([one], "agent/one", parameters=[literal("city", "x")]))
    assert wrong in (status.error or "")
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": [one]}))
    assert turn.failure
    assert "the query has no parameter 'town'; it has: none" in turn.failure.message


def test_unknown_names_are_reported_before_anything_starts(tmp_path: Path) -> None:
    write = Writer(tmp_path)
    one = agent("one", prompt="{{a}}", parameters=[source("a", "queryParameterRef", name="town")])
    loaded = write.load(query(targets=[{"type": "agent", "name": "one"}]), one)
    start = loaded.catalog.get("Query", "default", "q")
    assert start
    with pytest.raises(ManifestError, match="the query has no parameter 'town'; it has: none"):
        loaded.needed_by(start)
    said = write.refusal(
        query(targets=[{"type": "agent", "name": "a"}], parameters=[OF_CONFIG], input="{{city}}"),
        {**CONFIG, "data": {}},
    )
    assert said[0].endswith("configMapKeyRef.key: ConfigMap 'office' has no key 'city'; its keys: none")


async def test_a_secret_that_the_worker_lacks_is_reported_without_asking_the_model(env: Environment) -> None:
    lost = source("a", "secretKeyRef", name="lost", key="x")
    handle = await env.start_query([agent("one", prompt="{{a}}", parameters=[lost])], "agent/one")
    status = await env.status(handle)
    assert "the worker has no Secret 'default/lost' with the key 'x'" in (status.error or "")
    assert not env.model.requests
    assert KEY not in str(status)
