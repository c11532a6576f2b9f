"""Everything that starts and follows runs: the command line, the Python interface, and the local servers."""
