"""The web console: the page with which people watch runs, answer them and start them."""
