"""Errors that a user can cause and fix."""


class BadMail(ValueError):
    """Unusable mails, inboxes, questions or dates; the message says how to fix them."""


class QueryTimeout(BadMail):
    """A query of the mail database exceeded its time limit."""


class Unreachable(BadMail):
    """A server of mails does not answer. What it sent before is still here."""
