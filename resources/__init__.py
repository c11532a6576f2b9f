"""Manifests as strict pydantic models, and the catalog that contains them."""
