"""Tests of an HTTP tool's request: every value is escaped for its place, and no argument can change the host."""

import json

import pytest

from baton.activities.context.value_resolver import ValueResolver
from baton.activities.runtime.secrets import SecretStore
from baton.activities.tool.http_request import (
    HttpRequest,
    request_of,
    server_provenance,
    server_template,
    server_url,
)
from baton.contracts.errors import BadArguments
from baton.resources.agent import Agent
from baton.resources.base import JsonObject
from baton.resources.catalog import Catalog
from baton.resources.provenance import Provenance
from baton.resources.query import Query
from baton.resources.run_catalog import RunCatalog
from baton.resources.secret import Secrets
from baton.resources.tool import HttpSpec, Tool
from tests.harness.environment import agent, manifest
from tests.harness.manifests import own_server

KNOWN = {
    "base": "v1/users",
    "q": "a&b=c",
    "host": "api.example.com:8080",
    "n": "5",
    "server": "https://example.com",
    "site": "https://example.com/base/",
    "braces": "https://example.com/{{q}}/{x}",
    "object": '{"a": 1}',
    "word": 'say "hi"',
}


def made(url: str, arguments: JsonObject, **spec: object) -> HttpRequest:
    http = HttpSpec.model_validate({"url": url, **spec})
    headers = [(header.name, header.value.value or "") for header in http.headers]
    template, _ = server_template(url)
    server = own_server(server_url(template, arguments, KNOWN.__getitem__))
    return request_of(http, server, headers, arguments, KNOWN.__getitem__, "run/7")


@pytest.mark.parametrize(
    ("url", "arguments", "asked"),
    [
        ("http://x/a/{city}", {"city": "New York"}, "http://x/a/New%20York"),
        ("http://x/a/{city}/b", {"city": "a/b?x#y"}, "http://x/a/a%2Fb%3Fx%23y/b"),
        ("http://x/a/{v}", {"v": "v1..v2"}, "http://x/a/v1..v2"),
        ("http://x/{x},{y}", {"x": 1, "y": -2.5}, "http://x/1,-2.5"),
        ("http://x/{n}", {"n": 1000000}, "http://x/1000000"),
        ("http://x/{n}", {"n": True}, "http://x/true"),
        ("http://x/{n}", {"n": ["a", 1]}, "http://x/a%2C1"),
        ("http://x/?q={q}", {"q": "a&b=c d+é"}, "http://x/?q=a%26b%3Dc%20d%2B%C3%A9"),
        ("http://x/?q={q}&r={r}", {"q": "1"}, "http://x/?q=1"),
        ("http://x/?q={q}&r={r}", {"q": "1", "r": None}, "http://x/?q=1"),
        ("http://x/?q={q}", {"q": ["a", "b"]}, "http://x/?q=a&q=b"),
        ("http://x/?fixed=1", {"city": "Rome", "more": [1, 2]}, "http://x/?fixed=1&city=Rome&more=1&more=2"),
        ("http://x/?fixed=1", {"fixed": 2}, "http://x/?fixed=1"),
        ("http://x/p", {"o": {"a": 1}}, "http://x/p?o=%7B%22a%22%3A%201%7D"),
        ("http://x", {}, "http://x"),
        ("http://x/#part", {}, "http://x/"),
        ("http://x/{{base}}/{id}?q={{q}}", {"id": 1}, "http://x/v1/users/1?q=a%26b%3Dc"),
        ("https://{{host}}/a", {}, "https://api.example.com:8080/a"),
        ("{{braces}}/a", {"x": "1"}, "https://example.com/{{q}}/{x}/a?x=1"),
        ("{{site}}/a/{x}?y={{q}}", {"x": "1"}, "https://example.com/base/a/1?y=a%26b%3Dc"),
        ("https://{host}/a", {"host": "api.example.com"}, "https://api.example.com/a"),
        ("http://x/{{q}}", {"q": "{{base}}"}, "http://x/a&b=c?q=%7B%7Bbase%7D%7D"),
    ],
)
def test_the_address_is_filled_in(url: str, arguments: JsonObject, asked: str) -> None:
    assert made(url, arguments).destination.url == asked


@pytest.mark.parametrize(
    ("url", "arguments", "says"),
    [
        ("http://x/{id}", {}, "needs the argument 'id', which is missing or empty"),
        ("http://x/users/{id}", {"id": ""}, "needs the argument 'id', which is missing or empty"),
        ("http://x/users/{id}", {"id": ".."}, "would change the path of the address"),
        ("http://x/users/{id}", {"id": "../../admin"}, "would change the path of the address"),
        ("http://x/users/{id}", {"id": "..\\admin"}, "would change the path of the address"),
        ("http://x/users/{a}{b}", {"a": ".", "b": "."}, "would change the path of the address"),
        ("http://x/users/{id}/posts", {"id": "."}, "would change the path of the address"),
        ("http://{host}/", {"host": "a.com/evil?"}, "has no valid host"),
        ("http://{host}/", {"host": "user@a.com"}, "has no valid host"),
        ("http://{host}.example.com/", {"host": "evil.com#"}, "has no valid host"),
        ("http://{host}/", {}, "has no valid host"),
        ("{{host}}/a", {}, "begins with neither http:// nor https://"),
        ("{{server}}{x}/a", {"x": "@evil.com"}, "has no valid host"),
        ("{{server}}{x}/a", {"x": ":9200/_cat"}, "has no valid host"),
    ],
)
def test_arguments_that_make_no_address_are_refused(url: str, arguments: JsonObject, says: str) -> None:
    with pytest.raises(BadArguments, match=says.replace("?", r"\?")):
        made(url, arguments)


OF_QUERY = {"valueFrom": {"queryParameterRef": {"name": "from-query"}}}
PARAMETERS = [{"name": "own", "value": "http://own.example"}, {"name": "through", **OF_QUERY}]


@pytest.mark.parametrize(
    ("url", "of_query", "provenance"),
    [
        ("http://x/{a}?b={{from-query}}", Provenance.INLINE, Provenance.FILES),
        ("{{own}}/{a}", Provenance.INLINE, Provenance.FILES),
        ("{{of-agent}}/{a}", Provenance.INLINE, Provenance.STORE),
        ("{{from-query}}/look", Provenance.INLINE, Provenance.RUN),
        ("{{through}}/look", Provenance.INLINE, Provenance.RUN),
        ("https://{{from-query}}:80/look", Provenance.INLINE, Provenance.RUN),
        ("http://x:{{from-query}}/look", Provenance.TRUSTED, Provenance.RUN),
        ("{{from-query}}/look", Provenance.STORE, Provenance.STORE),
        ("{{own}}{{from-query}}/look", Provenance.INLINE, Provenance.RUN),
        ("{{own}}{a}/look", Provenance.INLINE, Provenance.MODEL),
        ("{{from-query}}{a}/look", Provenance.INLINE, Provenance.MODEL),
        ("http://{a}/", Provenance.INLINE, Provenance.MODEL),
        ("http://{a}.example.com/", Provenance.INLINE, Provenance.MODEL),
    ],
)
def test_a_server_is_as_trusted_as_the_least_trusted_that_chooses_a_part_of_it(
    url: str, of_query: Provenance, provenance: Provenance
) -> None:
    http = {"type": "http", "http": {"url": url}, "inputSchema": {"properties": {"a": {}}}, "parameters": PARAMETERS}
    tool = Tool.model_validate(manifest("Tool", "t", http))
    one = Agent.model_validate(agent("one", parameters=[{"name": "of-agent", "value": "http://h"}]))
    asked = {
        "input": "?",
        "target": {"type": "tool", "name": "t"},
        "parameters": [{"name": "from-query", "value": "x"}],
    }
    query = Query.model_validate(manifest("Query", "q", asked))
    of = {tool.id: Provenance.FILES, one.id: Provenance.STORE, query.id: of_query}
    catalog = RunCatalog.of(Catalog(manifests=(tool, one, query)), lambda each: of[each.id])
    parameters = ValueResolver(catalog, SecretStore(Secrets(), {})).parameters_of(tool, one, query)
    assert server_provenance(server_template(url)[0], parameters, Provenance.FILES) is provenance


@pytest.mark.parametrize(
    ("body", "arguments", "sent"),
    [
        ('{"a": "{{input.a}}"}', {"a": 'quote " and \\ and \n'}, {"a": 'quote " and \\ and \n'}),
        ('{"a": "{{.input.a}} ({{word}})"}', {"a": "x"}, {"a": 'x (say "hi")'}),
        ('{"a": {{input.a}}, "n": {{n}}}', {"a": [1, "x"]}, {"a": [1, "x"], "n": 5}),
        ('{"a": {{input.a}}, "w": {{word}}, "o": {{object}}}', {}, {"a": None, "w": 'say "hi"', "o": {"a": 1}}),
        ('{"a": "{{input.a}}"}', {"a": {"deep": True}}, {"a": '{"deep": true}'}),
        ('{"a": "{{input.a}}"}', {}, {"a": ""}),
        ('{"t\\"x": "{{input.a}}"}', {"a": "1"}, {'t"x': "1"}),
        ('["{{input.a}}", {{input.b}}]', {"a": '", "injected": "', "b": "x"}, ['", "injected": "', "x"]),
    ],
)
def test_a_json_body_stays_json_with_any_arguments(body: str, arguments: JsonObject, sent: object) -> None:
    request = made("http://x/", arguments, method="POST", body=body)
    assert json.loads(request.body or b"") == sent
    assert ("Content-Type", "application/json") in request.headers


def test_a_form_is_url_encoded_and_a_text_is_not_escaped() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    arguments: JsonObject = {"a": "1&b=2 é"}
    request = made("http://x/", arguments, method="POST", body="a={{input.a}}", headers=form)
    assert request.body == b"a=1%26b%3D2%20%C3%A9"
    request = made("http://x/", arguments, method="PUT", body="Hello {{input.a}}")
    assert request.body == "Hello 1&b=2 é".encode()
    assert ("Content-Type", "text/plain; charset=utf-8") in request.headers


def test_without_a_body_in_the_manifest_the_arguments_are_the_body() -> None:
    request = made("http://x/{id}", {"id": 1, "a": "x", "b": [1]}, method="POST")
    assert (request.destination.url, json.loads(request.body or b"")) == ("http://x/1", {"a": "x", "b": [1]})
    assert made("http://x/", {"a": "x"}, method="DELETE").destination.url == "http://x/?a=x"


def test_every_request_has_an_idempotency_key_and_the_manifests_headers_win() -> None:
    request = made("http://x/", {}, method="POST", headers={"content-type": "text/csv", "X-A": "1"}, body="a,b")
    assert dict(request.headers) == {"content-type": "text/csv", "X-A": "1", "Idempotency-Key": "run/7"}


def test_a_request_shows_neither_its_address_nor_its_headers_nor_its_body() -> None:
    shown = repr(made("http://x/?key={{q}}", {}, headers={"X-A": "secret"}, method="POST", body="secret"))
    assert "a%26b" not in shown
    assert "secret" not in shown
