"""Addresses of services (ARK: serviceRef): the worker makes them of the names of services."""

import pytest

from baton.activities.runtime.secrets import CLUSTER_DNS, SecretStore
from baton.resources.secret import Secrets
from baton.resources.values import ServiceRef
from tests.activities.test_inline_manifests import failure_of, model, working
from tests.harness.environment import Environment, Json, agent, line

ASK = {"agent": "one", "input": "Why?"}


def served(**ref: object) -> list[Json]:
    """An agent, with a model at a service."""
    address = {"valueFrom": {"serviceRef": {"name": "models", **ref}}}
    return [agent("one", modelRef={"name": "gpt"}), model(address)]


async def test_a_model_at_a_service_is_called_at_the_address_that_the_worker_makes_of_its_name(
    env: Environment,
) -> None:
    host, port, path = env.model_url.removeprefix("http://").replace(":", "/").split("/")
    ref = {"port": int(port), "path": f"/{path}"}
    async with working(env, *served(**ref), BATON_SERVICE_URL=f"http://{host}:{{port}}") as here:
        here.script(line("one", "Here."))
        assert (await here.turn_result(await here.start("agent", ASK))).message == "Here."


async def test_a_run_that_needs_a_service_is_refused_before_its_first_call_by_a_worker_that_can_not_address_it(
    env: Environment,
) -> None:
    async with working(env, *served(port="http")) as here:
        _, text = await failure_of(here, "agent", ASK)
        assert "Model/default/gpt needs the service 'models': set BATON_SERVICE_URL to the address" in text
    async with working(env, *served(port="grpc"), BATON_SERVICE_URL="http://{service}:{port}") as here:
        _, text = await failure_of(here, "agent", ASK)
        assert "the number of the port 'grpc' of the service models is unknown: write the number" in text
    assert not env.model.requests


@pytest.mark.parametrize(
    ("template", "ref", "address"),
    [
        (CLUSTER_DNS, {}, "http://far.team.svc.cluster.local"),
        (CLUSTER_DNS, {"port": 8080}, "http://far.team.svc.cluster.local:8080"),
        (CLUSTER_DNS, {"port": "https", "namespace": "b"}, "http://far.b.svc.cluster.local:443"),
        (CLUSTER_DNS, {"port": "http", "path": "mcp"}, "http://far.team.svc.cluster.local:80/mcp"),
        ("https://{service}.example.org/", {"port": "grpc", "path": "/mcp"}, "https://far.example.org/mcp"),
    ],
)
def test_the_address_of_a_service_is_its_name_in_a_template(template: str, ref: Json, address: str) -> None:
    assert ServiceRef.model_validate({"name": "far", **ref}).address(template, "team") == address


def test_a_worker_in_a_cluster_uses_the_dns_of_the_cluster() -> None:
    assert SecretStore(Secrets(), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).service_url == CLUSTER_DNS
    assert SecretStore(Secrets(), {}).service_url is None
