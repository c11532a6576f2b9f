"""Agents that are executed elsewhere: by an ExecutionEngine, or by an A2AServer."""
