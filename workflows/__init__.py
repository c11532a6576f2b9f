"""The workflows: deterministic code that decides who speaks next, and calls activities for everything else."""
