"""Defaults of settings that clients and workers share. This file imports nothing slow."""

from pathlib import Path

TASK_QUEUE = "baton"
"""The task queue of runs, unless BATON_TASK_QUEUE names another."""

STATE_DIR = Path(".baton")
"""The folder for files on this machine, unless BATON_HOME names another."""
