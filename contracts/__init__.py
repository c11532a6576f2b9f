"""What clients, workflows and activities exchange: messages, plans, requests, results, statuses and errors."""
