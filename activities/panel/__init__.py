"""How do the speakers of a panel come to know what they are to speak of?"""
