"""How does a query get in, and its result out? Command line, client, and the servers a machine of one's own needs."""
