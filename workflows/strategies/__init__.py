"""In which order do the members of a team speak, and when do they stop? A file for each word after ``strategy:``.

Nothing is imported here: each run loads anew what its own strategy needs, and not the others.
"""
