"""Errors that a user can cause and repair."""


class BadInput(ValueError):
    """Mails, questions or a request that the environment cannot work with; the message says what to do about it."""


class QueryTimeout(BadInput):
    """A query of the mail database ran longer than it may."""
