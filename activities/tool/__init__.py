"""Tools: the protocol of tool types, the table of tool types, and their implementations."""
