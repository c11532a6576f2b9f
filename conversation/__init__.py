"""Plain data that clients, workflows and activities share: messages, contracts, errors, and the Temporal connection."""
