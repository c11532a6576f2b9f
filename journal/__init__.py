"""The journal: the database of all messages, whose rows are written once and each point to the row before them."""
