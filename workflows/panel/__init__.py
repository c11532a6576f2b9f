"""What panels and debates have beyond a discussion: rounds, briefs, and roles beside the members."""
