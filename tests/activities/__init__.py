"""Tests of the activities, against real servers."""
