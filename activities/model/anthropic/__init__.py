"""The provider for Anthropic's Messages API."""
