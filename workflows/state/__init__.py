"""The state of a run: what signals and updates have requested, and when it continues as new."""
