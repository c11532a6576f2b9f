"""What a run and a worker report: metrics, traces and the log."""
