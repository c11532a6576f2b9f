"""What all strategies share: the turns of members, and what comes of them."""
