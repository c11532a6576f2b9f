"""What bounds a run: the teams that nothing would end for sure, and the default that ends them."""

from collections.abc import Iterator

from .catalog import Catalog, Resource
from .query import Query
from .team import Team

DEFAULT_MAX_TURNS = 100
"""Turns of its members after which a team ends that nothing else bounds."""

UNBOUNDED = f"is missing, and nothing else bounds the run for sure: it ends after {DEFAULT_MAX_TURNS} turns"
"""What users are told about such a team."""


def default_max_turns(team: Team) -> int:
    """The default in the unit in which the team's ``maxTurns`` counts: turns, or rounds of all members."""
    counts_rounds = team.spec.rules.turn_unit == "round"
    return max(1, DEFAULT_MAX_TURNS // len(team.spec.members)) if counts_rounds else DEFAULT_MAX_TURNS


def unbounded_teams(catalog: Catalog) -> Iterator[Team]:
    """The teams that may go on for ever: without ``maxTurns``, and in a run that no timeout or budget bounds.

    A run begins with what no other manifest refers to.
    """
    referred = {found.id for each in catalog.manifests for found in below(each, catalog)}
    waiting: list[Resource] = [each for each in catalog.manifests if each.id not in referred]
    reached = set[str]()
    while waiting:
        manifest = waiting.pop()
        if manifest.id in reached or _is_bounded(manifest):
            continue
        reached.add(manifest.id)
        waiting.extend(below(manifest, catalog))
        if isinstance(manifest, Team) and manifest.spec.max_turns is None and manifest.spec.is_endless:
            yield manifest


def _is_bounded(manifest: Resource) -> bool:
    """Whether a manifest bounds all that is done below it."""
    if manifest.budget and manifest.budget.ends_runs:
        return True
    return isinstance(manifest, Query) and manifest.spec.timeout is not None


def below(manifest: Resource, catalog: Catalog) -> Iterator[Resource]:
    """What a manifest refers to."""
    selected = catalog.targets(manifest) if isinstance(manifest, Query) else ()
    found = (catalog.find(reference) for reference in (*manifest.references, *selected))
    return (each for each in found if each)
