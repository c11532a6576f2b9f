"""Measures a question to one agent, beside other systems: many at once, and one after the other.

python -m benchmarks.single [--rounds 5] [--peers FOLDER] [--postgres]

The model answers after 50 ms, with 1,000 characters. The *baseline* is a workflow with one activity that is as durable
as Baton, the *lean* one is as fast as can be. A query of Baton brings its agent, or asks one that the worker knows, as
the others do, whose model answers with a stream or, as for the others, as a whole. All are measured alternately on one
server; what counts is the ratio of each round.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from baton.resources.loader import Loaded, load_files
from benchmarks.baseline import Baseline
from benchmarks.environment import Baton, BenchmarkEnvironment, agent, versions, whole_model, write
from benchmarks.overhead import SIZE, Duration, Play, Row, here, pairs, playing, rows
from benchmarks.peers_runner import ALL
from tests.harness.postgres import PostgresServer

AT_ONCE, IN_TURN = 300, 30
"""Questions at once, and one after the other."""

DELAY = 0.05


def in_turn(ask: Callable[[int, int], Awaitable[object]]) -> Play:
    """Asks the questions one after the other."""

    async def ask_all(questions: int, turns: int) -> Duration:
        began, busy = time.perf_counter(), time.process_time()
        for _ in range(questions):
            await ask(turns, SIZE)
        return Duration(time.perf_counter() - began, time.process_time() - busy)

    return ask_all


def known(env: BenchmarkEnvironment) -> Loaded:
    """The manifests of the worker: an agent whose model streams, and one whose model does not."""
    manifests = [agent("streamed", SIZE), agent("whole", SIZE, "whole"), whole_model("whole", env.model, SIZE)]
    file = env.folder / "manifests.json"
    file.write_text(json.dumps({"kind": "List", "items": manifests}))
    return load_files([file])


async def measure(rounds: int, peers: Path | None, *, postgres: bool) -> Row:
    """All rows."""
    async with contextlib.AsyncExitStack() as stack:
        env = await stack.enter_async_context(BenchmarkEnvironment.running(DELAY))
        server = stack.enter_context(PostgresServer.running(fsync=True)) if postgres else None
        journal = {"BATON_JOURNAL_URL": await server.database()} if server else {}
        baton = await stack.enter_async_context(Baton.running(env, known(env), **journal))
        where = env.address, env.folder, env.model
        durable = await stack.enter_async_context(Baseline.running(*where))
        lean = await stack.enter_async_context(Baseline.running(*where, lean=True))
        asks = {"baseline": durable.run_team, "lean": lean.run_team}
        asks |= {"Baton, query": baton.ask, "Baton, agent": baton.run_agent}
        asks["Baton, query to a known agent"] = lambda *_: baton.ask_agent("streamed")
        asks["… without a stream"] = lambda *_: baton.ask_agent("whole")
        at_once, found = {name: here(ask) for name, ask in asks.items()}, versions()
        for peer in ALL[:2] if peers else ():
            assert peers
            found |= peer.versions(peers)
            at_once[peer.name] = playing(peer, env, peers)
        many = await pairs(at_once, AT_ONCE, 1, rounds)
        single = await pairs({name: in_turn(ask) for name, ask in asks.items()}, IN_TURN, 1, rounds)
    measured = rows(f"{AT_ONCE} at once", many, AT_ONCE) + rows("one after the other", single, IN_TURN)
    return {"versions": found, "rows": measured}


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--peers", type=Path, help="the folder of the virtual environments of other systems")
    parser.add_argument("--postgres", action="store_true", help="keep Baton's journal in a PostgreSQL of its own")
    given = parser.parse_args()
    result = asyncio.run(measure(given.rounds, given.peers, postgres=given.postgres))
    print(json.dumps(result, indent=1))
    write("single" + ("-peers" if given.peers else "") + ("-postgres" if given.postgres else ""), result)


if __name__ == "__main__":
    main()
