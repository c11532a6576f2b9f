"""What panels and debates have beyond a discussion: rounds, briefs, and roles that are no members'."""
