"""Tests of the operations of an OpenAPI document as tools: found when a run begins, and used as HTTP tools."""

import itertools
import json
from typing import Any

import pytest
import yaml

from baton.activities.runtime.outbound import Origin
from baton.activities.tool.openapi import OpenApiDocument
from tests.activities.test_custom_tools import OF_SAFE, TOKEN, env
from tests.harness.environment import Environment, Json, agent, call, line, manifest
from tests.harness.tool_server import Answer, ToolServer

__all__ = ["env"]
PET = {"$ref": "#/components/schemas/Pet"}
DOCUMENT: Json = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "servers": [{"url": "/api"}],
    "paths": {
        "/pets/{petId}": {
            "parameters": [{"name": "petId", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "get": {
                "operationId": "get_pet",
                "summary": "Finds a pet.",
                "parameters": [
                    {"$ref": "#/components/parameters/Fields"},
                    {"name": "X-Reason", "in": "header", "schema": {"type": "string"}},
                ],
            },
            "put": {
                "operationId": "put_pet",
                "requestBody": {"required": True, "content": {"application/json": {"schema": PET}}},
            },
        },
        "/upload": {"post": {"operationId": "upload", "requestBody": {"content": {"image/png": {}}}}},
        "/elsewhere": {"get": {"operationId": "far", "parameters": [{"$ref": "http://x/y.json"}]}},
    },
    "components": {
        "parameters": {
            "Fields": {"name": "fields", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}}
        },
        "schemas": {
            "Pet": {"type": "object", "properties": {"name": {"type": "string"}, "child": PET}, "required": ["name"]}
        },
    },
}


def pets(**openapi: Any) -> Json:
    return manifest("Tool", "pets", {"type": "openapi", "openapi": openapi})


async def used(env: Environment, given: Json, tool: Json, *says: Any) -> list[str]:
    """The messages of an agent with a tool of a document."""
    env.script(line("one", *says, "Done."))
    brought = [agent("one", tools=[tool]), given]
    turn = await env.turn_result(await env.start("agent", {"agent": "one", "input": "?", "resources": brought}))
    return [each.content for each in turn.messages] or [turn.failure.message if turn.failure else ""]


@pytest.mark.full
async def test_the_operations_of_a_document_are_tools(env: Environment, tool_server: ToolServer) -> None:
    tool_server.documents["/openapi.json"] = json.dumps(DOCUMENT)
    tool_server.answers(Answer("a dog"), Answer("ok"))
    given = pets(url=f"{tool_server.url}/openapi.json", headers={"Authorization": OF_SAFE})
    said = await used(
        env,
        given,
        {"name": "pets"},
        call("pets-get-pet", petId=7, fields=["a", "b"], **{"X-Reason": "why"}),
        call("pets-put-pet", petId=7, body={"name": "Rex", "child": {"name": "Rob"}}),
        call("pets-put-pet", petId=7, body={"child": {}}),
    )
    assert said[1:4:2] == ["a dog", "ok"]
    assert said[5].startswith("Error: the arguments of pets-put-pet don't match its schema: ")
    first, second = tool_server.calls
    assert {seen.headers["authorization"] for seen in tool_server.seen} == {TOKEN}
    assert (first.method, first.path, first.headers["x-reason"]) == ("GET", "/api/pets/7?fields=a&fields=b", "why")
    assert (second.method, second.path) == ("PUT", "/api/pets/7")
    assert json.loads(second.body) == {"name": "Rex", "child": {"name": "Rob"}}
    offered = [each["function"]["name"] for each in env.model.requests[0].body["tools"]]
    assert offered == ["pets-get-pet", "pets-put-pet"]
    assert env.model.requests[0].body["tools"][0]["function"]["description"] == "Finds a pet."


async def test_headers_that_openapi_ignores_as_parameters_are_no_arguments(
    env: Environment, tool_server: ToolServer
) -> None:
    named = [("authorization", "header"), ("Content-Type", "header"), ("ACCEPT", "header"), ("accept", "query")]
    parameters = [{"name": name, "in": place, "required": True} for name, place in named]
    operation = {"operationId": "list", "parameters": parameters}
    document = {**DOCUMENT, "servers": [{"url": tool_server.url}], "paths": {"/all": {"get": operation}}}
    said = await used(env, pets(document=json.dumps(document)), {"name": "pets"}, call("pets-list", accept="x"))
    assert said[1] == "sunny"
    assert tool_server.seen[0].path == "/all?accept=x"
    (tool,) = env.model.requests[0].body["tools"]
    assert tool["function"]["parameters"]["required"] == ["accept"]


async def test_headers_of_the_manifest_are_no_arguments(env: Environment, tool_server: ToolServer) -> None:
    parameters = [{"name": "x-tenant", "in": "header", "required": True, "schema": {"type": "string"}}]
    operation = {"operationId": "list", "parameters": parameters}
    document = {**DOCUMENT, "servers": [{"url": tool_server.url}], "paths": {"/all": {"get": operation}}}
    given = pets(document=json.dumps(document), headers=[{"name": "X-Tenant", "value": {"value": "acme"}}])
    said = await used(env, given, {"name": "pets"}, call("pets-list", **{"x-tenant": "victim"}))
    assert said[1] == "sunny"
    assert tool_server.seen[0].headers["x-tenant"] == "acme"
    (tool,) = env.model.requests[0].body["tools"]
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}


async def test_a_schema_of_openapi_3_0_means_what_it_says(env: Environment, tool_server: ToolServer) -> None:
    todo = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "readOnly": True},
            "due": {"type": "string", "nullable": True},
            "size": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        },
        "required": ["id", "due"],
    }
    body = {"required": True, "content": {"application/json": {"schema": todo}}}
    operation = {"operationId": "add", "requestBody": body}
    document = {**DOCUMENT, "servers": [{"url": tool_server.url}], "paths": {"/": {"post": operation}}}
    wrong = call("pets-add", body={"due": None, "size": 0})
    right = call("pets-add", body={"due": None, "size": 1})
    said = await used(env, pets(document=json.dumps(document)), {"name": "pets"}, wrong, right)
    assert "is less than or equal to the minimum of 0" in said[1]
    assert said[3] == "sunny"
    assert json.loads(tool_server.seen[0].body) == {"due": None, "size": 1}


async def test_two_documents_that_make_the_same_tool_are_refused(env: Environment, tool_server: ToolServer) -> None:
    def document(operation: str) -> str:
        paths = {"/": {"get": {"operationId": operation}}}
        return json.dumps({**DOCUMENT, "servers": [{"url": tool_server.url}], "paths": paths})

    live = pets(document=document("sandbox_refund"))
    other = manifest("Tool", "pets-sandbox", {"type": "openapi", "openapi": {"document": document("refund")}})
    one = agent("one", tools=[{"name": "pets"}, {"name": "pets-sandbox"}])
    turn = await env.turn_result(
        await env.start("agent", {"agent": "one", "input": "?", "resources": [one, live, other]})
    )
    assert turn.failure
    assert "would both be the tool pets-sandbox-refund" in turn.failure.message
    assert not tool_server.seen


async def test_a_run_goes_on_with_the_document_that_it_began_with(env: Environment, tool_server: ToolServer) -> None:
    tool_server.documents["/openapi.yaml"] = yaml.safe_dump(DOCUMENT)
    tool_server.answers(Answer("a dog"))
    given = pets(url=f"{tool_server.url}/openapi.yaml", operations=["get_*"])
    said = await used(
        env, given, {"name": "pets-get-pet"}, call("pets-get-pet", petId=1), call("pets-get-pet", petId=2)
    )
    assert said[1:4:2] == ["a dog", "a dog"]
    # A slow machine may read the document twice before the run begins.
    paths = [path for path, _ in itertools.groupby(seen.path for seen in tool_server.seen)]
    assert paths == ["/openapi.yaml", "/api/pets/1", "/api/pets/2"]


async def test_an_operation_may_have_preset_arguments_and_a_name(env: Environment, tool_server: ToolServer) -> None:
    document = {**DOCUMENT, "servers": [{"url": tool_server.url}]}
    tool = {"name": "find", "partial": {"name": "pets-get-pet", "parameters": [{"name": "petId", "value": "3"}]}}
    said = await used(env, pets(document=json.dumps(document)), tool, call("find"))
    assert said[1] == "sunny"
    assert tool_server.seen[0].path == "/pets/3"


async def test_a_document_that_was_read_somewhere_names_no_server_elsewhere(
    env: Environment, tool_server: ToolServer
) -> None:
    elsewhere = {**DOCUMENT, "servers": [{"url": "http://169.254.169.254/latest"}]}
    tool_server.answers(Answer(json.dumps(elsewhere)))
    (said,) = await used(env, pets(url=f"{tool_server.url}/openapi.json"), {"name": "pets"})
    assert "names http://169.254.169.254/latest, which is another server: set openapi.baseUrl" in said


async def test_what_can_not_be_sent_as_the_document_says_is_no_part_of_its_tools(
    env: Environment, tool_server: ToolServer
) -> None:
    texts: Json = {"type": "array", "items": {"type": "string"}}
    styled: list[Json] = [
        {"name": "ids", "in": "query", "explode": False, "schema": texts},
        {"name": "tags", "in": "query", "style": "pipeDelimited", "schema": texts},
        {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
        {"name": "q", "in": "query", "schema": {"$ref": "#/paths/~1pets/x-text"}},
    ]
    required = {"name": "filter", "in": "query", "required": True, "schema": {"type": "object"}}
    body = {"content": {"application/json": {"schema": {"type": "object"}}}}
    name = {"name": "X-Name", "in": "header", "schema": {"type": "string"}}
    document = {
        **DOCUMENT,
        "servers": [{"url": f"{tool_server.url}/{{version}}", "variables": {"version": {"default": "v1"}}}],
        "paths": {
            "/pets": {
                "x-text": {"type": "string"},
                "get": {"operationId": "list", "parameters": styled},
                "post": {"operationId": "add", "parameters": [name], "requestBody": body},
            },
            "/styled": {"get": {"operationId": "styled", "parameters": [required]}},
            "/elsewhere": {"get": {"operationId": "elsewhere", "servers": [{"url": "/v2"}]}},
        },
    }
    calls = call("pets-list", q="x"), call("pets-add"), call("pets-add", **{"X-Name": "José"})
    said = await used(env, pets(document=json.dumps(document)), {"name": "pets"}, *calls)
    listed, added = tool_server.seen
    assert (listed.method, listed.path) == ("GET", "/v1/pets?q=x")
    assert (added.method, added.path, added.body) == ("POST", "/v1/pets", "")
    assert "content-type" not in added.headers
    assert said[5] == "Error: the argument 'X-Name' is sent in a header: it can only have printable ASCII characters"
    tools = {each["function"]["name"]: each["function"]["parameters"] for each in env.model.requests[0].body["tools"]}
    assert tools.keys() == {"pets-list", "pets-add"}
    assert tools["pets-list"]["properties"].keys() == {"q"}


async def test_a_header_that_can_not_be_sent_is_no_outage_of_the_server(
    env: Environment, tool_server: ToolServer
) -> None:
    document = {**DOCUMENT, "servers": [{"url": tool_server.url}]}
    given = pets(document=json.dumps(document), headers={"X-From": "José"})
    said = await used(env, given, {"name": "pets"}, call("pets-get-pet", petId=7))
    assert said[1] == "Error: the header X-From has characters that are not ASCII: nothing was sent"
    assert tool_server.seen == []


@pytest.mark.parametrize("base", ["http://good.example", "http://good.example:80/api/"])
@pytest.mark.parametrize(
    "path",
    [
        *(".evil.example/steal", ":9200/_cat", "@evil.example/", "{host}/pets", "", "?evil=1"),
        *("/pets", "//evil.example/pets", "/@evil.example", "/\\evil.example", "/.evil.example"),
    ],
)
def test_the_path_of_an_operation_changes_neither_scheme_nor_host_nor_port(base: str, path: str) -> None:
    document = {**DOCUMENT, "paths": {path: {"get": {"operationId": "steal"}}}}
    operations = [*OpenApiDocument(document, base_url=base).operations()]
    assert bool(operations) is path.startswith("/")
    for operation in operations:
        assert operation.spec.http
        assert Origin.of(operation.spec.http.url) == "http://good.example:80"


async def test_a_run_says_which_operations_of_its_agent_can_not_be_used(
    env: Environment, tool_server: ToolServer
) -> None:
    url = f"{tool_server.url}/openapi.json"
    left_out = "Tool/default/pets: left out what can't be used as a tool: upload (its body is not JSON), far (it refers"
    for openapi, tool, expected in (
        ({}, "pets", [left_out]),
        ({}, "pets-get-pet", []),
        ({"operations": ["get_*"]}, "pets", []),
    ):
        tool_server.documents["/openapi.json"] = json.dumps(DOCUMENT)
        env.script(line("one", "Done."))
        brought = [agent("one", tools=[{"name": tool}]), pets(url=url, **openapi)]
        status = await env.status(await env.start_query(brought, "agent/one"))
        assert [notice[: len(left_out)] for notice in status.notices or ()] == expected, status.error


async def test_what_is_no_document_fails_the_run_and_names_the_tool(env: Environment, tool_server: ToolServer) -> None:
    for text, wrong in (
        ("[1]", "not an OpenAPI 3 document"),
        ("a: [", "its OpenAPI document is invalid"),
        ("&a [*a]", "its OpenAPI document is invalid"),
    ):
        tool_server.answers(Answer(text))
        (said,) = await used(env, pets(url=f"{tool_server.url}/openapi.json"), {"name": "pets"})
        assert said.startswith("Tool/default/pets: its OpenAPI document is invalid")
        assert wrong in said
