"""The state of a run: what its signals and updates have asked for, and when it continues as new."""
