"""Plans: what a workflow has to know of the manifests, without prompts, schemas and addresses."""

from .build_plan import Startable, build_plan

__all__ = ["Startable", "build_plan"]
