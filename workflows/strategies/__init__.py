"""The strategies: in which order the members of a team speak, and when they stop; one file for each.

Nothing is imported here: a workflow in the sandbox loads its own strategy and no other.
"""
