"""Tools: the protocol that a tool type implements, the table of tool types, and each type's own code."""
