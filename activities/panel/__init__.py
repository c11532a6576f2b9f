"""Panels: the transcript of a panel or a debate, its default agents, and what each speaker gets to read."""
