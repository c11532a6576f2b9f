"""The models of a speaker, the estimated usage of a call, and the charge to its budgets and its tenant's Quotas."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from cachetools import LRUCache
from pydantic.alias_generators import to_camel
from temporalio import activity

from ...contracts.errors import BatonError, BudgetExceeded, BudgetReached, QuotaReached
from ...contracts.message import Message, TokenUsage
from ...contracts.text import BYTES_PER_TOKEN
from ...contracts.turn import Thread
from ...journal.accounts import AMOUNTS, Account, Amount, Charge, Reached, ReachedLimit
from ...journal.quotas import KnownRun, QuotaAccount, QuotaWait, ReachedQuota, RunLimit, WaitingRun
from ...resources.agent import Agent
from ...resources.budget import NANO, Budget
from ...resources.catalog import Catalog, Resource
from ...resources.model import Model
from ...resources.model_settings import ModelSettings
from ...resources.rights import AccountName
from ...resources.team import Team
from ...resources.tenants import Tenant
from ...temporal.threads import COMPUTING
from .lookup import OwnManifests, find, find_optional

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


MAX_TENANTS = 10_000
"""Tenants of whose latest Quotas a worker knows."""


class Meters:
    """Makes the meters of calls, with the Quotas that the worker's manifests have at the time of the call.

    ``task_queue``: the workers of that queue have the same manifests.
    """

    def __init__(self, own: OwnManifests, task_queue: str) -> None:
        self._own = own
        self.task_queue = task_queue
        # By tenant, of which clients can name any number. Of one that was left out, the Quotas are new again.
        self._last = LRUCache[str, str](MAX_TENANTS)
        self._new = LRUCache[str, set[str]](MAX_TENANTS)

    async def tenant(self, name: str | None) -> Tenant | None:
        """The tenant of a run with its current Quotas, by the name in the run's thread. Raises JournalUnavailable."""
        return (await self.tenants([name]))[name] if name is not None else None

    async def tenants(self, names: Collection[str]) -> dict[str, Tenant | None]:
        """The same for several tenants at once, by their names."""
        catalog = await self._own.catalog() if names else Catalog()
        return {name: Tenant.of(catalog, AccountName(*name.split("/"))) for name in names}

    async def of(self, thread: Thread, speaker: str, catalog: Catalog) -> "Meter":
        """The meter of the calls of ``speaker``, the id of a manifest."""
        tenant = await self.tenant(thread.tenant)
        return Meter(thread, speaker, catalog, tenant, self.quota_wait(tenant) if tenant else None)

    def new_quotas(self, tenant: str, digest: str) -> Collection[str]:
        """The digests of Quotas that have replaced others of the tenant, up to those that it has now.

        Those that this worker sees first are new as well. They are returned until ``forget_new`` is called.
        """
        new = self._new.setdefault(tenant, set())
        if self._last.get(tenant) != digest:
            self._last[tenant] = digest
            new.add(digest)
        return new

    def forget_new(self, tenant: str, digests: Collection[str]) -> None:
        """Forgets that Quotas are new, after that was noted."""
        self._new.get(tenant, set()).difference_update(digests)

    def quota_wait(self, tenant: Tenant) -> QuotaWait:
        """The run of the current activity, if it is to wait for a Quota of its tenant."""
        info = activity.info()
        self.new_quotas(str(tenant.account), tenant.digest)
        return QuotaWait(
            run=KnownRun(info.workflow_run_id or "", info.workflow_id or ""),
            tenant=str(tenant.account),
            quotas=tenant.digest,
            temporal_namespace=info.namespace,
            task_queue=self.task_queue,
        )


class Meter:
    """The accounts of all budgets, and of all Quotas of the ``tenant``, that apply to the calls of ``speaker``.

    ``quota_wait`` is the run, for calls that are to wait for a Quota.
    """

    def __init__(
        self,
        thread: Thread,
        speaker: str,
        catalog: Catalog,
        tenant: Tenant | None,
        quota_wait: QuotaWait | None = None,
    ) -> None:
        self._catalog = thread.catalog
        self._speaker = speaker
        self._tenant = tenant
        self._quota_wait = quota_wait
        self._budgets: dict[Account, tuple[str, Budget]] = {}
        for owner in dict.fromkeys((*(thread.budgets or ()), speaker)) if thread.account else ():
            manifest = catalog.by_id(owner)
            if manifest and (budget := manifest.budget):
                self._budgets[_account(f"{thread.account}", owner, budget)] = owner, budget

    async def model_charge(
        self, messages: Iterable[Message], tools: Sequence[NamedTool], model: ChainedModel | None
    ) -> Charge | None:
        """The charge of a model call by its estimate, refused as by ``_refusal``; None without limits.

        Hundreds of tools take a quarter of a second to measure: only limits need that, once for a catalog.
        """
        name = model.manifest.name if model and model.manifest else model.name if model else None
        quotas = tuple(_quota_accounts(self._tenant, name)) if self._tenant else ()
        if not (self._budgets or quotas):
            return None
        key = self._catalog, self._speaker, tuple(tool.name for tool in tools)
        size = _TOOL_SIZES.get(key) if tools else 0
        if size is None:
            size = _TOOL_SIZES[key] = await COMPUTING.run(lambda: len(f"{tools}"))
        return self._charge(estimate(messages, size, model), quotas, per_sending=True)

    def tool_charge(self) -> Charge | None:
        """The charge of a tool call, once however often it is attempted; None without limits."""
        quotas = tuple(_quota_accounts(self._tenant, None)) if self._tenant else ()
        return self._charge(Amount(tool_calls=1), quotas, per_sending=False)

    def _charge(self, amount: Amount, quotas: tuple[QuotaAccount, ...], *, per_sending: bool) -> Charge | None:
        if not (self._budgets or quotas):
            return None
        return Charge(
            accounts=tuple(self._budgets),
            amount=amount,
            refusal=self._refusal,
            per_sending=per_sending,
            quotas=quotas,
            quota_wait=self._quota_wait,
        )

    def _refusal(self, reached_limit: Reached) -> BatonError:
        if isinstance(reached_limit, ReachedQuota):
            wait = reached_limit.wait if reached_limit.account.waits else None
            return quota_reached(_quota_text(reached_limit), wait)
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


def _quota_accounts(tenant: Tenant, model: str | None) -> Iterator[QuotaAccount]:
    """The accounts of a tenant's Quotas for a call: of a ``model``, or of something else."""
    for quota in tenant.quotas:
        name = tenant.name_in(quota)
        for period, amounts in quota.periods:
            waits = quota.spec.on_exceeded == "wait"
            yield QuotaAccount(quota.id, name, period, tuple(amounts.limits.items()), waits=waits)
        if model and (calls := quota.calls_per_minute(model)):
            yield QuotaAccount(quota.id, name, "minute", (("model_calls", calls),), model=model)


def run_limits(tenant: Tenant) -> list[RunLimit]:
    """The limits of a tenant's open runs."""
    return [
        RunLimit(quota.id, tenant.name_in(quota), quota.spec.max_concurrent_runs)
        for quota in tenant.quotas
        if quota.spec.max_concurrent_runs
    ]


def quota_reached(text: str, wait: float | None) -> QuotaReached:
    """The error of a call that waits so many seconds at least, or that fails, without ``wait``."""
    return QuotaReached(text) if wait is None else QuotaReached(text, {"wait": wait})


def waiting_text(waiting: WaitingRun) -> str:
    """Why a run waits until others of its tenant have ended."""
    limit = waiting.limit
    runs = f"{limit.most} open run{'s' * (limit.most > 1)} at once"
    are_open = (
        f"{waiting.open} {'are' if waiting.open != 1 else 'is'} open, and {waiting.before} waiting before this one"
    )
    return f"{_quota_name(limit.quota, limit.tenant)} allows {runs}: {are_open}"


def _quota_name(quota: str, tenant: str) -> str:
    return f"the quota {quota.partition('/')[2]} of the tenant {tenant}"


def _quota_text(reached: ReachedQuota) -> str:
    """The error message of a call that exceeds a Quota."""
    account = reached.account
    name = _quota_name(account.quota, account.tenant)
    if account.period == "minute":
        return f"{name} allows {reached.most} calls of {account.model} a minute, and this minute's are used"
    scale = NANO if reached.limit == "cost" else 1
    used, most, needed = (f"{amount / scale:.12g}" for amount in (reached.used, reached.most, reached.needed))
    what = f"{most} {to_camel(reached.limit)} a {account.period}"
    if reached.wait is None:
        return f"{name} allows {what}, and the next call alone needs up to {needed}"
    anew = f"{datetime.fromtimestamp(reached.ends, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{name} is used up: {used} of {what}, and the next call needs up to {needed}; it resets at {anew}"


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
