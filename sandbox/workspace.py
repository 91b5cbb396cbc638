"""The interface of runners and workspaces: isolated files and a REPL at the other end of a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from sandbox.errors import Starved, Unusable, WorkspaceLost
from sandbox.inside.protocol import BUSY_FACTOR, FILE_SECONDS, Timed, receive_within, send
from sandbox.limits import Limits

GRACE = 20.0
"""Seconds beyond a cell's limit after which its workspace counts as lost."""


class Image(BaseModel):
    """A container image that holds a repository."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=500)
    folder: str = Field(default="/work", pattern=r"^/[\w./-]+$", description="where the repository is")
    hidden: tuple[Annotated[str, Field(pattern=r"^/[\w./-]+$")], ...] = ()
    """Files and folders that are deleted before the agent's code runs; test runs keep them."""


class Observation(BaseModel):
    """The result of a cell."""

    output: str
    """The output, of bounded length."""
    seconds: float
    ended: str | None = None
    """Why the REPL was ended, if it was. Its variables are lost."""
    restarted: bool = False
    """Whether the cell began in a new REPL because the earlier one was ended."""
    ok: bool = False
    """Whether the cell raised nothing."""
    starved: bool = False
    """Whether it ran out of wall time because others had the processor, which says nothing about the code."""
    value: str | None = None
    """The value of an evaluated expression as text."""


class Changes(BaseModel):
    """Changes to the files of a snapshot."""

    changed: dict[str, str] = {}
    deleted: list[str] = []


class Workspace:
    """Isolated files and a REPL. Not thread-safe: one call at a time, except for `kill`.

    Operations on files raise Starved if the machine is too busy for them.
    """

    def __init__(self, connection: Timed, limits: Limits, kill: Callable[[], None]) -> None:
        """`kill` ends all processes from outside, and returns when they are gone. It may be called again."""
        self._connection, self._limits, self._kill = connection, limits, kill
        self._lost = False

    def exec(self, code: str) -> Observation:
        """Run a cell in the REPL."""
        return Observation.model_validate(self._ask({"op": "exec", "code": code}, self._limits.wall_seconds))

    def evaluate(self, code: str) -> Observation:
        """Run statements that end in an expression. Return its value as text, separate from the output."""
        return Observation.model_validate(self._ask({"op": "evaluate", "code": code}, self._limits.wall_seconds))

    def write_files(self, files: dict[str, str], *, snapshot: bool = False) -> None:
        """Write files by relative path; those of the `snapshot` are what `changes` compares with.

        Raises:
            Unusable: a path leaves the workspace, or a limit is exceeded.
        """
        self._files({"op": "write", "files": files, "snapshot": snapshot})

    def read_file(self, path: str, most: int = 1 << 16) -> str:
        """Return the beginning of a file. Raises Unusable if it does not exist."""
        return str(self._files({"op": "read", "path": path, "most": most})["content"])

    def changes(self) -> Changes:
        """Return the differences from the snapshot. Raises Unusable if they are too large for a patch."""
        return Changes.model_validate(self._files({"op": "changes"}))

    def close(self) -> None:
        """Destroy the workspace: all processes and files. Returns when they are gone."""
        self.kill()
        self._connection.close()

    def kill(self) -> None:
        """End all processes, also while another thread's call waits for an answer: that call raises WorkspaceLost."""
        self._lost = True
        self._kill()

    def _files(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request, FILE_SECONDS)
        if "starved" in answer:
            raise Starved(f"this machine is too busy: no file operation in {BUSY_FACTOR * FILE_SECONDS} s")
        if "error" in answer:
            raise Unusable(str(answer["error"]))
        return answer

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request that takes `seconds`, or `BUSY_FACTOR` times as long on a busy machine."""
        seconds = BUSY_FACTOR * seconds + GRACE
        answer, why = None, "the workspace is gone"
        if not self._lost:
            try:
                self._connection.settimeout(seconds)
                send(self._connection, request)
                answer = receive_within(self._connection, seconds)
            except (OSError, ValueError) as error:
                why = f"the workspace does not answer ({error})"
        if answer is None:
            self.kill()  # a late answer would be taken for that of the next request
            raise WorkspaceLost(why)
        return answer


class Runner(Protocol):
    """Opens workspaces."""

    @property
    def name(self) -> str:
        """Opens isolated workspaces."""
        ...

    @property
    def images(self) -> bool:
        """Whether a workspace can begin with a container image."""
        ...

    def open(
        self, files: dict[str, str] | None = None, image: Image | None = None, *, seconds: float | None = None
    ) -> Workspace:
        """Open a new workspace with `files` and, if an image is named, its repository.

        `seconds` overrides the runner's limit of a cell's wall and CPU time.

        Raises:
            NoIsolation: nothing confines it.
            NotStarted: there is no capacity for it at the moment.
            Unusable: there is no such image, or the files cannot be written.
        """
        ...

    def require_isolation(self) -> None:
        """Check the isolation by trying to break out of a workspace. Raises NoIsolation, which says what is open or
        missing.
        """
        ...

    def close(self) -> None:
        """End every workspace."""
        ...
