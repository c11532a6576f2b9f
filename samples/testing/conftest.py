"""Baton's fixtures for the tests in this folder."""

pytest_plugins = ["baton.testing.pytest"]
