"""Fault injection: kills, odd input and searches for secrets, as long programs and as short tests."""
