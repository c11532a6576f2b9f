"""Workflow code that is not deterministic, although the history ``example/before_patch.json`` fits it."""

import random
import time
from datetime import timedelta

from temporalio import workflow


@workflow.defn(name="reminder")
class ReadsClock:
    """Reads the clock."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Calls what a replay has to refuse; then the history's commands."""
        time.time()
        return await remind(text)


@workflow.defn(name="reminder")
class DrawsNumber:
    """Draws a random number."""

    @workflow.run
    async def run(self, text: str) -> str:
        """Calls what a replay has to refuse; then the history's commands."""
        random.random()
        return await remind(text)


async def remind(text: str) -> str:
    """Sleeps and sets the memo, as the history does."""
    await workflow.sleep(timedelta(milliseconds=10))
    workflow.upsert_memo({"text": text})
    return text
