"""The state of a run: what it was told from outside, and when it continues as new."""
