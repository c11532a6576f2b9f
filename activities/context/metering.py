"""Charges a call to the budgets that it is under: an estimate before it, and what it has used after it."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from pydantic.alias_generators import to_camel

from ...contracts.errors import BatonError, BudgetExceeded, BudgetReached
from ...contracts.message import Message, TokenUsage
from ...contracts.text import BYTES_PER_TOKEN
from ...contracts.turn import Thread
from ...journal.accounts import AMOUNTS, Account, Accounts, Amount, ReachedLimit
from ...journal.journal import Journal
from ...resources.agent import Agent
from ...resources.budget import NANO, Budget
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


class Meter:
    """Charges one call, under its id, to the accounts of the budgets above it. Where there are none, it does nothing.

    ``speaker`` is the id of the manifest that makes the call.
    """

    def __init__(self, journal: Journal, thread: Thread, speaker: str, catalog: Catalog, call: str) -> None:
        self._accounts = Accounts(journal.database)
        self._call = call
        self._budgets: dict[Account, tuple[str, Budget]] = {}
        for owner in dict.fromkeys((*(thread.budgets or ()), speaker)) if thread.account else ():
            manifest = catalog.by_id(owner)
            if manifest and (budget := manifest.budget):
                self._budgets[_account(f"{thread.account}", owner, budget)] = owner, budget

    @contextlib.asynccontextmanager
    async def reserved(self, estimate: Amount) -> AsyncIterator[None]:
        """Charges the estimate of a call, which is made in the block; takes it back if the call fails.

        A call that is given up stays charged: what it has used is not known. Raises BudgetExceeded.
        """
        await self.charge(estimate)
        try:
            yield
        except BatonError:
            await self._settle(None)
            raise

    async def charge(self, amount: Amount) -> None:
        """Charges a call whose amount is known, or estimated. Raises BudgetExceeded if it would exceed a budget."""
        refused = await self._accounts.reserve(self._call, [*self._budgets], amount) if self._budgets else None
        if refused:
            owner, budget = self._budgets[refused.account]
            asks = budget.on_exceeded == "ask"
            reached = BudgetReached(
                owner=owner,
                limit=to_camel(refused.limit),
                on_exceeded=budget.on_exceeded,
                account=refused.account.id if asks else None,
                grants=refused.grants if asks else None,
                more=budget if asks else None,
            )
            raise BudgetExceeded(
                _text(reached, refused), reached.model_dump(mode="json", by_alias=True, exclude_none=True)
            )

    async def settle(self, usage: TokenUsage | None) -> None:
        """Replaces the estimate of a model's call by what it has used; keeps the estimate if nobody has counted it."""
        if usage:
            cost = round((usage.cost or 0) * NANO)
            await self._settle(Amount(tokens=usage.total_tokens, cost=cost, model_calls=1))

    async def _settle(self, amount: Amount | None) -> None:
        if self._budgets:
            await self._accounts.settle(self._call, [*self._budgets], amount)


def estimate(messages: Iterable[Message], tools: Sequence[object], model: ChainedModel | None) -> Amount:
    """What an answer to messages, with these definitions of tools, may use, as far as that is known before.

    The tokens of the answer are the most that the Model allows, if its manifest says that.
    """
    prompt = (sum(each.byte_size for each in messages) + len(f"{tools}")) // BYTES_PER_TOKEN
    manifest = model.manifest if model else None
    answer = (manifest and manifest.max_output_tokens) or 0
    price = manifest.spec.pricing if manifest else None
    return Amount(prompt + answer, price.cost(prompt, answer) if price else 0, model_calls=1)


def with_cost(message: Message, model: Model | None) -> Message:
    """A model's answer with what it has cost, if the price of the model is known."""
    usage = message.usage
    price = model.spec.pricing if model else None
    if usage is None or price is None:
        return message
    cost = price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) / NANO
    return message.with_usage(usage.with_cost(cost))


def _account(run: str, owner: str, budget: Budget) -> Account:
    """The account of a budget in a run."""
    limits = {name: limit for name in AMOUNTS if (limit := getattr(budget, name)) is not None}
    if budget.cost is not None:
        limits["cost"] = round(budget.cost * NANO)
    digest = hashlib.sha256(owner.encode()).hexdigest()[:32]
    return Account(f"{run}/{digest}", tuple(limits.items()), budget.seconds)


def _text(reached: BudgetReached, refused: ReachedLimit) -> str:
    """Why a call was not begun."""
    if reached.limit == "duration":
        seconds = refused.account.seconds
        return f"the budget of {reached.owner} is used up: its first call was more than {seconds:g} s ago"
    used = f"{refused.used}"
    most = f"{refused.most}"
    if reached.limit == "cost":
        used = f"{refused.used / NANO:g}"
        most = f"{refused.most / NANO:g}"
    return (
        f"the budget of {reached.owner} does not suffice for the next call: {used} of {most} {reached.limit} are used"
    )
