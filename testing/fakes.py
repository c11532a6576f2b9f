"""For the tests of an application's workflows: runs that answer at once, without Baton's workers and without models.

fake = fake_runs({"claims": Decision(approved=True, amount=120)})
async with Worker(client, task_queue="test", workflows=[Claim, fake], activities=[pay]):
    assert await client.execute_workflow(Claim.run, "…", id="claim", task_queue="test") == "paid 120"
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from ..contracts.message import TokenUsage
from ..contracts.status import Response, Status, StatusTarget

Answer = str | BaseModel | Mapping[str, Any] | list[Any] | Exception
"""A text, a value that is answered as JSON, or an exception, with which the run fails."""


Answers = Mapping[str, Answer | Callable[[str], Answer]]
"""The answer of each team and agent by its name, or a function that takes the input and returns it."""


def fake_runs(answers: Answers) -> type:
    """A workflow class of the type ``query``, to be registered with a worker instead of Baton's.

    A function among the ``answers`` is called by workflow code, so it must be deterministic. A target without an answer
    fails the run.
    """

    async def run(self: object, query: dict[str, Any]) -> dict[str, Any]:
        spec = query["spec"]
        (target,) = spec["targets"]
        answer = answers.get(target["name"], ApplicationError(f"there is no answer for {target['name']}"))
        if callable(answer):
            answer = answer(spec["input"])
        if isinstance(answer, Exception):
            raise answer
        return _completed(target, answer)

    run.__qualname__ = "FakeQuery.run"  # the SDK takes no class that is local to a function
    fake = type("FakeQuery", (), {"run": workflow.run(run)})
    return workflow.defn(name="query", sandboxed=False, failure_exception_types=[Exception])(fake)


def _completed(target: Mapping[str, str], answer: str | BaseModel | Mapping[str, Any] | list[Any]) -> dict[str, Any]:
    """The status of a completed run."""
    text = answer if isinstance(answer, str) else TypeAdapter(Any).dump_json(answer, by_alias=True).decode()
    usage = TokenUsage()
    response = Response(
        target=StatusTarget(type=target["type"], name=target["name"]),
        message=text,
        status="Success",
        stop_reason="completed",
        token_usage=usage,
    )
    status = Status(
        phase="Completed",
        message=text,
        responses=(response,),
        stop_reason="completed",
        token_usage=usage,
        start_time=workflow.now().isoformat(),
    )
    return status.model_dump(mode="json", by_alias=True, exclude_unset=True)
