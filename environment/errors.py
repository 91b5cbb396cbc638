"""Errors that a user can cause and fix."""


class BadInput(ValueError):
    """Unusable mails, questions or requests; the message says how to fix them."""


class QueryTimeout(BadInput):
    """A query of the mail database exceeded its time limit."""
