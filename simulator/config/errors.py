"""Errors of configurations."""


class ConfigError(ValueError):
    """A configuration that cannot be simulated; the message names the file, the key and what is allowed."""
