"""The provider for OpenAI's chat completions, which OpenAI, Azure, Gemini and many other servers speak."""
