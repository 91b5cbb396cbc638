"""Errors that a user can cause and repair."""


class BadInput(ValueError):
    """A setting, file or model that the trainer cannot use; the message says what to do."""
