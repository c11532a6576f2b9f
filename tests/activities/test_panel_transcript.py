"""The input of a panel's speakers: composing it from a long transcript does not hold up a worker's event loop."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from temporalio.testing import ActivityEnvironment

from baton.activities.context.value_resolver import ValueResolver
from baton.activities.panel import SpeakerContext, default_agent_id, find_speaker
from baton.activities.runtime.functions import FunctionRegistry
from baton.activities.runtime.secrets import SecretStore
from baton.contracts.message import Message
from baton.contracts.panel import SpeakerBrief
from baton.journal.rows import Row
from baton.resources.agent import Agent
from baton.resources.documents import Document
from baton.resources.loader import load_documents
from baton.resources.run_catalog import RunCatalog
from baton.resources.secret import Secrets
from baton.resources.team import Team
from tests.harness.environment import Json
from tests.harness.event_loop import watched_loop
from tests.harness.large_teams import long_panel
from tests.harness.panels import debate

ROUNDS = 3_000
"""With 40 members, a transcript whose composition takes about half a second."""


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    """A collection of all objects of the tests would take longer than what is measured."""
    gc.disable()
    yield
    gc.enable()


@dataclass(frozen=True)
class Discussion:
    """A conversation of a team, in which all members have spoken in so many rounds."""

    team: Team
    values: ValueResolver
    rows: list[Row]
    rounds: int

    @classmethod
    def of(cls, team_manifest: Json, rounds: int) -> "Discussion":
        """The conversation of the team of a manifest."""
        catalog = load_documents([Document("team.yaml", team_manifest, {})]).catalog
        (team,) = (each for each in catalog.manifests if isinstance(each, Team))
        spoken = [
            Message(role="assistant", name=name, content=f"{name} in {number}", part="contribution", round=number)
            for number in range(1, rounds + 1)
            for name in (member.name_in_team for member in team.spec.members)
        ]
        messages = [Message(role="user", content="Why?"), *spoken]
        rows = [Row(str(depth), str(depth - 1), depth, message) for depth, message in enumerate(messages, start=1)]
        values = ValueResolver(RunCatalog.of_files(catalog), SecretStore(Secrets(), {}))
        return cls(team=team, values=values, rows=rows, rounds=rounds)

    async def prompt(self) -> str:
        """The user message for the first member."""
        speaker_id = default_agent_id(self.team, "member", self.team.spec.members[0].name_in_team)
        speaker = find_speaker(self.values.catalog, speaker_id)
        assert isinstance(speaker, Agent)
        brief = SpeakerBrief(team=self.team.id, member_index=0, round=self.rounds, begun=1)
        context = SpeakerContext(brief, self.values, self.rows, self.rows[0].id)
        functions = FunctionRegistry([], max_concurrent=1)
        messages = await ActivityEnvironment().run(context.messages, speaker, speaker_id, functions)
        return messages[-1].content


@pytest.mark.full
async def test_a_long_transcript_is_composed_beside_the_event_loop() -> None:
    (team,) = long_panel(40, ROUNDS)
    discussion = Discussion.of(team, ROUNDS)
    async with watched_loop() as waits:
        prompt = await discussion.prompt()
    assert prompt.count("\ns39: s39 in") == ROUNDS
    assert waits.held < waits.used / 2


async def test_arguments_of_a_debate_have_the_stances_of_their_speakers() -> None:
    debaters = {"name": "a", "stance": "for"}, {"name": "b", "stance": "against"}
    discussion = Discussion.of(debate(*debaters, maxRounds=3), 2)
    assert "## Round 2\n[for]: a in 2\n[against]: b in 2" in await discussion.prompt()
