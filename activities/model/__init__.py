"""Models: the protocol of model providers, the table of providers, and their implementations."""
