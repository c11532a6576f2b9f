"""Does Baton keep its promises when all goes wrong? Proofs at length as programs, and in short as tests."""
