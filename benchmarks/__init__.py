"""Benchmarks of Baton, and of other systems beside it."""
