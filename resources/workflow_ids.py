"""The rule that the workflow ids of nested runs fit into Temporal's limit."""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from .base import Path, Reference
from .catalog import Catalog
from .query import Query
from .team import Team

MAX_WORKFLOW_ID = 1_000
"""Bytes of a workflow id that Temporal takes. The id of a nested run contains the ids of all runs above it."""

MAX_PLACE = len("/round-1000/synthesizer/")
"""Bytes that stand between the id of a run and the name of the team that runs below it."""

RANDOM_SUFFIX = len("-xxxxxx")
"""Bytes behind the name of a Query or Team in the id of a run that is given none."""


def too_long_ids(catalog: Catalog) -> Iterator[tuple[Query | Team, Path, str]]:
    """The Queries and Teams whose nested runs would have ids that Temporal refuses: the innermost of them alone."""
    owners = {each.id: each for each in catalog.manifests if isinstance(each, Query | Team)}
    nested = {key: [*_nested_teams(owner, catalog)] for key, owner in owners.items()}
    try:
        graph = {key: [team.id for _, team in teams] for key, teams in nested.items()}
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError:
        return  # teams that contain themselves have a rule of their own
    lengths: dict[str, int] = {}
    for key in order:
        owner, below = owners[key], max(((lengths[team.id], ref.path) for ref, team in nested[key]), default=None)
        lengths[key] = len(owner.name) + (MAX_PLACE + below[0] if below else 0)
        if below and lengths[key] + RANDOM_SUFFIX > MAX_WORKFLOW_ID >= below[0] + RANDOM_SUFFIX:
            size = f"{lengths[key] + RANDOM_SUFFIX:,} bytes, and Temporal takes {MAX_WORKFLOW_ID:,}"
            text = f"the innermost team would have a workflow id of {size}: nest fewer teams, or use shorter names"
            yield owner, below[1], text


def _nested_teams(owner: Query | Team, catalog: Catalog) -> Iterator[tuple[Reference, Team]]:
    for reference in (*owner.references, *(catalog.targets(owner) if isinstance(owner, Query) else ())):
        if isinstance(found := catalog.find(reference), Team):
            yield reference, found
