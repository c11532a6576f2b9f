"""What does a program see of Baton? Everything here: constructors, runs, and the shapes of what comes of them.

import asyncio
import baton

panel = baton.round_robin(
    name="editorial-review",
    roster=[
        {"name": "writer", "role": "the writer of the draft"},
        {"name": "fact-checker", "role": "a fact-checker who verifies every claim"},
    ],
    max_rounds=2,
)
print(asyncio.run(baton.run(panel, input="A paragraph on tides")).message)
"""

from activities.functions import function
from conversation.panel import (
    Briefing,
    Contribution,
    Critique,
    DebateShape,
    Decision,
    PanelInput,
    PanelShape,
    PanelState,
    RefereeOutput,
    Verdict,
)
from conversation.status import Status
from conversation.wire import ConnectionFailed
from resources.problems import ManifestError
from starter.constructors import Agent, Model, Query
from starter.handle import Handle, Refused, Result, RunFailed
from starter.hearing import Heard
from starter.local import UnreachableError
from starter.made import Manifest
from starter.patterns import debate, referee, roster_agent, round_robin, synthesizer
from starter.public import Connection, attach, connect, contributions, run, start
from starter.runs import NoSuchRunError
from starter.teams import Member, Team

__all__ = [
    "Agent",
    "Briefing",
    "Connection",
    "ConnectionFailed",
    "Contribution",
    "Critique",
    "DebateShape",
    "Decision",
    "Handle",
    "Heard",
    "Manifest",
    "ManifestError",
    "Member",
    "Model",
    "NoSuchRunError",
    "PanelInput",
    "PanelShape",
    "PanelState",
    "Query",
    "RefereeOutput",
    "Refused",
    "Result",
    "RunFailed",
    "Status",
    "Team",
    "UnreachableError",
    "Verdict",
    "attach",
    "connect",
    "contributions",
    "debate",
    "function",
    "referee",
    "roster_agent",
    "round_robin",
    "run",
    "start",
    "synthesizer",
]
