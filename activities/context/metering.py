"""The models of a speaker, the estimated usage of a call, and the charge to its budgets."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from cachetools import LRUCache
from pydantic.alias_generators import to_camel

from ...contracts.errors import BudgetExceeded, BudgetReached
from ...contracts.message import Message, TokenUsage
from ...contracts.text import BYTES_PER_TOKEN
from ...contracts.turn import Thread
from ...journal.accounts import AMOUNTS, Account, Amount, Charge, ReachedLimit
from ...resources.agent import Agent
from ...resources.budget import NANO, Budget
from ...resources.catalog import Catalog, Resource
from ...resources.model import Model
from ...resources.model_settings import ModelSettings
from ...resources.team import Team
from ...temporal.threads import COMPUTING
from .lookup import find, find_optional

TIMEOUT = 290.0
"""Default seconds for one answer: a little less than the timeout of its activity."""


class ChainedModel(NamedTuple):
    """One model of a chain. Without a manifest, ``name`` is a model of the server in the environment variables.

    ``settings_of_agent`` take precedence over those of the Model.
    """

    manifest: Model | None
    name: str
    settings_of_agent: ModelSettings = ModelSettings()

    @property
    def settings(self) -> ModelSettings:
        """The settings of its calls."""
        return self.settings_of_agent.or_those_of(self.manifest.spec) if self.manifest else self.settings_of_agent

    @property
    def without_agent(self) -> "ChainedModel":
        """The model with its own settings only, for calls that are not a turn of the agent."""
        return self._replace(settings_of_agent=ModelSettings())

    @property
    def max_output_tokens(self) -> int:
        """The maximum tokens of an answer; 0 if neither the agent nor the Model limits it."""
        own = self.manifest.max_output_tokens if self.manifest else None
        return self.settings_of_agent.max_tokens or own or 0

    @property
    def timeout(self) -> float:
        """The seconds that one answer may take."""
        return (self.manifest and self.manifest.timeout) or TIMEOUT

    @property
    def streams(self) -> bool:
        """Whether answers are requested as streams."""
        return self.manifest is None or self.manifest.spec.stream


def model_chain(speaker: Agent | Model, catalog: Catalog) -> list[ChainedModel]:
    """The models of an agent, or of a Model that is called directly. There is at least one."""
    if isinstance(speaker, Model):
        return _with_fallbacks(speaker, catalog)
    reference = speaker.model_reference()
    chain = _with_fallbacks(find_optional(catalog, reference), catalog) or [ChainedModel(None, reference.name)]
    return [model._replace(settings_of_agent=speaker.spec) for model in chain]


def selector_model_chain(team: Team, catalog: Catalog) -> list[ChainedModel]:
    """The models that select a team's next speaker: those of its selector's agent or model."""
    reference = team.selector_reference()
    selector = find_optional(catalog, reference)
    if isinstance(selector, Agent | Model):
        return model_chain(selector, catalog)
    return [ChainedModel(None, reference.name)]


def longest_timeout(chain: Sequence[ChainedModel]) -> float | None:
    """The longest timeout of a chain's models, in seconds; None if no Model has a timeout."""
    return max((model.timeout for model in chain if model.manifest and model.manifest.timeout), default=None)


def _with_fallbacks(model: Resource | None, catalog: Catalog) -> list[ChainedModel]:
    """A model and its fallbacks; a chain ends before a model that it already contains."""
    chain: list[Model] = []
    while isinstance(model, Model) and model not in chain:
        chain.append(model)
        fallback = model.fallback_reference()
        model = find(catalog, fallback) if fallback else None
    return [ChainedModel(manifest, manifest.name) for manifest in chain]


class NamedTool(Protocol):
    """A tool definition as a model receives it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


_TOOL_SIZES: LRUCache[tuple[str, str, tuple[str, ...]], int] = LRUCache(1_000)
"""The characters of tool definitions, by their catalog, the agent and their names."""


class Meter:
    """The accounts of all budgets that apply to the calls of ``speaker``, the id of a manifest."""

    def __init__(self, thread: Thread, speaker: str, catalog: Catalog) -> None:
        self._catalog = thread.catalog
        self._speaker = speaker
        self._budgets: dict[Account, tuple[str, Budget]] = {}
        for owner in dict.fromkeys((*(thread.budgets or ()), speaker)) if thread.account else ():
            manifest = catalog.by_id(owner)
            if manifest and (budget := manifest.budget):
                self._budgets[_account(f"{thread.account}", owner, budget)] = owner, budget

    async def model_charge(
        self, messages: Iterable[Message], tools: Sequence[NamedTool], model: ChainedModel | None
    ) -> Charge | None:
        """The charge of a model call by its estimate, which refuses it with BudgetExceeded; None without budgets.

        Hundreds of tools take a quarter of a second to measure: only a budget needs that, once for a catalog.
        """
        if not self._budgets:
            return None
        key = self._catalog, self._speaker, tuple(tool.name for tool in tools)
        size = _TOOL_SIZES.get(key) if tools else 0
        if size is None:
            size = _TOOL_SIZES[key] = await COMPUTING.run(lambda: len(f"{tools}"))
        return self.charge(estimate(messages, size, model))

    def charge(self, amount: Amount, *, per_sending: bool = True) -> Charge | None:
        """The charge of a call, which is refused with BudgetExceeded; None without budgets."""
        if not self._budgets:
            return None
        return Charge(tuple(self._budgets), amount, self._refusal, per_sending=per_sending)

    def _refusal(self, reached_limit: ReachedLimit) -> BudgetExceeded:
        owner, budget = self._budgets[reached_limit.account]
        asks = budget.on_exceeded == "ask"
        reached = BudgetReached(
            owner=owner,
            limit=to_camel(reached_limit.limit),
            on_exceeded=budget.on_exceeded,
            account=reached_limit.account.id if asks else None,
            grants=reached_limit.grants if asks else None,
            more=budget if asks else None,
        )
        return BudgetExceeded(
            _text(reached, reached_limit), reached.model_dump(mode="json", by_alias=True, exclude_none=True)
        )


def estimate(messages: Iterable[Message], tools: int, model: ChainedModel | None) -> Amount:
    """The estimated amount of a model call with these messages, and tool definitions of so many characters.

    The tokens of the answer are its maximum, or 0 if neither the agent nor the Model sets one.
    """
    prompt = (sum(message.byte_size for message in messages) + tools) // BYTES_PER_TOKEN
    manifest = model.manifest if model else None
    answer = model.max_output_tokens if model else 0
    price = manifest.spec.pricing if manifest else None
    return Amount(prompt + answer, price.cost(prompt, answer) if price else 0, model_calls=1)


def with_cost(usage: TokenUsage | None, model: Model | None) -> TokenUsage | None:
    """The usage of a model call with its cost, if the Model has a price."""
    price = model.spec.pricing if model else None
    if usage is None or price is None:
        return usage
    return usage.with_cost(price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) / NANO)


def _account(run: str, owner: str, budget: Budget) -> Account:
    """The account of a budget in a run."""
    limits = {name: limit for name in AMOUNTS if (limit := getattr(budget, name)) is not None}
    if budget.cost is not None:
        limits["cost"] = round(budget.cost * NANO)
    digest = hashlib.sha256(owner.encode()).hexdigest()[:32]
    return Account(f"{run}/{digest}", tuple(limits.items()), budget.seconds)


def _text(reached: BudgetReached, reached_limit: ReachedLimit) -> str:
    """The error message of a call that exceeds a budget."""
    if reached.limit == "duration":
        seconds = reached_limit.account.seconds
        return f"the budget of {reached.owner} is exhausted: its first call was more than {seconds:g} s ago"
    used = f"{reached_limit.used}"
    most = f"{reached_limit.most}"
    if reached.limit == "cost":
        used = f"{reached_limit.used / NANO:g}"
        most = f"{reached_limit.most / NANO:g}"
    return f"the budget of {reached.owner} is too low for the next call: {used} of {most} {reached.limit} are used"
