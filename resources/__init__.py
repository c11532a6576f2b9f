"""What was declared? The manifests as strict pydantic models, and the catalog that holds them."""
