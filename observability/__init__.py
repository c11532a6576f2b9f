"""What a run and a worker report: metrics, traces and the log."""

from ..installation import require

require("worker", "a worker")
