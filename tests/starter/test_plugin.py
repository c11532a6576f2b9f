"""Baton in a worker of an application: its own workflows, activities, client, codec and sandbox."""

import asyncio
import dataclasses
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, CancelledError, ChildWorkflowError
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from temporalio.worker import Replayer, Worker, WorkerDeploymentConfig
from temporalio.workflow import ChildWorkflowCancellationType

import baton
from baton.activities.runtime.settings import Settings
from baton.contracts.settings import SettingsError
from baton.plugin import BatonPlugin, ChainedCodec, EncryptionCodec
from baton.resources.base import parse_duration
from baton.starter.runs.runs import find_run
from baton.starter.server.embedded import EmbeddedServer
from baton.temporal.encryption import Key
from baton.testing import Reply, Request, Script, ScriptedModel, ScriptedToolCall, ScriptLine, fake_runs
from baton.workflow import _query
from baton.workflows.registry import WORKFLOW
from tests.harness.claims import Claim, Control, Decision, Long, Question, Untyped, pay, write
from tests.harness.environment import KEY, Environment, Json, agent, call, line, manifest, team
from tests.harness.gateway import GatewayServer
from tests.harness.killable_gateways import GatewayProcess
from tests.harness.manifests import Writer
from tests.harness.ports import own_port
from tests.harness.postgres import execute
from tests.harness.processes import baton as baton_command
from tests.harness.processes import process_env
from tests.harness.scrambled import SCRAMBLED, Scrambled
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.tested_claim import FAKE, TestedClaim
from tests.harness.tls import Certificates, tls_proxy

ROOT = Path(__file__).parents[2]

CLAIMS: list[Json] = [
    agent("adjuster", outputSchema=Decision.model_json_schema()),
    team("claims", "adjuster", strategy="sequential"),
    agent("talker"),
    team("circle", "talker", strategy="round-robin", maxTurns=500),
]


@dataclasses.dataclass
class Application:
    """An application with a client of its own, and the settings of Baton's part."""

    client: Client
    model: ScriptedModel
    plugin: BatonPlugin
    queue: str

    async def run(self, run: Any, *args: Any, **options: Any) -> Any:
        """Runs a workflow of the application to its end."""
        return await self.client.execute_workflow(
            run, args=args, id=f"app-{uuid.uuid4().hex[:8]}", task_queue=self.queue, **options
        )


def answers(text: str) -> ScriptedModel:
    """A model that always answers so."""
    return ScriptedModel(lambda _: Reply(text=text))


@asynccontextmanager
async def application(
    address: str,
    folder: Path,
    model: ScriptedModel,
    converter: DataConverter = DataConverter.default,
    tls: TLSConfig | bool = False,
    /,
    **settings: str,
) -> AsyncIterator[Application]:
    """Runs an application's worker with the plugin, on a client of the application."""
    (folder / "teams").mkdir(exist_ok=True)
    file = Writer(folder / "teams").file(*CLAIMS)
    client = await Client.connect(address, data_converter=converter, tls=tls)
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    with model.serve() as url:
        given = {"BATON_HOME": str(folder), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, **settings}
        plugin = BatonPlugin(file.parent, settings=given)
        own = [Claim, Question, Untyped, Control, Long]
        worker = Worker(client, task_queue=queue, workflows=own, activities=[pay, write], plugins=[plugin])
        async with worker:
            yield Application(client, model, plugin, queue)


async def test_a_workflow_of_an_application_gets_the_typed_answer_of_a_team_and_calls_its_own_activity(
    client: Client, tmp_path: Path
) -> None:
    address = client.service_client.config.target_host
    async with application(address, tmp_path, answers('{"approved": true, "amount": 120}')) as app:
        assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"


@pytest.mark.full
async def test_a_replayer_with_the_plugin_reads_values_in_external_storage(client: Client, tmp_path: Path) -> None:
    async with application(address_of(client), tmp_path, answers(APPROVED)) as app:
        await app.run(Question.run, "x" * 1_200_000, {"id": f"{app.queue}/agent"})
        history = await app.client.get_workflow_handle(f"{app.queue}/agent").fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 1_000_000, "its input is in the journal"
    await Replayer(workflows=[Claim], plugins=[app.plugin]).replay_workflow(history)


APPROVED = '{"approved": true, "amount": 120}'


def address_of(client: Client) -> str:
    """The address of the server of a client."""
    return client.service_client.config.target_host


@pytest.mark.parametrize("converter", [SCRAMBLED, pydantic_data_converter], ids=["a codec", "pydantic"])
async def test_an_application_keeps_its_own_codec_and_converter(
    client: Client, tmp_path: Path, converter: DataConverter
) -> None:
    async with application(address_of(client), tmp_path, answers(APPROVED), converter) as app:
        assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"
        runs = [run async for run in app.client.list_workflows(f"TaskQueue = '{app.queue}'")]
        if converter.payload_codec:
            for run in runs:
                history = await app.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
                assert "bicycle" not in history.to_json()
        replayer = Replayer(workflows=[Claim], plugins=[app.plugin], data_converter=converter)
        for run in runs:
            await replayer.replay_workflow(
                await app.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
            )


async def test_the_encryption_of_baton_is_chained_with_the_codec_of_the_application(
    client: Client, tmp_path: Path
) -> None:
    keys = {"BATON_ENCRYPTION_KEYS": str(Key.generate("k1"))}
    chained = dataclasses.replace(
        DataConverter.default, payload_codec=ChainedCodec(Scrambled(), EncryptionCodec.from_environment(keys))
    )
    async with application(address_of(client), tmp_path, answers(APPROVED), chained, **keys) as app:
        assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"


@pytest.mark.parametrize("default", VersioningBehavior)
async def test_a_versioned_worker_has_whatever_default_its_application_chooses(
    client: Client, tmp_path: Path, default: VersioningBehavior
) -> None:
    """Without a default, each workflow type has to name its own behavior: Baton's do."""
    version = WorkerDeploymentVersion(uuid.uuid4().hex, "v1")
    worker = Worker(
        client,
        task_queue=uuid.uuid4().hex,
        deployment_config=WorkerDeploymentConfig(
            version, use_worker_versioning=True, default_versioning_behavior=default
        ),
        plugins=[BatonPlugin(settings={"BATON_HOME": str(tmp_path)})],
    )
    definitions = [getattr(each, WORKFLOW) for each in worker.config(active_config=True)["workflows"]]
    behaviors = {each.name: each.versioning_behavior for each in definitions}
    upgraded = {name for name, behavior in behaviors.items() if behavior is VersioningBehavior.AUTO_UPGRADE}
    assert upgraded == {"expire", "notify"}
    assert {*behaviors.values()} == {VersioningBehavior.PINNED, VersioningBehavior.AUTO_UPGRADE}


@pytest.mark.full
async def test_the_audit_log_has_what_clients_with_keys_send_to_a_worker_whose_own_client_has_none(
    client: Client, tmp_path: Path
) -> None:
    def answer(request: Request) -> Reply:
        return (
            Reply(text="Done.") if request.tool_results else Reply(calls=[ScriptedToolCall(name="ask", arguments={})])
        )

    settings = {"BATON_ENCRYPTION_KEYS": str(Key.generate("k1")), "BATON_AUDIT": "1"}
    asks = {"type": "agent", "agent": {"name": "talker"}, "approval": {}, "inputSchema": {"type": "object"}}
    brought = [agent("buyer", "ask"), agent("talker"), manifest("Tool", "ask", asks)]
    async with application(address_of(client), tmp_path, ScriptedModel(answer), **settings) as app:
        person = await Client.connect(address_of(client), plugins=[app.plugin])
        given = {"agent": "buyer", "input": "Buy.", "resources": brought}
        run = await person.start_workflow("agent", given, id=f"{app.queue}/agent", task_queue=app.queue)
        while not (waiting := (await run.query("status")).get("pendingDecisions")):
            await asyncio.sleep(0.05)
        refusal = {"call": waiting[0]["id"], "approved": False, "reason": "No.", "by": "ann"}
        await run.execute_update("approve", refusal)
        await run.result()
        journal = Settings.of({"BATON_HOME": str(tmp_path)}).journal
        rows = await execute(journal, "select action, who from baton_audit where action in ('approve', 'deny')")
    assert rows == [("deny", "ann")]


async def test_an_application_without_the_plugin_asks_a_worker_of_baton_on_another_task_queue(
    env: Environment,
) -> None:
    env.answer = lambda _: Reply(text="Take it.")
    client = await Client.connect(address_of(env.client))
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    async with Worker(client, task_queue=queue, workflows=[Question]):
        options = {"task_queue": env.task_queue, "resources": [agent("adjuster")]}
        answer = await client.execute_workflow(Question.run, args=["Why?", options], id=queue, task_queue=queue)
    assert answer == "Take it."


async def test_a_failed_team_fails_its_parent_with_the_status_of_the_run(client: Client, tmp_path: Path) -> None:
    async with application(address_of(client), tmp_path, ScriptedModel(lambda _: Reply(status=401))) as app:
        with pytest.raises(WorkflowFailureError) as failed:
            await app.run(Claim.run, "My bicycle was stolen.")
    cause = failed.value.cause
    assert isinstance(cause, ChildWorkflowError)
    assert isinstance(cause.cause, ApplicationError)
    assert cause.cause.type == "KeyRefused"
    assert cause.cause.details[0]["phase"] == "Failed"


async def test_an_answer_of_another_type_is_an_error_that_names_the_run_and_the_type(
    client: Client, tmp_path: Path
) -> None:
    async with application(address_of(client), tmp_path, answers("It depends.")) as app:
        with pytest.raises(WorkflowFailureError) as failed:
            await app.run(Untyped.run, "Why?")
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "InvalidOutput"
    assert "which ended as 'completed', is not a valid Decision" in cause.message


async def test_a_workflow_steers_and_terminates_its_team(client: Client, tmp_path: Path) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(request: Request) -> Reply:
        if "Be brief." in str(request["messages"]):
            loop.call_soon_threadsafe(asked.set)
        return Reply(text="Hm.", delay=0.1)

    async with application(address_of(client), tmp_path, ScriptedModel(answer)) as app:
        handle = await app.client.start_workflow(Control.run, id=app.queue, task_queue=app.queue)
        await asked.wait()
        await handle.signal(Control.end)
        status = await handle.result()
    assert (status["phase"], status["stopReason"], status["note"]) == ("Completed", "terminated", "enough")


@pytest.mark.parametrize("converter", [DataConverter.default, SCRAMBLED], ids=["default", "a codec"])
async def test_a_signal_that_nobody_can_read_does_not_hold_up_a_team_of_an_application(
    client: Client, tmp_path: Path, converter: DataConverter
) -> None:
    async with application(address_of(client), tmp_path, answers("Hm."), converter) as app:
        handle = await app.client.start_workflow(Control.run, id=app.queue, task_queue=app.queue)
        circle = f"{app.queue}/circle"
        while not [run async for run in app.client.list_workflows(f"WorkflowId = '{circle}'")]:
            await asyncio.sleep(0.05)
        unreadable = Payloads(payloads=[Payload(metadata={"encoding": b"binary/foo"}, data=b"x")])
        request = SignalWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=circle),
            signal_name="pause",
            input=unreadable,
        )
        await client.workflow_service.signal_workflow_execution(request)
        team_run = app.client.get_workflow_handle(circle)
        await team_run.signal("terminate_team", {"reason": "enough"})
        assert (await team_run.result())["stopReason"] == "terminated"
        await handle.terminate()


@pytest.mark.full
async def test_a_canceled_workflow_cancels_its_team(client: Client, tmp_path: Path) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(_: Request) -> Reply:
        loop.call_soon_threadsafe(asked.set)
        return Reply(text="Hm.", delay=0.2)

    async with application(address_of(client), tmp_path, ScriptedModel(answer)) as app:
        handle = await app.client.start_workflow(Control.run, id=app.queue, task_queue=app.queue)
        await asked.wait()
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as canceled:
            await handle.result()
        assert isinstance(canceled.value.cause, CancelledError)
        circle = app.client.get_workflow_handle(f"{app.queue}/circle")
        with pytest.raises(WorkflowFailureError):
            await circle.result()
        assert (await circle.describe()).status is WorkflowExecutionStatus.CANCELED


@pytest.mark.full
@pytest.mark.parametrize("waits", ["by default", "not"])
async def test_a_canceled_workflow_cancels_its_run_that_has_continued_as_new(
    server_with_short_histories: EmbeddedServer, tmp_path: Path, waits: str
) -> None:
    """Temporal would cancel the first execution of the run alone, which has ended."""
    again = ScriptedModel(lambda _: Reply(calls=[ScriptedToolCall(name="look", arguments={})], delay=0.2))
    async with application(server_with_short_histories.address, tmp_path, again) as app:
        run_id = f"{app.queue}/adjuster"
        options: dict[str, Any] = {"id": run_id}
        if waits == "not":
            options["cancellation_type"] = ChildWorkflowCancellationType.TRY_CANCEL
        handle = await app.client.start_workflow(
            Question.run, args=["Go on.", options], id=app.queue, task_queue=app.queue
        )
        continued = f"WorkflowId = '{run_id}' AND ExecutionStatus = 'ContinuedAsNew'"
        while not [run async for run in app.client.list_workflows(continued)]:
            await asyncio.sleep(0.05)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as canceled:
            await handle.result()
        assert isinstance(canceled.value.cause, CancelledError)
        asked = app.client.get_workflow_handle(run_id)
        with pytest.raises(WorkflowFailureError):
            await asked.result()
        assert (await asked.describe()).status is WorkflowExecutionStatus.CANCELED


@pytest.mark.full
async def test_long_values_of_the_application_stay_in_its_history_and_those_of_teams_do_not(
    client: Client, tmp_path: Path
) -> None:
    async with application(address_of(client), tmp_path, answers(APPROVED)) as app:
        handle = await app.client.start_workflow(Long.run, 1_200_000, id=app.queue, task_queue=app.queue)
        assert await handle.result() == f"{APPROVED}xxx"
        sizes = [
            sum(event.ByteSize() for event in (await app.client.get_workflow_handle(run).fetch_history()).events)
            for run in (app.queue, f"{app.queue}/adjuster")
        ]
    own, of_the_agent = sizes
    assert own > 1_200_000, "the result of its activity; the question to the agent is in the journal"
    assert own < 2_000_000
    assert of_the_agent < 1_000_000


@pytest.mark.parametrize(
    "timeout",
    [timedelta(milliseconds=1), timedelta(seconds=123_456.789), timedelta(days=30), timedelta(days=3_650)],
    ids=str,
)
def test_the_timeout_of_a_team_is_written_exactly(timeout: timedelta) -> None:
    query = _query("team", "claims", "Why?", {"timeout": timeout})
    assert parse_duration(query["spec"]["timeout"]) == timeout


@pytest.mark.full
async def test_two_workers_of_one_client_share_a_plugin(client: Client, tmp_path: Path) -> None:
    async with application(address_of(client), tmp_path, answers(APPROVED)) as app:
        queue = f"{app.queue}-2"
        other = Worker(app.client, task_queue=queue, workflows=[Claim], activities=[pay], plugins=[app.plugin])
        async with other:
            second = await app.client.execute_workflow(Claim.run, "A lamp.", id=queue, task_queue=queue)
        assert (second, await app.run(Claim.run, "A bicycle.")) == ("paid 120", "paid 120")


async def test_a_worker_whose_application_names_it_is_the_one_that_baton_checks_and_names(
    client: Client, tmp_path: Path
) -> None:
    """Temporal lists it by that name: else it would not know how old it is itself, and never compare manifests."""
    teams = Writer(tmp_path).file(*CLAIMS).parent
    queue = f"named-{uuid.uuid4().hex[:8]}"
    named = [("first", [teams]), ("second", [])]
    apps = [await Client.connect(address_of(client)) for _ in named]
    workers = [
        Worker(
            app,
            task_queue=queue,
            identity=name,
            plugins=[BatonPlugin(*manifests, settings={"BATON_HOME": str(tmp_path)})],
        )
        for app, (name, manifests) in zip(apps, named, strict=True)
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    run = await client.start_workflow("agent", {"agent": "nobody", "input": "?"}, id=queue, task_queue=queue)
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    assert re.search(r"The worker (first/[0-9a-f]{8}|second/-) has pinned the run", str(failed.value.cause))
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert ["the worker" in str(each.exception()) for each in done] == [True]
    for worker, task in zip(workers, running, strict=True):
        if task in rest:
            await worker.shutdown()
            await task


async def test_all_of_baton_goes_on_with_the_client_that_an_application_has_replaced(
    client: Client, tmp_path: Path
) -> None:
    """The task queue of a model with a rate is polled, and a query is deleted after its ttl, without the old client."""
    server = int(address_of(client).rpartition(":")[2])
    teams = Writer(tmp_path).file(*CLAIMS).parent
    queue = f"replaced-{uuid.uuid4().hex[:8]}"
    async with TcpProxy(server) as proxy:
        old, new = [await Client.connect(address) for address in (proxy.address, address_of(client))]
        with answers(APPROVED).serve() as url:
            given = {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
            plugin = BatonPlugin(teams, settings={**given, "BATON_MODEL_RATES": "default=1000"})
            worker = Worker(old, task_queue=queue, workflows=[Claim], activities=[pay], plugins=[plugin])
            async with worker:
                worker.client = new
                cutting = asyncio.create_task(proxy.cut(600))
                assert await new.execute_workflow(Claim.run, "A lamp.", id=queue, task_queue=queue) == "paid 120"
                spec = {"targets": [{"type": "agent", "name": "adjuster"}], "input": "?", "ttl": "1s"}
                run = await new.start_workflow("query", {"name": "q", "spec": spec}, id=f"{queue}-q", task_queue=queue)
                await run.result()
                while await is_known(new, f"{queue}-q"):
                    await asyncio.sleep(0.1)
            cutting.cancel()


async def is_known(client: Client, workflow_id: str) -> bool:
    """Whether Temporal has a workflow."""
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        assert error.status == RPCStatusCode.NOT_FOUND
        return False
    return True


async def test_a_worker_with_the_plugin_makes_the_checks_of_a_worker(client: Client, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    slow = ScriptedModel(lambda _: Reply(text="Hm.", delay=0.2))
    async with application(address_of(client), tmp_path, slow) as app:
        await app.client.start_workflow(Control.run, id=app.queue, task_queue=app.queue)
        while not app.model.requests:  # its team has noted its journal before
            await asyncio.sleep(0.05)
        while not [run async for run in app.client.list_workflows(f"WorkflowId = '{app.queue}/circle'")]:
            await asyncio.sleep(0.05)
        plugin = BatonPlugin(tmp_path / "teams", settings={"BATON_HOME": str(elsewhere)})
        other = await Client.connect(address_of(client))
        worker = Worker(other, task_queue=app.queue, workflows=[Control], plugins=[plugin])
        with pytest.raises(SettingsError, match="was started with the journal"):
            await worker.run()
        another = await Client.connect(address_of(client))
        again = Worker(another, task_queue=app.queue, workflows=[Control], plugins=[plugin])
        with pytest.raises(SettingsError, match="was started with the journal"):
            async with asyncio.timeout(60), again:
                await asyncio.Event().wait()
        await app.client.get_workflow_handle(app.queue).terminate()


async def test_definitions_in_python_with_their_functions_are_given_to_the_plugin(
    client: Client, tmp_path: Path
) -> None:
    def amount(claim: str) -> int:
        """The amount of a claim."""
        return len(claim)

    model = ScriptedModel(
        Script(lines=[line("adjuster", call("amount", claim="bicycle"), '{"approved": true, "amount": 7}')]).answer
    )
    adjuster = baton.Agent("adjuster", prompt="You are adjuster.", model="gpt", tools=[amount])
    plugin_of = baton.Team("claims", strategy="sequential", members=[adjuster])
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    with model.serve() as url:
        settings = {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}
        own = await Client.connect(address_of(client))
        plugin = BatonPlugin(plugin_of, settings=settings)
        async with Worker(own, task_queue=queue, workflows=[Claim], activities=[pay], plugins=[plugin]):
            assert await own.execute_workflow(Claim.run, "bicycle", id=queue, task_queue=queue) == "paid 7"


async def test_a_client_with_the_plugin_reads_results_as_types_of_baton(client: Client, tmp_path: Path) -> None:
    async with application(address_of(client), tmp_path, answers("Fine.")) as app:
        own = await Client.connect(address_of(client), plugins=[app.plugin])
        query = {"name": "q", "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "talker"}]}}
        handle = await own.start_workflow(
            "query", query, id=f"q-{app.queue}", task_queue=app.queue, result_type=baton.Status
        )
        status = await handle.result()
    assert isinstance(status, baton.Status)
    assert (status.phase, status.message) == ("Completed", "Fine.")


async def test_a_program_asks_teams_through_its_own_client_with_its_codec(client: Client, tmp_path: Path) -> None:
    async with application(address_of(client), tmp_path, answers("Fine."), SCRAMBLED) as app:
        async with baton.connect(client=app.client, task_queue=app.queue) as connection:
            given = {"name": "q", "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "talker"}]}}
            started = await app.client.start_workflow("query", given, id=f"q-{app.queue}", task_queue=app.queue)
            handle = await connection.attach(started.id)
            assert (await handle.result()).message == "Fine."
        history = await started.fetch_history()
    assert "Fine." not in history.to_json()


async def test_functions_of_a_program_run_on_its_own_client(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    model = ScriptedModel(Script(lines=[line("clerk", call("now"), "It is noon.")]).answer)
    with model.serve() as url:
        for name, value in {"BATON_HOME": str(tmp_path), "OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY}.items():
            monkeypatch.setenv(name, value)
        own = await Client.connect(address_of(client), data_converter=SCRAMBLED)
        clerk = baton.Agent("clerk", prompt="You are clerk.", model="gpt", tools=[now])
        async with baton.connect(client=own) as connection:
            assert (await connection.run(clerk, "What time is it?")).message == "It is noon."


async def test_an_address_is_reached_in_the_namespace_of_the_environment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "claims")
    async with baton.connect(address_of(client)) as connection:
        assert (await connection.client()).namespace == "claims"


async def test_a_workflow_is_tested_with_fake_runs(client: Client) -> None:
    own = await Client.connect(address_of(client))
    queue = f"claims-{uuid.uuid4().hex[:8]}"

    def decide(claim: str) -> Decision:
        return Decision(approved="bicycle" in claim, amount=80)

    async def ask(number: int, run: Any, *args: Any) -> Any:
        return await own.execute_workflow(run, args=args, id=f"{queue}-{number}", task_queue=queue)

    fake = fake_runs({"claims": decide, "adjuster": "It depends.", "talker": ValueError("no talker today")})
    async with Worker(own, task_queue=queue, workflows=[Claim, Question, Untyped, fake], activities=[pay]):
        assert await ask(1, Claim.run, "My bicycle was stolen.") == "paid 80"
        assert await ask(2, Claim.run, "My lamp was stolen.") == "rejected"
        assert await ask(3, Question.run, "Why?", {}) == "It depends."
        with pytest.raises(WorkflowFailureError) as failed:
            await ask(4, Untyped.run, "Why?")
    assert isinstance(failed.value.cause, ChildWorkflowError)
    assert "no talker today" in str(failed.value.cause.cause)


async def test_a_workflow_may_be_in_the_module_of_its_tests_with_their_fake_runs(client: Client) -> None:
    own = await Client.connect(address_of(client))
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    async with Worker(own, task_queue=queue, workflows=[TestedClaim, FAKE]):
        assert await own.execute_workflow(TestedClaim.run, "Why?", id=queue, task_queue=queue) == "paid"


@pytest.mark.full
async def test_the_sample_of_an_application_pays_what_its_team_has_approved(client: Client, tmp_path: Path) -> None:
    estimate = ScriptLine.model_validate({"system": "insurance adjuster", "say": ["Some 300 euros."]})
    decision = '{"approved": true, "amount": 300, "reason": "It was locked."}'
    manager = ScriptLine.model_validate({"system": "claims manager", "say": [decision]})
    with ScriptedModel(Script(lines=[estimate, manager]).answer).serve() as url:
        variables = {"TEMPORAL_ADDRESS": address_of(client), "BATON_HOME": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, ROOT / "samples" / "application" / "claims.py", "My bicycle was stolen."),
            env=process_env(OPENAI_BASE_URL=url, OPENAI_API_KEY=KEY, **variables),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
    assert (process.returncode, printed.decode()) == (0, "paid 300 EUR\n")


async def test_runs_with_an_applications_codec_do_not_hide_others(env: Environment) -> None:
    env.answer = lambda _: Reply(text="Fine.")
    foreign = await Client.connect(address_of(env.client), data_converter=SCRAMBLED)
    await foreign.start_workflow(
        "query", {"name": "q"}, id=f"foreign-{env.task_queue}", task_queue=env.task_queue, memo={"query": "mine"}
    )
    handle = await env.client.start_workflow(
        "query",
        {"spec": {"input": "?", "targets": [{"type": "agent", "name": "a"}]}, "resources": [agent("a")]},
        id=f"own-{env.task_queue}",
        task_queue=env.task_queue,
        memo={"query": env.task_queue, "namespace": "default"},
    )
    await handle.result()
    while len([run async for run in env.client.list_workflows(f"TaskQueue = '{env.task_queue}'")]) < 2:
        await asyncio.sleep(0.05)
    assert (await find_run(env.client, env.task_queue, "default")).id == handle.id


@pytest.mark.full
async def test_an_application_that_connects_with_a_client_certificate_runs_a_team_as_a_child(
    client: Client, tmp_path: Path
) -> None:
    certificates = Certificates.make(tmp_path)
    async with tls_proxy(address_of(client), certificates) as address:
        authority = certificates.file("authority.pem").read_bytes()
        with pytest.raises(RuntimeError):  # the server asks for the certificate
            await Client.connect(address, tls=TLSConfig(server_root_ca_cert=authority))
        tls = TLSConfig(
            server_root_ca_cert=authority,
            client_cert=certificates.file("client.pem").read_bytes(),
            client_private_key=certificates.file("client.key").read_bytes(),
        )
        async with application(address, tmp_path, answers(APPROVED), DataConverter.default, tls) as app:
            assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"


async def test_a_worker_logs_what_its_manifests_name_and_nobody_has(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = Writer(tmp_path).file(
        team("claims", "adjuster", "assessor", strategy="sequential"),
        agent("adjuster", "pay", "charge", "look-up"),
        manifest("Tool", "pay", {"type": "activity", "activity": {"type": "pay"}}),
        manifest("Tool", "charge", {"type": "activity", "activity": {"type": "charge_card"}}),
        manifest("Tool", "look-up", {"type": "function", "function": {"name": "look-up"}}),
    )
    plugin = BatonPlugin(file, settings={"BATON_HOME": str(tmp_path)})
    own = await Client.connect(address_of(client))
    queue = f"claims-{uuid.uuid4().hex[:8]}"
    async with Worker(own, task_queue=queue, activities=[pay], plugins=[plugin]):
        pass
    logged = [record.getMessage() for record in caplog.records if str(file) in record.getMessage()]
    assert [message.partition(": ")[2] for message in logged] == [
        "Team/default/claims: spec.members[1].name: Agent or Team default/assessor is not in the files; "
        "known: adjuster",
        "Tool/default/charge: spec.activity.type: "
        f"the worker of the task queue {queue} has no activity 'charge_card'; known: pay",
        "Tool/default/look-up: spec.function.name: the worker has no function 'look-up'; it has none",
    ]


@asynccontextmanager
async def gateway_of(app: Application, folder: Path, **variables: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway, in a process of its own, for the runs on the application's task queue."""
    env = process_env(
        TEMPORAL_ADDRESS=address_of(app.client),
        BATON_HOME=str(folder),
        BATON_TASK_QUEUE=app.queue,
        BATON_JOURNAL_URL=f"sqlite:///{folder}/journal.db",
        **variables,
    )
    gateway = GatewayProcess(env, own_port(), folder / "gateway.log")
    gateway.start()
    try:
        await gateway.ready()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            yield http
    finally:
        gateway.kill()


async def finished(http: httpx.AsyncClient, run: str) -> tuple[str, Json]:
    """Follows the events of a run to its end: what was said in it, and its status."""
    path = f"/runs/{quote(run, safe='')}"
    events = await http.get(f"{path}/events")
    assert events.status_code == 200, events.text
    sent = [json.loads(line.removeprefix("data: ")) for line in events.text.splitlines() if line.startswith("data: ")]
    said = "".join(event["text"] for event in sent if event["type"] == "message")
    status: Json = (await http.get(path)).json()["status"]
    return said, status


@pytest.mark.full
async def test_a_gateway_with_the_converter_of_an_application_reads_its_runs_and_starts_runs_for_it(
    client: Client, tmp_path: Path
) -> None:
    named = {"BATON_DATA_CONVERTER": "tests.harness.scrambled:SCRAMBLED"}
    async with application(address_of(client), tmp_path, answers(APPROVED), SCRAMBLED) as app:
        assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"
        async with gateway_of(app, tmp_path, **named) as http:
            [own] = (await http.get("/runs")).json()["runs"]
            started = (await http.post("/runs", json={"target": "claims", "input": "My car was stolen."})).json()
            for run in (own["id"], started["id"]):
                said, status = await finished(http, run)
                assert (said, status["phase"], status["value"]["amount"]) == (APPROVED, "Completed", 120)
            history = await app.client.get_workflow_handle(started["id"]).fetch_history()
        assert "stolen" not in history.to_json()


@pytest.mark.full
async def test_a_gateway_without_the_converter_of_an_application_says_which_setting_its_runs_need(
    client: Client, tmp_path: Path
) -> None:
    async with application(address_of(client), tmp_path, answers(APPROVED), SCRAMBLED) as app:
        assert await app.run(Claim.run, "My bicycle was stolen.") == "paid 120"
        async with gateway_of(app, tmp_path) as http:
            [own] = (await http.get("/runs")).json()["runs"]
            path = f"/runs/{quote(own['id'], safe='')}"
            for refused in [await http.get(path), await http.get(f"{path}/events"), await http.get(f"{path}/history")]:
                assert refused.status_code == 503, refused.text
                assert "the encoding 'binary/scrambled'" in refused.text
                assert "set BATON_DATA_CONVERTER" in refused.text
        status = ("status", own["id"])
        printed = await asyncio.to_thread(baton_command, *status, env=process_env(TEMPORAL_ADDRESS=address_of(client)))
        assert (printed.returncode, "set BATON_DATA_CONVERTER" in printed.stderr) == (1, True), printed


@pytest.mark.full
async def test_a_run_whose_status_can_not_be_read_is_left_out_of_the_progress_of_others(
    env: Environment, tmp_path: Path
) -> None:
    env.answer = lambda _: Reply(text="Fine.")
    address = address_of(env.client)
    async with (
        application(address, tmp_path, answers(APPROVED), SCRAMBLED) as encoded,
        application(address, tmp_path, answers(APPROVED)) as plain,
        GatewayServer.running(env) as gateway,
    ):
        own = await env.start_query([agent("a")], "agent/a")
        await own.result()
        given = {"name": "q", "spec": {"input": "Why?", "targets": [{"type": "agent", "name": "talker"}]}}
        other = f"q-{encoded.queue}"
        await encoded.client.execute_workflow("query", given, id=other, task_queue=encoded.queue)
        foreign = await plain.client.start_workflow(Control.run, id=f"c-{plain.queue}", task_queue=plain.queue)
        listed = await gateway.get(f"/progress?runs={other},{foreign.id},{own.id}")
        assert [(each["id"], each["phase"]) for each in listed["runs"]] == [(own.id, "Completed")]
        refused = await gateway.get(f"/runs/{foreign.id}", 503)
        assert "can't answer" in refused["error"]["message"]
        await foreign.terminate()


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("tests.harness.scrambled", "write package.module:attribute, not 'tests.harness.scrambled'"),
        (
            "no_such_module:CONVERTER",
            "no_such_module:CONVERTER can't be loaded: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "tests.harness.scrambled:Scrambled",
            "tests.harness.scrambled:Scrambled is not a DataConverter of temporalio.converter, but of type ABCMeta",
        ),
    ],
)
def test_a_converter_that_cannot_be_used_ends_the_gateway_with_the_reason(named: str, reason: str) -> None:
    env = process_env(TEMPORAL_ADDRESS="127.0.0.1:1", BATON_DATA_CONVERTER=named)
    ended = baton_command("serve", "--port", "0", env=env)
    assert ended.returncode == 1
    assert f"BATON_DATA_CONVERTER: {reason}" in ended.stderr
