"""The workflows: deterministic code that chooses the next speaker, and calls activities for everything else."""
