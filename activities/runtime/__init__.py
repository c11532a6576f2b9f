"""What every activity needs while it runs: heartbeats, ids, retries, and errors without secrets."""
