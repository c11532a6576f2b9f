"""Tenants: whose usage is counted together, and which Quotas apply to it.

The tenant of a run is its ServiceAccount, and with that a namespace. It is determined by the worker that pins the run.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from .catalog import Catalog
from .quota import Quota
from .rights import AccountName

DEFAULT_PRIORITY = 3
DEFAULT_WEIGHT = 1.0
"""Temporal's own."""

MAX_FAIRNESS_KEY = 64
"""Bytes of a fairness key that Temporal accepts."""


@dataclass(frozen=True)
class Tenant:
    """An account with the ``quotas`` that apply to its runs, the most specific ones first."""

    account: AccountName
    quotas: tuple[Quota, ...]

    @classmethod
    def of(cls, catalog: Catalog, account: AccountName) -> "Tenant | None":
        """The tenant of a run; None if there are no Quotas. If there is any, every namespace is a tenant.

        All Quotas of a namespace and its account apply. Those for each namespace only apply to namespaces without a
        Quota of their own.
        """
        quotas = [manifest for manifest in catalog.manifests if isinstance(manifest, Quota)]
        if not quotas:
            return None
        in_namespace = [
            quota for quota in quotas if quota.namespace == account.namespace and not quota.spec.each_namespace
        ]
        of_account = [quota for quota in in_namespace if quota.spec.service_account == account.name]
        of_namespace = [quota for quota in in_namespace if quota.spec.service_account is None]
        of_each = [quota for quota in quotas if quota.spec.each_namespace]
        return cls(account, (*of_account, *(of_namespace or of_each)))

    def name_in(self, quota: Quota) -> str:
        """The name under which a Quota counts the usage: the namespace, or the ServiceAccount if it is for that."""
        return str(self.account) if quota.spec.service_account else self.account.namespace

    @cached_property
    def fairness_key(self) -> str:
        """The key by which Temporal treats tenants fairly."""
        key = self.name_in(self.quotas[0]) if self.quotas else self.account.namespace
        return key if len(key.encode()) <= MAX_FAIRNESS_KEY else hashlib.sha256(key.encode()).hexdigest()[:32]

    @property
    def weight(self) -> float:
        """The weight of its fairness key."""
        return next((quota.spec.weight for quota in self.quotas if quota.spec.weight), DEFAULT_WEIGHT)

    @property
    def priority(self) -> int:
        """The priority of its runs, from 1 (highest) to 5."""
        return next((quota.spec.priority for quota in self.quotas if quota.spec.priority), DEFAULT_PRIORITY)

    @cached_property
    def digest(self) -> str:
        """A digest of its Quotas: it changes with each of their fields."""
        texts = [f"{quota.id} {quota.spec.model_dump_json(exclude_unset=True)}" for quota in self.quotas]
        return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()

    @property
    def limits_runs(self) -> bool:
        """Whether the number of its open runs is limited."""
        return any(quota.spec.max_concurrent_runs for quota in self.quotas)
