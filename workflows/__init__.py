"""The workflows: deterministic code that chooses the next speaker, and calls activities for everything else."""

from ..installation import require

require("worker", "a worker")
