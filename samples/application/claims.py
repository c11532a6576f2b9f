"""An insurance company's application: its own workflow asks a team of agents about a claim, and pays.

TEMPORAL_ADDRESS=127.0.0.1:7233 python samples/application/claims.py "My bicycle was stolen."
"""

import asyncio
import os
import sys
import uuid
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

import baton.workflow
from baton.plugin import BatonPlugin


class Decision(BaseModel):
    approved: bool
    amount: int
    reason: str


@activity.defn
async def pay(amount: int) -> str:
    return f"paid {amount} EUR"


@workflow.defn
class Claim:
    @workflow.run
    async def run(self, claim: str) -> str:
        decision = await baton.workflow.run_team("claims", claim, output=Decision)
        if not decision.approved:
            return f"rejected: {decision.reason}"
        return await workflow.execute_activity(pay, decision.amount, start_to_close_timeout=timedelta(seconds=10))


async def main() -> None:
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    plugin = BatonPlugin(Path(__file__).parent / "teams")
    async with Worker(client, task_queue="claims", workflows=[Claim], activities=[pay], plugins=[plugin]):
        claim_id = f"claim-{uuid.uuid4().hex[:6]}"
        print(await client.execute_workflow(Claim.run, sys.argv[1], id=claim_id, task_queue="claims"))


if __name__ == "__main__":
    asyncio.run(main())
