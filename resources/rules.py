"""Do the manifests fit together? Rules that no single manifest can check, and what isn't carried out yet."""

from collections.abc import Iterator
from typing import NamedTuple

from resources.agent import Agent
from resources.base import NotYet, Path, Reference, walk
from resources.catalog import Catalog
from resources.config_map import ConfigMap
from resources.manifest import Manifest
from resources.problems import dotted
from resources.secrecy import Secrets
from resources.team import Team
from resources.values import sources


class Violation(NamedTuple):
    """A rule that a manifest breaks, and where."""

    manifest: Manifest
    path: Path
    text: str


def violations(catalog: Catalog) -> Iterator[Violation]:
    """What no run may be started with (seed 000, MaxTurns Protection; seed 001)."""
    teams = [manifest for manifest in catalog.manifests if isinstance(manifest, Team)]
    seen: set[str] = set()
    for team in teams:
        yield from _contains_itself(team, catalog, seen)
        yield from _never_ends(team, catalog)


def _contains_itself(start: Team, catalog: Catalog, seen: set[str]) -> Iterator[Violation]:
    """Goes down from ``start``, to each team once in all, and finds the members that lead back to the way there."""
    way: dict[str, tuple[Team, Iterator[Reference]]] = {}
    if start.id not in seen:
        way[start.id] = (start, start.members())
    while way:
        team, references = next(reversed(way.values()))
        seen.add(team.id)
        reference = next(references, None)
        member = catalog.find(reference) if reference else None
        if reference is None:
            way.pop(team.id)
        elif isinstance(member, Team) and member.id in way:
            circle = [each.name for each, _ in way.values()][[*way].index(member.id) :]
            text = f"the team contains itself ({' → '.join((*circle, member.name))}): take one of them out"
            yield Violation(team, reference.path, text)
        elif isinstance(member, Team) and member.id not in seen:
            way[member.id] = (member, member.members())


def _never_ends(team: Team, catalog: Catalog) -> Iterator[Violation]:
    if team.spec.max_turns is not None or not team.may_go_on_for_ever:
        return
    members = [catalog.find(reference) for reference in team.members()]
    if all(members) and not any(isinstance(member, Agent) and member.can_terminate for member in members):
        unit = "rounds" if team.spec.strategy == "round-robin" else "turns"
        yield Violation(
            team,
            ("spec", "maxTurns"),
            "is missing, and no member agent can terminate: the team would never end; "
            f"set maxTurns (1 or more {unit}) or give a member the built-in tool 'terminate'",
        )


def missing_keys(catalog: Catalog, secrets: Secrets) -> Iterator[Violation]:
    """References to a key that a Secret or a ConfigMap among the files doesn't have."""
    for manifest in catalog.manifests:
        for path, source in sources(manifest):
            for field, kind, ref in source.needs():
                known = _keys(kind, manifest.namespace, ref.name, catalog, secrets)
                if known is not None and ref.key not in known and not ref.optional:
                    keys = ", ".join(sorted(known)) or "none"
                    text = f"{kind} '{ref.name}' has no key '{ref.key}'; its keys: {keys}"
                    yield Violation(manifest, (*path, "valueFrom", field, "key"), text)


def _keys(kind: str, namespace: str, name: str, catalog: Catalog, secrets: Secrets) -> set[str] | None:
    if kind == "Secret":
        secret = secrets.get(namespace, name)
        return {*secret.data, *secret.string_data} if secret else None
    found = catalog.get(kind, namespace, name)
    return {*found.data} if isinstance(found, ConfigMap) else None


def not_carried_out(manifest: Manifest) -> Iterator[Violation]:
    """The fields of a manifest that are valid but that no run carries out yet."""
    for path, value in _marked(manifest):
        what = f"'{value}'" if isinstance(value, str) else dotted(path).rpartition(".")[2]
        yield Violation(manifest, path, f"{what} is valid but not carried out yet: take it out to run this")


def _marked(manifest: Manifest) -> Iterator[tuple[Path, object]]:
    for path, item in walk(manifest):
        for name in sorted(item.model_fields_set):
            field, value = type(item).model_fields[name], getattr(item, name)
            for mark in (mark for mark in field.metadata if isinstance(mark, NotYet)):
                if value not in (None, False, (), {}) and (not mark.values or value in mark.values):
                    yield (*path, field.alias or name), value if mark.values else None
