"""The version of a worker, as Temporal knows it."""

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import WorkerDeploymentConfig

from .settings import Settings


def deployment_of(settings: Settings) -> WorkerDeploymentConfig | None:
    """The worker's version, if it has one: a run stays on the version that it began with."""
    if settings.deployment is None or settings.build_id is None:
        return None
    version = WorkerDeploymentVersion(settings.deployment, settings.build_id)
    return WorkerDeploymentConfig(version, True, default_versioning_behavior=VersioningBehavior.PINNED)
