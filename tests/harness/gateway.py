"""A gateway for tests, at a free port."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from baton.starter.gateway.access import hash_of, new_key
from baton.starter.gateway.app import Gateway, create_app
from baton.starter.gateway.server import listen, serving
from tests.harness.environment import Environment

Json = dict[str, Any]


@dataclass
class GatewayServer:
    """A running gateway: its environment, its address, and a client for it."""

    env: Environment
    url: str
    http: httpx.AsyncClient

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, env: Environment, **variables: str) -> AsyncIterator["GatewayServer"]:
        """Runs a gateway in this process while the block runs; ``variables`` are more settings."""
        environ = {**env.worker_env, "BATON_GATEWAY_NAMESPACES": "*", **variables}
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        core = Gateway.of(env.client, environ)
        served = serving(create_app(core), listener, core.settings)
        async with served, httpx.AsyncClient(base_url=url, timeout=60) as http:
            yield cls(env, url, http)

    async def post(
        self, path: str, body: Json | None = None, status: int = 200, *, key: str | None = None, **headers: str
    ) -> Json:
        """The JSON of the response to a POST, which has to have that status; ``key`` is the caller's."""
        response = await self.http.post(path, json=body if body is not None else {}, headers=_sent(key, headers))
        assert response.status_code == status, response.text
        answer: Json = response.json()
        return answer

    async def get(self, path: str, status: int = 200, *, key: str | None = None, **headers: str) -> Json:
        """The JSON of the response to a GET, which has to have that status; ``key`` is the caller's."""
        response = await self.http.get(path, headers=_sent(key, headers))
        assert response.status_code == status, response.text
        answer: Json = response.json()
        return answer

    async def finished(self, run: str, *, key: str | None = None) -> list[Json]:
        """Waits for the end of a run, and returns its events."""
        return [event async for event in self.events(f"/runs/{run}/events", key=key)]

    async def events(self, path: str, *, key: str | None = None, **headers: str) -> AsyncIterator[Json]:
        """The server-sent events of a stream, each as ``{event, id, data}``, with the data read as JSON."""
        async with self.http.stream("GET", path, headers=_sent(key, headers)) as response:
            assert response.status_code == 200, await response.aread()
            async for event in read_sse(response):
                yield event


def _sent(key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request, written with underscores, with the caller's key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {**named, "authorization": f"Bearer {key}"} if key else named


async def read_sse(response: httpx.Response) -> AsyncIterator[Json]:
    """The server-sent events of a response; data that is no JSON stays a text."""
    fields: Json = {}
    async for line in response.aiter_lines():
        if not line and fields:
            yield {**fields, "data": _value(fields.get("data", ""))}
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def key_file(folder: Path, holders: Mapping[str, Sequence[Any] | Json]) -> tuple[Path, dict[str, str]]:
    """A file of keys for these holders, with more fields of their entries, and the keys by holder."""
    keys = {name: new_key() for name in holders}
    entries = [{"name": name, "sha256": hash_of(keys[name]), **dict(more)} for name, more in holders.items()]
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": entries}))
    return path, keys


def rights(account: str, *rules: Json) -> list[Json]:
    """The manifests of a ServiceAccount in the default namespace with these rules: ``resources``, ``verbs``, names."""
    api: Json = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": account}}
    group = "ark.mckinsey.com"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        {**api, "kind": "Role", "rules": [{"apiGroups": [group], "verbs": ["use"], **rule} for rule in rules]},
        {
            **api,
            "kind": "RoleBinding",
            "roleRef": {"kind": "Role", "name": account, "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "ServiceAccount", "name": account}],
        },
    ]
