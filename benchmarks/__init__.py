"""Benchmarks of Baton, and of other systems in comparison."""
