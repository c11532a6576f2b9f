"""Who speaks next? Query, strategy, agent turn: deterministic code that decides and lets activities do."""
