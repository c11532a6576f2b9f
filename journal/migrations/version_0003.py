"""Version 3: indexes for what forks and deletions look up."""

revision = "0003"
down_revision = "0002"

INDEXES = {
    "baton_charges_account": "baton_charges (substr(account, 1, 36))",
    "baton_uses_sha": "baton_uses (sha)",
    "baton_holds_sha": "baton_holds (sha)",
}
