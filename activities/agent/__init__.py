"""Remote agents: executed by an ExecutionEngine or an A2AServer."""
