"""Kills all that the gateway needs under clients of each protocol: ``python -m benchmarks.gateway_kills``.

Options are ``--clients`` (of each protocol), ``--seconds``, ``--words`` (of each answer), ``--pause`` (ms between two
pieces of an answer), ``--seed``, ``--patience``: the seconds after which a client counts as stuck. Many clients on
a small machine need more of the last two. Two gateways are behind a proxy that sends each connection to the next one,
whether or not it is alive. Gateways, the worker, the Temporal server and PostgreSQL are killed in random order. Each
client asks one question after the other.
"""

import asyncio
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from baton.testing import Reply, Request, ScriptedToolCall
from tests.chaos.report import Report, arguments
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.gateway_clients import CLIENTS, Asked, approve_with_lost_responses
from tests.harness.killable_gateways import KillableGateways
from tests.harness.tool_server import Answer, ToolServer

TARGET = "team/relay"
SPEAKERS = ("one", "two")
PAUSE = 0.2
"""Seconds between two pieces of an answer."""

_WORD = re.compile(r"(q\d+)\.(\w+)\.(\d+)")
_QUESTION = re.compile(r"\bquestion (q\d+)\b")


def manifests(shop: str) -> list[Json]:
    """A team whose members speak once, and an agent whose purchases at the address of a ``shop`` need approval."""
    schema: Json = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    http = {"url": f"{shop}/{{item}}", "method": "POST"}
    buy = manifest("Tool", "buy", {"type": "http", "http": http, "inputSchema": schema, "approval": {}})
    speakers = [agent(name) for name in SPEAKERS]
    return [*speakers, team("relay", *SPEAKERS, strategy="sequential"), agent("buyer", "buy"), buy]


def question_of(request: Request) -> str:
    """The question that a request of a model is about."""
    for message in request["messages"]:
        if found := _QUESTION.search(str(message["content"])):
            return found[1]
    raise ValueError("a request without a question")


def text_of(question: str, speaker: str, words: int) -> str:
    """What a speaker says to a question: no word is said anywhere else."""
    return " ".join(f"{question}.{speaker}.{number}" for number in range(words))


@dataclass
class Findings:
    """What was found: ``asked`` counts questions by protocol, ``attempts`` requests and streams.

    ``wrong`` are texts about what is not as it should be.
    """

    asked: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    approved: int = 0
    approval_requests: int = 0
    repeated: int = 0

    def add_wrong(self, text: str) -> None:
        """Adds, and prints, what is not as it should be."""
        print(f"WRONG: {text}", flush=True)
        self.wrong.append(text[:1_000])

    def check_words(self, protocol: str, asked: Asked, question: str, words: int) -> None:
        """Each speaker's words were received once and in order; of what has only the answer, the last one's."""
        texts = {speaker: text_of(question, speaker, words) for speaker in SPEAKERS}
        if asked.answer != texts[SPEAKERS[-1]]:
            self.add_wrong(f"{protocol}: the answer to {question} is {asked.answer!r:.300}")
        if protocol == "MCP tasks":
            return
        heard: dict[str, list[int]] = defaultdict(list)
        for text in asked.heard.values():
            for of, speaker, number in _WORD.findall(text):
                if of != question:
                    self.add_wrong(f"{protocol}: the client of {question} has received words of {of}")
                heard[speaker].append(int(number))
        for speaker in SPEAKERS:
            said = heard[speaker]
            # What comes before the answer of a chat can't be taken back: it may have the beginning of a failed attempt.
            if protocol == "chat completions" and speaker != SPEAKERS[-1]:
                said = said[-words:]
            if said != [*range(words)]:
                self.add_wrong(f"{protocol}: of {speaker} to {question}: {said}")


@dataclass
class Model:
    """The answers of the model, and what was asked of it."""

    words: int
    pause: float

    def answer(self, request: Request) -> Reply:
        """What a speaker says; the buyer asks once to buy what is named like the question."""
        question = question_of(request)
        if "buy" in request.tools:
            if request.tool_results:
                return Reply(text=request.tool_results[0])
            return Reply(calls=[ScriptedToolCall(name="buy", arguments={"item": question})])
        speaker = request.system.split()[2].rstrip(".")
        return Reply(text=text_of(question, speaker, self.words), pause=self.pause)


class GatewayKills:
    """Clients of all protocols that ask while everything dies."""

    def __init__(self, env: KillableGateways, shop: ToolServer, model: Model, patience: float) -> None:
        self.env = env
        self.shop = shop
        self.model = model
        self.patience = patience
        self.findings = Findings()
        self._questions = 0

    async def run(self, clients: int, seconds: float, seed: int) -> None:
        """Has so many clients of each protocol ask for so long, and until their last question is answered."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        killing = asyncio.create_task(self.env.kill_at_random(seconds, seed))
        async with httpx.AsyncClient(base_url=self.env.proxy.url, timeout=120, limits=limits) as http:
            asking = [self._ask(name, http, killing) for name in CLIENTS for _ in range(clients)]
            buying = [self._buy(http, killing) for _ in range(max(1, clients // 2))]
            await asyncio.gather(killing, *asking, *buying)
        self._check_calls()

    def _question(self) -> str:
        self._questions += 1
        return f"q{self._questions}"

    async def _ask(self, protocol: str, http: httpx.AsyncClient, killing: asyncio.Task[None]) -> None:
        found = self.findings
        while not killing.done():
            question = self._question()
            asked = Asked(http, TARGET, f"question {question}")
            began = time.monotonic()
            try:
                async with asyncio.timeout(self.patience):
                    await CLIENTS[protocol](asked)
            except Exception as error:  # whatever it is, the client was not served as it should be
                found.add_wrong(f"{protocol}: {question} ({asked}): {type(error).__name__}: {error}")
            else:
                found.check_words(protocol, asked, question, self.model.words)
            found.asked[protocol] += 1
            found.attempts[protocol] += asked.attempts
            found.seconds[protocol].append(time.monotonic() - began)

    async def _buy(self, http: httpx.AsyncClient, killing: asyncio.Task[None]) -> None:
        found = self.findings
        while not killing.done():
            question = self._question()
            asked = Asked(http, "agent/buyer", f"question {question}")
            try:
                async with asyncio.timeout(self.patience):
                    outcomes = await approve_with_lost_responses(asked)
            except Exception as error:
                found.add_wrong(f"approval: {question} ({asked}): {type(error).__name__}: {error}")
            else:
                bought = [seen.path for seen in self.shop.seen].count(f"/{question}")
                if outcomes != ["approved"] or bought > 1 or (bought == 0 and asked.answer == "sold"):
                    found.add_wrong(f"approval: {question}: {outcomes}, bought {bought} times: {asked.answer}")
            found.approved += 1
            found.approval_requests += asked.attempts

    def _check_calls(self) -> None:
        """A call of the model is made again only if the worker was killed under it, before the answer was stored."""
        seen: Counter[tuple[str, str, int]] = Counter()
        for number, received in enumerate(self.env.model.requests):
            body = received.body
            call = question_of(body), body.system, len(body["messages"])
            seen[call] += 1
            text = self.model.answer(body).text
            if any(text and number >= requests and text in texts for requests, texts in self.env.stored):
                self.findings.add_wrong(f"a call whose answer was stored was made again: {call}")
        self.findings.repeated = sum(count - 1 for count in seen.values())
        kills = self.env.kills["worker"] + self.env.kills["Temporal and worker"]
        if seen and max(seen.values()) > kills + 1:
            self.findings.add_wrong(f"a call was made {max(seen.values())} times with {kills} kills of the worker")


@asynccontextmanager
async def running(folder: Path, words: int, patience: float = 180, pause: float = PAUSE) -> AsyncIterator[GatewayKills]:
    """All that is killed, with the clients, while the block runs; these wait for so many seconds for an answer."""
    shop = ToolServer()
    model = Model(words, pause)
    shop.answers(Answer("sold"))
    with shop.serving():
        async with KillableGateways.running(folder, manifests(shop.url), model.answer) as env:
            yield GatewayKills(env, shop, model, patience)


def rows(findings: Findings, kills: Mapping[str, int]) -> list[Json]:
    """A row for each protocol, and one for approvals."""
    table: list[Json] = []
    for name in CLIENTS:
        seconds = sorted(findings.seconds[name])
        table.append(
            {
                "protocol": name,
                "questions": findings.asked[name],
                "requests and streams": findings.attempts[name],
                "median seconds": round(seconds[len(seconds) // 2], 1) if seconds else None,
                "max seconds": round(seconds[-1], 1) if seconds else None,
                "wrong": sum(text.startswith(f"{name}:") for text in findings.wrong),
            }
        )
    approvals: Json = {"protocol": "approvals", "questions": findings.approved}
    approvals |= {"requests and streams": findings.approval_requests, "median seconds": None, "max seconds": None}
    return [*table, {**approvals, "wrong": sum(text.startswith("approval:") for text in findings.wrong)}]


async def main() -> None:
    """Measures and writes the results."""
    given = arguments(__doc__, clients=8, seconds=180, words=25, seed=2026, patience=180, pause=round(PAUSE * 1_000))
    report = Report("gateway-kills", given)
    with tempfile.TemporaryDirectory(prefix="baton-gateway-kills-") as folder:
        async with running(Path(folder), given["words"], given["patience"], given["pause"] / 1_000) as test:
            await test.run(given["clients"], given["seconds"], given["seed"])
            for row in rows(test.findings, test.env.kills):
                report.row(row)
            if test.findings.wrong:
                print(test.env.logs())
    found = test.findings
    report.write(
        kills=dict(test.env.kills),
        model_calls=len(test.env.model.requests),
        repeated_calls=found.repeated,
        wrong=found.wrong,
    )


if __name__ == "__main__":
    asyncio.run(main())
