"""What all workflow types share: input, messages from outside, continuing as new, and how a run closes."""
