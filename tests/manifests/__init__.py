"""Tests of manifests: reading, validation, secrets, templates and the JSON Schema."""
