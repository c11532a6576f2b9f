"""What is wrong with the settings? One error, whose text names the setting and never what a key is."""


class SettingsError(Exception):
    """A setting makes no sense, or is not the one that is needed."""
