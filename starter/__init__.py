"""Clients: the command line, the Python interface, the local servers, and the code that starts and follows runs."""
