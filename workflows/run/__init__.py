"""The parts that all workflow types share: input, signals and updates, the turn, and tracing."""
