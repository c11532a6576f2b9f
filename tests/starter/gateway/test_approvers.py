"""Who may decide: only an identity that a gateway has verified counts, and where rules name approvers, nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from baton.contracts.decisions import ApproveRequest, PendingDecision
from baton.contracts.identity import REQUESTER, Identity, IdentityKeys, digest_of
from baton.contracts.status import Status
from baton.starter.runs.decisions import all_pending_decisions
from baton.temporal.client import connect
from baton.temporal.personal_data import redact_setting
from baton.testing import Reply
from tests.harness.environment import Environment, Handle, Json, agent, call, line, manifest
from tests.harness.gateway import GatewayServer, key_file
from tests.starter.gateway.test_mcp_server import rpc
from tests.starter.gateway.test_remote_store import baton

KEY = "k" * 32
ORDER = call("order", input="12 desks")
FINANCE: Json = {"groups": ["finance"]}
HOLDERS: Mapping[str, Json] = {
    "ann": {"groups": ["finance"], "allRuns": True},
    "bob": {"groups": ["finance", "sales"], "allRuns": True},
    "eve": {"groups": ["sales"], "allRuns": True},
}


def order(*approvers: Json) -> Json:
    return manifest(
        "Tool", "order", {"type": "agent", "agent": {"name": "shop"}, "approval": {"approvers": [*approvers]}}
    )


@asynccontextmanager
async def shop(
    env: Environment, folder: Path, *manifests: Json, signs: bool = True, verifies: bool = True
) -> AsyncIterator[tuple[GatewayServer, dict[str, str]]]:
    """A gateway with keys of HOLDERS before a worker with these manifests, and an agent who orders."""
    path, keys = key_file(folder, HOLDERS)
    known = replace(env, variables={"BATON_IDENTITY_KEY": KEY} if verifies else {})
    async with known.with_manifests([agent("buyer", "order"), agent("shop"), *manifests]) as served:
        served.script(line("buyer", ORDER, "Ordered."), line("shop", "Confirmed."))
        signing = {"BATON_IDENTITY_KEY": KEY if signs else "", "BATON_GATEWAY_KEYS": str(path)}
        async with GatewayServer.running(served, **signing) as gateway:
            yield gateway, keys


async def waiting(gateway: GatewayServer, key: str, run: str | None = None) -> Json:
    """What the caller's inbox has of a run, as soon as there is something."""
    while True:
        found = (await gateway.get("/inbox", key=key))["waiting"]
        if found := [each for each in found if run in (None, each["root"])]:
            first: Json = found[0]
            return first
        await asyncio.sleep(0.02)


async def started(gateway: GatewayServer, key: str) -> str:
    run = await gateway.post("/runs", {"target": "agent/buyer", "input": "Buy!"}, 201, key=key)
    return str(run["id"])


async def refused(handle: Handle, asked: Json, **given: object) -> str:
    """Why a Temporal client's decision is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as error:
        await handle.execute_update("approve", {"call": asked["id"], **given})
    assert isinstance(error.value.cause, ApplicationError)
    return error.value.cause.message


async def test_only_a_verified_approver_decides_and_refusals_do_not_end_the_wait(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order(FINANCE)) as (gateway, keys):
        run = await started(gateway, keys["eve"])
        item = await waiting(gateway, keys["eve"], run)
        asked = item["decision"]
        assert asked["approvers"] == [{"groups": ["finance"]}]
        assert item["refusal"] == f"eve may not decide {asked['id']}; it may be decided by the group finance"
        handle: Handle = gateway.env.client.get_workflow_handle(asked["run"])
        told = await refused(handle, asked, by="ann")
        assert "may only be decided by the group finance, and ann is not verified" in told
        forged = {"name": "ann", "groups": ["finance"], "signature": "0" * 64}
        assert "ann can't be verified: no gateway" in await refused(handle, asked, identity=forged)
        error = await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, 409, key=keys["eve"])
        assert "eve may not decide" in error["error"]["message"]
        await handle.signal(
            "remembered", {"rule": "Tool/default/order", "decision": {"approved": True, "at": asked["since"]}}
        )
        assert "refusal" not in await waiting(gateway, keys["ann"], run)
        made = (await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, key=keys["ann"]))["decision"]
        assert (made["by"], made["verified"], made["groups"]) == ("ann", True, ["finance"])
        events = {event["event"]: event["data"] for event in await gateway.finished(run, key=keys["eve"])}
        assert events["wait.started"]["approvers"] == "the group finance"
        assert (events["wait.ended"]["by"], events["wait.ended"]["verified"]) == ("ann", True)


async def test_a_decision_is_verified_also_if_its_personal_data_is_redacted(env: Environment, tmp_path: Path) -> None:
    redacting = redact_setting({"email": r"[\w.-]+@[\w-]+\.[a-z]+"})
    path, keys = key_file(tmp_path, HOLDERS)
    known = replace(
        env,
        client=await connect(env.client.service_client.config.target_host, redacting),
        variables={"BATON_IDENTITY_KEY": KEY, **redacting},
    )
    async with known.with_manifests([agent("buyer", "order"), agent("shop"), order(FINANCE)]) as served:
        served.script(line("buyer", ORDER, "Ordered."), line("shop", "Confirmed."))
        settings = {"BATON_IDENTITY_KEY": KEY, "BATON_GATEWAY_KEYS": str(path), **redacting}
        async with GatewayServer.running(served, **settings) as gateway:
            run = await started(gateway, keys["eve"])
            asked = (await waiting(gateway, keys["ann"], run))["decision"]
            body = {"call": asked["id"], "reason": "Ask bob@example.com."}
            for _ in range(2):  # the second one is known to be the first again
                made = (await gateway.post(f"/runs/{run}/reject", body, key=keys["ann"]))["decision"]
                assert (made["by"], made["verified"], made["reason"]) == ("ann", True, "Ask [email].")


async def test_four_eyes_are_two_verified_people_neither_of_whom_has_started_the_run(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "required": 2, "notRequester": True})) as (gateway, keys):
        run = await started(gateway, keys["ann"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        error = await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, 409, key=keys["ann"])
        assert error["error"]["message"] == "ann started the run: another person has to decide"
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        path = f"/runs/{run}/approve"
        changed = await gateway.post(path, {"call": asked["id"], "arguments": {"input": "1"}}, 409, key=keys["ann"])
        assert "several people approve" in changed["error"]["message"]
        code, said = await baton(gateway, keys["ann"], "approve", run)
        assert (code, said) == (0, f"{asked['id']} approved.\nIt waits for 1 more person.\n")
        first = (await gateway.post(path, {"call": asked["id"]}, key=keys["ann"]))["decision"]
        assert (first["by"], first["missing"]) == ("ann", 1)
        again = (await gateway.post(path, {"call": asked["id"]}, key=keys["ann"]))["decision"]
        assert again == first
        listed = await waiting(gateway, keys["ann"], run)
        assert [each["by"] for each in listed["decision"]["approvals"]] == ["ann"]
        assert "ann has approved" in listed["refusal"]
        second = (await gateway.post(path, {"call": asked["id"]}, key=keys["bob"]))["decision"]
        assert (second["by"], second["earlier"]) == ("bob", ["ann"])
        assert [event["event"] for event in await gateway.finished(run, key=keys["eve"])][-1] == "run.ended"


async def test_who_has_started_the_run_decides_by_the_rules_that_let_them_and_does_not_count_for_the_others(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order(FINANCE, {"notRequester": True})) as (gateway, keys):
        run = await started(gateway, keys["ann"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        path = f"/runs/{run}/approve"
        first = (await gateway.post(path, {"call": asked["id"]}, key=keys["ann"]))["decision"]
        assert (first["by"], first["missing"]) == ("ann", 1)
        assert (await gateway.post(path, {"call": asked["id"]}, key=keys["ann"]))["decision"] == first
        second = (await gateway.post(path, {"call": asked["id"]}, key=keys["eve"]))["decision"]
        assert (second["by"], second["earlier"], second["missing"]) == ("eve", ["ann"], 0)
        assert [event["event"] for event in await gateway.finished(run, key=keys["ann"])][-1] == "run.ended"
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        path = f"/runs/{run}/approve"
        error = await gateway.post(path, {"call": asked["id"]}, 409, key=keys["eve"])
        assert error["error"]["message"] == "eve started the run: another person has to decide"
        only = (await gateway.post(path, {"call": asked["id"]}, key=keys["ann"]))["decision"]
        assert (only["by"], only["missing"]) == ("ann", 0)
        assert [event["event"] for event in await gateway.finished(run, key=keys["eve"])][-1] == "run.ended"


async def test_in_a_fork_each_approver_decides_again_but_nobody_who_has_started_it_or_the_forked_run(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "required": 2})) as (gateway, keys):
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, key=keys["ann"])
        for at in ("call-1", "0"):
            forked = await gateway.post(f"/runs/{run}/fork", {"at": at}, 201, key=keys["ann"])
            again = (await waiting(gateway, keys["ann"], forked["id"]))["decision"]
            assert again.get("approvals") is None, "what ann has approved in the forked run"
            path = f"/runs/{forked['id']}/approve"
            first = await gateway.post(path, {"call": again["id"]}, key=keys["ann"])
            assert first["decision"]["missing"] == 1
            second = await gateway.post(path, {"call": again["id"]}, key=keys["bob"])
            assert second["decision"]["earlier"] == ["ann"]
            await gateway.finished(forked["id"], key=keys["ann"])
    async with shop(env, tmp_path, order({**FINANCE, "notRequester": True})) as (gateway, keys):
        run = await started(gateway, keys["ann"])
        await waiting(gateway, keys["ann"], run)
        first = await gateway.post(f"/runs/{run}/fork", {"at": "call-1"}, 201, key=keys["ann"])
        asked = (await waiting(gateway, keys["ann"], first["id"]))["decision"]
        refusal = await gateway.post(f"/runs/{first['id']}/approve", {"call": asked["id"]}, 409, key=keys["ann"])
        assert refusal["error"]["message"] == "ann started the run: another person has to decide"
        second = await gateway.post(f"/runs/{run}/fork", {"at": "0"}, 201, key=keys["eve"])
        asked = (await waiting(gateway, keys["ann"], second["id"]))["decision"]
        path = f"/runs/{second['id']}/approve"
        refusal = await gateway.post(path, {"call": asked["id"]}, 409, key=keys["ann"])
        assert refusal["error"]["message"] == "ann started the run: another person has to decide"
        made = (await gateway.post(path, {"call": asked["id"]}, key=keys["bob"]))["decision"]
        assert (made["by"], made["verified"]) == ("bob", True)


async def test_nobody_decides_in_a_fork_of_a_run_of_which_nobody_knows_who_has_started_it(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "notRequester": True})) as (gateway, keys):
        run = await gateway.env.start_query([], "agent/buyer")
        await waiting(gateway, keys["ann"], run.id)
        forked = await gateway.post(f"/runs/{run.id}/fork", {"at": "0"}, 201, key=keys["eve"])
        asked = (await waiting(gateway, keys["ann"], forked["id"]))["decision"]
        refusal = await gateway.post(f"/runs/{forked['id']}/approve", {"call": asked["id"]}, 409, key=keys["ann"])
        assert "it is not verified who started the run" in refusal["error"]["message"]


async def test_a_retry_was_started_by_whoever_has_started_the_run_that_has_failed(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "notRequester": True})) as (gateway, keys):
        script, refusals = gateway.env.answer, [Reply(status=401, code="invalid_api_key")]
        gateway.env.answer = lambda request: refusals.pop() if refusals else script(request)
        run = await started(gateway, keys["ann"])
        await gateway.finished(run, key=keys["ann"])
        client = gateway.env.client
        failed = await client.get_workflow_handle(run).describe()
        await client.start_workflow(  # a retry long after the signature proves nothing about its own start
            "query", {"name": "q", "retries": failed.run_id}, id=run, task_queue=gateway.env.task_queue
        )
        decision: Handle = client.get_workflow_handle(run)
        while not (found := (await decision.query("status", result_type=Status)).pending_decisions):
            await asyncio.sleep(0.02)
        for name, refusal in (("ann", "ann started the run: another person has to decide"), ("bob", None)):
            request = ApproveRequest(call=found[0].id)
            identity = Identity(name=name, groups=("finance",))
            signed = IdentityKeys((KEY,)).sign_decision(identity, found[0].place(client.namespace, request))
            if refusal is None:
                await decision.execute_update("approve", request.signed(signed))
                continue
            with pytest.raises(WorkflowUpdateFailedError) as error:
                await decision.execute_update("approve", request.signed(signed))
            assert isinstance(error.value.cause, ApplicationError)
            assert error.value.cause.message == refusal
        assert (await gateway.env.status(decision)).phase == "Completed"


@workflow.defn(name="purchase")
class Purchase:
    """A workflow of an application that starts a query. Its arguments are nothing like those of Baton's runs."""

    @workflow.run
    async def run(self, queue: str, _: int) -> Any:
        run_input = {"name": "q", "spec": {"input": "Buy!", "targets": [{"type": "agent", "name": "buyer"}]}}
        own = workflow.info().workflow_id
        return await workflow.execute_child_workflow("query", run_input, id=f"{own}/query", task_queue=queue)


async def test_nobody_is_known_to_have_started_a_run_that_an_application_has_started(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "notRequester": True})) as (gateway, _):
        client, own = gateway.env.client, "purchases"
        async with Worker(client, task_queue=own, workflows=[Purchase], workflow_runner=UnsandboxedWorkflowRunner()):
            purchase = await client.start_workflow("purchase", args=[gateway.env.task_queue, 1], id=own, task_queue=own)
            while not (found := (await all_pending_decisions(client, queue=gateway.env.task_queue)).decisions):
                await asyncio.sleep(0.02)
            ((_, asked),) = found
            handle: Handle = client.get_workflow_handle(asked.run)
            request = ApproveRequest(call=asked.id)
            place = asked.place(client.namespace, request)
            signed = IdentityKeys((KEY,)).sign_decision(Identity(name="bob", groups=("finance",)), place)
            with pytest.raises(WorkflowUpdateFailedError) as error:
                await handle.execute_update("approve", request.signed(signed))
            assert isinstance(error.value.cause, ApplicationError)
            assert "it is not verified who started the run" in error.value.cause.message
            await purchase.terminate()


def test_a_signature_counts_for_a_worker_that_knows_more_fields() -> None:
    class NewerRequest(ApproveRequest):
        scope: str = "call"

    assert digest_of(NewerRequest(call="c")) == digest_of(ApproveRequest(call="c"))
    assert digest_of(NewerRequest(call="c", scope="run")) != digest_of(ApproveRequest(call="c"))


async def test_nobody_changes_what_another_has_approved_or_will(env: Environment, tmp_path: Path) -> None:
    """Also where each of two rules needs one person."""
    async with shop(env, tmp_path, order({"names": ["eve"]}, FINANCE)) as (gateway, keys):
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["eve"], run))["decision"]
        path = f"/runs/{run}/approve"
        changed = {"call": asked["id"], "arguments": {"input": "900 desks"}}
        for holder in ("eve", "ann"):
            refusal = await gateway.post(path, changed, 409, key=keys[holder])
            assert "several people approve" in refusal["error"]["message"]
            await gateway.post(path, {"call": asked["id"]}, key=keys[holder])
        assert [event["event"] for event in await gateway.finished(run, key=keys["eve"])][-1] == "run.ended"


async def test_each_rule_needs_its_own_people_and_one_of_them_can_reject(env: Environment, tmp_path: Path) -> None:
    async with shop(env, tmp_path, order({"names": ["eve"]}, FINANCE)) as (gateway, keys):
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["eve"], run))["decision"]
        first = await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, key=keys["eve"])
        assert first["decision"]["missing"] == 1
        await gateway.post(f"/runs/{run}/reject", {"call": asked["id"], "reason": "Too dear."}, key=keys["bob"])
        ended = [event["data"] for event in await gateway.finished(run, key=keys["eve"])]
        (rejected,) = [each for each in ended if each["type"] == "wait.ended"]
        assert (rejected["approved"], rejected["by"], rejected["reason"]) == (False, "bob", "Too dear.")


async def test_without_the_key_nobody_decides_what_has_approvers(env: Environment, tmp_path: Path) -> None:
    for signs, verifies, why in ((False, True, "ann is not verified"), (True, False, "the workers have no")):
        async with shop(env, tmp_path, order(FINANCE), signs=signs, verifies=verifies) as (gateway, keys):
            run = await started(gateway, keys["ann"])
            asked = (await waiting(gateway, keys["ann"], run))["decision"]
            error = await gateway.post(f"/runs/{run}/approve", {"call": asked["id"]}, 409, key=keys["ann"])
            assert why in error["error"]["message"]
            assert (await waiting(gateway, keys["ann"], run))["decision"]["id"] == asked["id"]


async def test_a_signature_counts_for_one_decision_and_one_start_alone(env: Environment, tmp_path: Path) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "notRequester": True})) as (gateway, keys):
        run = await started(gateway, keys["eve"])
        asked = (await waiting(gateway, keys["ann"], run))["decision"]
        client = gateway.env.client
        pending = PendingDecision.model_validate(asked)
        signer = IdentityKeys((KEY,))
        rejects = ApproveRequest(call=pending.id, approved=False, reason="No.")
        ann = Identity(name="ann", groups=("finance",))
        signed = signer.sign_decision(ann, pending.place(client.namespace, rejects))
        assert signed
        handle: Handle = client.get_workflow_handle(pending.run)
        approves = {"approved": True, "identity": signed.model_dump(mode="json")}
        assert "can't be verified" in await refused(handle, asked, **approves)
        richer = {**approves, "approved": False, "reason": "No."}
        richer["identity"] = {**signed.model_dump(mode="json"), "groups": ["finance", "board"]}
        assert "can't be verified" in await refused(handle, asked, **richer)

        memo = await (await client.get_workflow_handle(run).describe()).memo()
        copied = {name: value for name, value in memo.items() if name == REQUESTER}
        spec = {"input": "Buy!", "targets": [{"type": "agent", "name": "buyer"}]}
        other = await client.start_workflow(
            "query", {"spec": spec}, id="copied-start", task_queue=gateway.env.task_queue, memo=copied
        )
        asked = (await waiting(gateway, keys["ann"], other.id))["decision"]
        error = await gateway.post(f"/runs/{other.id}/approve", {"call": asked["id"]}, 409, key=keys["ann"])
        assert "it is not verified who started the run" in error["error"]["message"]
        await other.terminate()


async def test_an_a2a_task_waits_for_the_second_person_and_says_so_to_the_first(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "required": 2})) as (gateway, keys):

        async def send(name: str, part: Json, task: str = "") -> Json:
            sent = {"messageId": f"{name}-{task}", "role": "ROLE_USER", "taskId": task, "parts": [part]}
            path = "/a2a/agent/buyer/message:send"
            done = await gateway.post(path, {"message": sent}, key=keys[name], a2a_version="1.0")
            found: Json = done["task"]
            return found

        waits = await send("ann", {"text": "Buy!"})
        (asked,) = waits["status"]["message"]["parts"][1]["data"]["pending"]
        approval = {"data": {"approve": asked["id"]}}
        for _ in range(2):  # the same approval again changes nothing
            once = await send("ann", approval, waits["id"])
            assert once["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert once["status"]["message"]["parts"][1]["data"]["pending"] == [asked]
        assert (await send("bob", approval, waits["id"]))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_mcp_client_asks_its_user_once_for_what_a_second_person_has_to_approve(
    env: Environment, tmp_path: Path
) -> None:
    async with shop(env, tmp_path, order({**FINANCE, "required": 2})) as (gateway, keys):
        gateway.http.headers["authorization"] = f"Bearer {keys['ann']}"
        asking = {"name": "agent_buyer", "arguments": {"input": "Buy!"}}
        needed = (await rpc(gateway, "tools/call", asking, tasks=False))["result"]
        (asked,) = needed["inputRequests"]
        approval = {"action": "accept", "content": {"decision": "approve"}}
        answered = {**asking, "inputResponses": {asked: approval}, "requestState": needed["requestState"]}
        result = (await rpc(gateway, "tools/call", answered, tasks=False))["result"]
        assert "it is waiting for people" in result["content"][0]["text"], result
        run = result["_meta"]["baton/run"]
        await gateway.post(f"/runs/{run}/approve", {"call": asked}, key=keys["bob"])
        result = (await rpc(gateway, "tools/call", {**asking, "requestState": run}, tasks=False))["result"]
        assert result["content"][0]["text"] == "Ordered."


async def test_over_ag_ui_no_answer_counts_if_the_caller_may_not_give_one_of_them(
    env: Environment, tmp_path: Path
) -> None:
    ann = {"name": "ann", "type": "human", "prompt": "Is it legal?"}
    bob = {"name": "bob", "type": "human", "prompt": "Is it wise?", "approvers": [FINANCE]}
    panel = manifest("Team", "panel", {"strategy": "parallel", "members": [ann, bob]})
    async with shop(env, tmp_path, order(), panel) as (gateway, keys):

        async def asked(run: str, name: str, **more: object) -> httpx.Response:
            message = {"id": "m", "role": "user", "content": "Well?"}
            body = {"threadId": "t", "runId": run, "messages": [message], "tools": [], "context": [], "state": {}}
            headers = {"authorization": f"Bearer {keys[name]}"}
            return await gateway.http.post("/ag-ui/panel", json={**body, **more}, headers=headers)

        interrupts: list[Json] = []
        while len(interrupts) < 2:  # the second is asked a moment later
            last = json.loads((await asked("r1", "eve")).text.strip().splitlines()[-1].removeprefix("data: "))
            interrupts = sorted(last["outcome"]["interrupts"], key=lambda each: str(each["message"]))
        answers = [{"interruptId": each["id"], "status": "resolved", "payload": "Yes."} for each in interrupts]
        for order_ in (answers, answers[::-1]):
            refused = await asked("r2", "eve", messages=[], resume=order_)
            assert (refused.status_code, "eve may not decide" in refused.text) == (409, True), refused.text
        waiting = (await gateway.get("/inbox", key=keys["ann"]))["waiting"]
        assert not [each for each in waiting if "decision" in each["decision"]]
        assert len(waiting) == 2
        done = await asked("r2", "bob", messages=[], resume=answers)
        assert "RUN_FINISHED" in done.text, done.text
