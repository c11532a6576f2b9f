"""The parts that all strategies share: the turns of members, and their results."""
