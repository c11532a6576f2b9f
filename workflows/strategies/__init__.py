"""The strategies, one file each: in which order the members of a team speak, and when they stop.

Nothing is imported here, so that a workflow in the sandbox loads only its own strategy.
"""
