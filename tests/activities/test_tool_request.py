"""Tests of an HTTP tool's request: every value is escaped for its place, and no argument can change the host."""

import json

import pytest

from baton.activities.tool.http_request import HttpRequest, request_of
from baton.contracts.errors import BadArguments
from baton.resources.base import JsonObject
from baton.resources.tool import HttpSpec

KNOWN = {
    "base": "v1/users",
    "q": "a&b=c",
    "host": "api.example.com:8080",
    "n": "5",
    "site": "https://example.com/base/",
    "braces": "https://example.com/{{q}}/{x}",
    "object": '{"a": 1}',
    "word": 'say "hi"',
}


def made(url: str, arguments: JsonObject, **spec: object) -> HttpRequest:
    http = HttpSpec.model_validate({"url": url, **spec})
    headers = [(header.name, header.value.value or "") for header in http.headers]
    return request_of(http, headers, arguments, KNOWN.__getitem__, "run/7")


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
    assert made(url, arguments).url == asked


@pytest.mark.parametrize(
    ("url", "arguments", "says"),
    [
        ("http://x/{id}", {}, "needs the argument 'id', which is missing or empty"),
        ("http://x/users/{id}", {"id": ""}, "needs the argument 'id', which is missing or empty"),
        ("http://x/users/{id}", {"id": ".."}, "would leave the path of the address"),
        ("http://x/users/{id}", {"id": "../../admin"}, "would leave the path of the address"),
        ("http://x/users/{id}", {"id": "..\\admin"}, "would leave the path of the address"),
        ("http://x/users/{a}{b}", {"a": ".", "b": "."}, "would leave the path of the address"),
        ("http://x/users/{id}/posts", {"id": "."}, "would leave the path of the address"),
        ("http://{host}/", {"host": "a.com/evil?"}, "has no host that can be asked"),
        ("http://{host}/", {"host": "user@a.com"}, "has no host that can be asked"),
        ("http://{host}.example.com/", {"host": "evil.com#"}, "has no host that can be asked"),
        ("http://{host}/", {}, "has no host that can be asked"),
        ("{{host}}/a", {}, "begins with neither http:// nor https://"),
    ],
)
def test_arguments_that_make_no_address_are_refused(url: str, arguments: JsonObject, says: str) -> None:
    with pytest.raises(BadArguments, match=says.replace("?", r"\?")):
        made(url, arguments)


def test_a_host_is_trusted_only_if_it_is_in_the_manifest() -> None:
    assert made("http://x/{a}", {"a": "1"}).trusted
    assert made("http://{{host}}/{a}", {"a": "1"}).trusted
    assert not made("http://{a}/", {"a": "x"}).trusted
    assert not made("http://{a}.example.com/", {"a": "x"}).trusted


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
    assert (request.url, json.loads(request.body or b"")) == ("http://x/1", {"a": "x", "b": [1]})
    assert made("http://x/", {"a": "x"}, method="DELETE").url == "http://x/?a=x"


def test_every_request_has_an_idempotency_key_and_the_manifests_headers_win() -> None:
    request = made("http://x/", {}, method="POST", headers={"content-type": "text/csv", "X-A": "1"}, body="a,b")
    assert dict(request.headers) == {"content-type": "text/csv", "X-A": "1", "Idempotency-Key": "run/7"}


def test_a_request_shows_neither_its_address_nor_its_headers_nor_its_body() -> None:
    shown = repr(made("http://x/?key={{q}}", {}, headers={"X-A": "secret"}, method="POST", body="secret"))
    assert "a%26b" not in shown
    assert "secret" not in shown
