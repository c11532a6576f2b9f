"""The state of a run: requests from signals and updates, decisions, the session, and when it continues as new."""
