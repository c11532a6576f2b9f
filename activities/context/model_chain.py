"""The chain of a speaker's models: the model that it asks first, then the fallbacks in their order."""

from collections.abc import Sequence
from typing import NamedTuple

from ...resources.agent import Agent
from ...resources.catalog import Catalog, Resource
from ...resources.model import Model
from ...resources.team import Team
from .lookup import find, find_optional

TIMEOUT = 290.0
"""Seconds for one answer where the Model says nothing: a little less than its activity has."""


class ChainedModel(NamedTuple):
    """One model of a chain. Without a manifest it is the model called ``name`` on the environment's server."""

    manifest: Model | None
    name: str

    @property
    def timeout(self) -> float:
        """The seconds that one answer may take."""
        return (self.manifest and self.manifest.timeout) or TIMEOUT

    @property
    def streams(self) -> bool:
        """Whether its answers are asked for as streams."""
        return self.manifest is None or self.manifest.spec.stream


def model_chain(speaker: Agent | Model, catalog: Catalog) -> list[ChainedModel]:
    """The models of an agent, or of a Model that is asked by itself. There is always one."""
    if isinstance(speaker, Model):
        return _with_fallbacks(speaker, catalog)
    reference = speaker.model_reference()
    return _with_fallbacks(find_optional(catalog, reference), catalog) or [ChainedModel(None, reference.name)]


def selector_model_chain(team: Team, catalog: Catalog) -> list[ChainedModel]:
    """The models that choose a team's next speaker: those of its selector's agent or model."""
    reference = team.selector_reference()
    found = find_optional(catalog, reference)
    if isinstance(found, Agent | Model):
        return model_chain(found, catalog)
    return [ChainedModel(None, reference.name)]


def longest_timeout(chain: Sequence[ChainedModel]) -> float | None:
    """The seconds that the slowest model of a chain may take for an answer; None where no Model has a timeout."""
    return max((each.timeout for each in chain if each.manifest and each.manifest.timeout), default=None)


def _with_fallbacks(model: Resource | None, catalog: Catalog) -> list[ChainedModel]:
    """A model and its fallbacks; the chain ends where it would come back to a model that is in it."""
    chain: list[Model] = []
    while isinstance(model, Model) and model not in chain:
        chain.append(model)
        fallback = model.fallback_reference()
        model = find(catalog, fallback) if fallback else None
    return [ChainedModel(each, each.name) for each in chain]
