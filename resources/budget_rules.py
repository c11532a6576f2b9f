"""Rules of budgets: one of a cost needs the prices of all models below it."""

from collections.abc import Iterator

from .agent import Agent
from .bounds import below
from .catalog import Catalog, Resource
from .model import Model


def unknown_costs(catalog: Catalog) -> Iterator[tuple[Resource, str]]:
    """The manifests with a budget of a cost that can't be kept, and why."""
    for owner in catalog.manifests:
        if owner.budget and owner.budget.cost is not None:
            for name in sorted(_without_price(owner, catalog)):
                yield owner, f"the cost of {name} is not known: give that Model a pricing"


def _without_price(owner: Resource, catalog: Catalog) -> set[str]:
    """The models that may be asked below a manifest and have no price."""
    waiting, seen, found = [owner], set[str](), set[str]()
    while waiting:
        manifest = waiting.pop()
        if manifest.id in seen:
            continue
        seen.add(manifest.id)
        waiting.extend(below(manifest, catalog))
        if isinstance(manifest, Model):
            found.update({manifest.id} if manifest.spec.pricing is None else ())
        elif not (isinstance(manifest, Agent) and manifest.is_remote):
            asked = (each for each in manifest.references if each.kinds == ("Model",))
            found.update(str(each) for each in asked if not catalog.find(each))
    return found
