"""Messages, turns and the values of panels."""
