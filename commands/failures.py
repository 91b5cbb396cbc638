"""Failures that are no mistakes of the code, in one line: what is wrong, and what to do."""

from __future__ import annotations

import errno

from training.files import is_disk_full

_OF_THE_MACHINE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG}


def explained(error: BaseException) -> str | None:
    """Return the line for a failure of a file, of the artifact store or of the ZenML server; None for any other."""
    if isinstance(error, FileNotFoundError) and (lost := _lost_artifact(error)):
        return f"the artifact store has lost {lost}: run the command that made it again with --no-cache (data, train or eval)"
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
        return f"{error.filename}: {error.strerror}"
    if is_disk_full(error):  # a write names no file
        return "no space left on the disk: free some and run again"
    return _server_problem(error)


def _lost_artifact(error: FileNotFoundError) -> str | None:
    from zenml.client import Client

    where = str(error.filename or error)
    store = Client().active_stack.artifact_store.path
    return where[where.index(store) :] if store in where else None


def _server_problem(error: BaseException) -> str | None:
    import requests
    from zenml.config.global_config import GlobalConfiguration
    from zenml.exceptions import AuthorizationException, CredentialsNotValid

    url = GlobalConfiguration().store_configuration.url
    if not url.startswith("http"):
        return None
    if isinstance(error, AuthorizationException | CredentialsNotValid):
        return f"the ZenML server {url} does not accept this machine's login: `zenml login {url}`"
    if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout):
        asked = getattr(error.request, "url", None) or url
        if str(asked).startswith(url.rstrip("/")):
            return (
                f"the ZenML server {url} cannot be reached: check that it runs, then `zenml login {url}`; or work without it: "
                "`zenml logout`"
            )
    return None
