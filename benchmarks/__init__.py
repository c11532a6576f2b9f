"""What does Baton cost, and what do others?"""
