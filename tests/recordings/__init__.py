"""Recordings of the samples, and the program that makes them."""
