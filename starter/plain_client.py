"""A client that uses only Temporal's SDK, names and JSON, and could be written in any language."""

import asyncio
import atexit
import os
import time

from temporalio.client import Client


async def main() -> None:
    """Starts, queries, terminates and cancels runs of the resources that the worker was started with."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    team = {"team": "brainstorming-team", "input": "How do we greet new users?"}
    handle = await client.start_workflow("round-robin", team, id="my-run", task_queue="baton")
    print(await handle.query("status"))
    await handle.signal("terminate_team", {"reason": "enough for today"})
    print(await handle.result())
    query = {"spec": {"input": "How do we part?", "targets": [{"type": "team", "name": "brainstorming-team"}]}}
    query_handle = await client.start_workflow("query", query, id="my-query", task_queue="baton")
    await query_handle.cancel()


if __name__ == "__main__":
    atexit.register(time.sleep, 0.05)  # the SDK's threads must release the interpreter before it ends
    asyncio.run(main())
