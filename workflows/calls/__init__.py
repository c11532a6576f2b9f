"""The calls of a run: activities, with their timeouts and retries, and child workflows."""
