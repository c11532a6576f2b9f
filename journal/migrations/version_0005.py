"""Version 5: the conversations that end with a run, which each expired query looks up."""

revision = "0005"
down_revision = "0004"

INDEXES = {"baton_conversations_run": "baton_conversations (substr(head, 1, 36))"}
