"""What touches the world? Asking a model, using a tool, and the journal: everything with an effect or a secret."""
