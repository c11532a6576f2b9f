"""What a worker process has: its settings, secrets, registered functions and health check."""
