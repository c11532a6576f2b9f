"""Runs a team with pydantic-ai in a workflow of DBOS on PostgreSQL."""

import asyncio

from common import read_params, timed
from dbos import DBOS, SetWorkflowID
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai_members import discuss, members

PARAMS = read_params()
DBOS(config={"name": "team", "system_database_url": PARAMS.postgres, "log_level": "ERROR"})
AGENTS = members(PARAMS, DBOSDurability)


@DBOS.workflow()
async def team(turns: int) -> int:
    """The members speak in turn."""
    return await discuss(AGENTS, turns)


async def play(run: str) -> object:
    """Runs a team to its end."""
    with SetWorkflowID(run):
        handle = await DBOS.start_workflow_async(team, PARAMS.turns)
    return await handle.get_result()


async def main() -> None:
    DBOS.launch()
    await timed(PARAMS.ids, play)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
