"""For tests of teams, without language models: environments, the scripted model, and fake runs.

    async with baton.testing.environment("teams/", model={"writer": ["A draft."], "editor": edit}) as env:
        result = await env.run("team/review", "Why is the sea salty?")
        assert result.message == "A draft, shortened."

``baton.testing.pytest`` has fixtures for pytest. docs/testing.md describes all of it.
"""

from ..installation import require

require("worker", "baton.testing")

# ruff: noqa: E402  # what the extra has is imported below

from temporalio import workflow

# A module of tests may have workflows of its own: they are loaded in the SDK's sandbox, which refuses much of this.
with workflow.unsafe.imports_passed_through():
    from ..starter.scripted_model import Answer as Answer
    from ..starter.scripted_model import ReceivedRequest as ReceivedRequest
    from ..starter.scripted_model import Reply as Reply
    from ..starter.scripted_model import Request as Request
    from ..starter.scripted_model import Script as Script
    from ..starter.scripted_model import ScriptedModel as ScriptedModel
    from ..starter.scripted_model import ScriptedToolCall as ScriptedToolCall
    from ..starter.scripted_model import ScriptedUsage as ScriptedUsage
    from ..starter.scripted_model import ScriptLine as ScriptLine
    from .environments import Environment as Environment
    from .environments import ModelSource as ModelSource
    from .environments import environment as environment
    from .environments import server as server
    from .fakes import fake_runs as fake_runs
    from .replays import Replay as Replay
    from .replays import block_model_requests as block_model_requests
    from .replays import record as record
    from .replays import replay as replay
