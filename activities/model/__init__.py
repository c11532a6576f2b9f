"""Models: the protocol that a provider of models implements, the table of providers, and each provider's own code."""
