"""How does a query get in, and its result out? Command line, client, and the servers that one's own machine needs."""
