"""Hypothesis strategies for odd texts, values, manifests, model replies and HTTP responses."""

import copy
import json
from typing import Any

import yaml
from hypothesis import strategies as st

from baton.testing import Reply, ScriptedToolCall
from tests.harness.environment import Json, agent, manifest, team
from tests.harness.processes import ROOT
from tests.harness.tool_server import Answer

SAMPLES = [doc for file in sorted((ROOT / "samples").glob("*.yaml")) for doc in yaml.safe_load_all(file.read_text())]
EDGES = {"edges": [{"from": "a", "to": "b", "when": "turn < 3"}]}
ROLES = [{"name": "a", "role": "r", "stance": "s"}, {"name": "f", "type": "activity"}]
RARE = [
    team("graph", "a", "b", strategy="graph", graph=EDGES, maxTurns=3, noProgress={"window": 3}),
    manifest("Team", "debate", {"strategy": "debate", "members": ROLES, "maxRounds": 2, "judge": {"name": "j"}}),
    agent("a", "order", outputSchema={"type": "object"}, parameters=[{"name": "p", "value": "{{x}}"}]),
    manifest("Tool", "order", {"type": "http", "http": {"url": "http://127.0.0.1/{{.id}}", "timeout": "1s"}}),
]
"""Manifests with rare features. Odd manifests are made from these and the samples, by a few changes."""

TEXTS = st.text(st.characters(), max_size=40)  # lone surrogates, too, which JSON can carry
WORDS = st.sampled_from(["", "a", "0", "-1", "1e999", "{{.x}}", "{{x", "\x00", "\ud800", "None", "../..", "x" * 5_000])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | WORDS
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | WORDS, inner, max_size=3), max_leaves=8
)


@st.composite
def manifests(draw: st.DrawFn) -> Json:
    """A manifest with one to three parts removed, duplicated or replaced by an odd value."""
    document: Json = copy.deepcopy(draw(st.sampled_from([*SAMPLES, *RARE])))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(_places(document)))
        holder, key = place
        change = draw(st.sampled_from(("replace", "remove", "add")))
        if change == "replace":
            holder[key] = draw(VALUES)
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, dict):
            holder[draw(TEXTS | WORDS)] = draw(VALUES)
        else:
            holder.append(copy.deepcopy(holder[key]))
        if not document:
            break
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All containers in a value, with each of their keys or indices."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


PARAMETERS = st.sampled_from(("id", "expression", "message", "response", "text"))
ARGUMENTS = TEXTS | WORDS | VALUES.map(json.dumps) | st.dictionaries(PARAMETERS, VALUES).map(json.dumps)
TOOLS = st.sampled_from(("calculator", "noop", "terminate", "order", "format-text", "unknown")) | TEXTS
CALLS = st.builds(ScriptedToolCall, name=TOOLS, arguments=ARGUMENTS, id=st.none() | TEXTS | WORDS)
_CHUNK: Json = {
    "id": "x",
    "model": "m",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@st.composite
def chunks(draw: st.DrawFn) -> str:
    """A stream of chunks with one part replaced by an odd value."""
    chunk = copy.deepcopy(_CHUNK)
    holder, key = draw(st.sampled_from(_places(chunk)))
    holder[key] = draw(VALUES)
    return f"data: {json.dumps(chunk)}\n\n" * draw(st.integers(1, 2)) + draw(st.sampled_from(("", "data: [DONE]\n\n")))


REPLIES = st.one_of(
    st.builds(Reply, text=TEXTS, calls=st.lists(CALLS, max_size=3)),
    st.builds(Reply, raw=chunks() | st.text(max_size=60)),
    st.builds(Reply, status=st.sampled_from((400, 401, 404, 422)), text=TEXTS, code=st.none() | st.text()),
)
HEADERS = st.sampled_from(("content-type", "retry-after", "location", "content-encoding", "content-length", "x"))
STATUSES = st.sampled_from((200, 200, 201, 204, 301, 302, 304, 400, 404, 418))
LATIN = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)
RESPONSES = st.builds(Answer, st.binary(max_size=200), STATUSES, st.dictionaries(HEADERS, LATIN, max_size=2))
