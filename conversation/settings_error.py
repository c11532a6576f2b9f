"""`SettingsError`: a wrong setting of the process."""


class SettingsError(Exception):
    """A setting is missing or wrong. The message names the setting, and never contains a key."""
