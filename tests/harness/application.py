"""The process of an application: its worker, with the plugin."""

import asyncio
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from baton.plugin import BatonPlugin
from tests.harness.claims import Claim, Control, Question, Untyped, pay


async def serve(address: str, queue: str, manifests: Path, settings: dict[str, str]) -> None:
    """Runs the application's worker until its process ends."""
    client = await Client.connect(address)
    plugin = BatonPlugin(manifests, settings=settings)
    await Worker(
        client, task_queue=queue, workflows=[Claim, Question, Untyped, Control], activities=[pay], plugins=[plugin]
    ).run()


def serve_in_process(address: str, queue: str, manifests: Path, settings: dict[str, str]) -> None:
    """The same, as the main function of a process."""
    asyncio.run(serve(address, queue, manifests, settings))
