"""What was said? Messages, heads, turns, requests and replies: plain data that stands in histories and the journal."""
