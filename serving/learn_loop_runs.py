"""Run learn loops as processes, at most one per graph. They resume when the service restarts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.outreach.results import METRICS, STATE, write_json
from training.errors import BadInput

REQUEST, LOG, CANCELLED = "request.json", "service.log", "cancelled"
LIFELINE = Path(__file__).with_name("lifeline.py")
UNFINISHED = ("queued", "running")
MOST_AT_ONCE = 4
"""Loops that train at the same time. Each loads a model; the others wait."""
MOST_WAITING = 100


class Busy(BadInput):
    """Another loop works on the same graph."""


class Full(BadInput):
    """Too many loops wait already."""


class StartedElsewhere(BadInput):
    """The loop is no process of this service."""


class LearnLoopRuns:
    """The loops below a folder. Each keeps its request in its folder, so that it survives the service."""

    def __init__(
        self,
        folder: Path,
        check: Callable[[Mapping[str, Any]], str],
        command: Callable[[str, Mapping[str, Any]], list[str]],
        is_at_work: Callable[[str], bool] = lambda graph: False,
    ) -> None:
        """`check` returns the graph key of settings or raises `BadInput`; `command` returns the command that runs them.

        `is_at_work` says of a graph key whether any loop works on the graph, for loops that were started elsewhere.
        """
        self._folder = folder
        self._check = check
        self._command = command
        self._is_at_work = is_at_work
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: set[str] = set()
        self._closing = False
        folder.mkdir(parents=True, exist_ok=True)

    def open(self) -> None:
        """Resume the loops that were unfinished when the service ended, oldest first."""
        with self._lock:
            for run_id in self._unfinished():
                self._save(run_id, state="queued")
            self._start_next()

    def close(self) -> None:
        """End all processes. Their loops resume when the service opens again."""
        with self._lock:
            self._closing = True
            processes = dict(self._processes)
        for process in processes.values():
            _terminate(process)
        for run_id, process in processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with self._lock:
                if run_id not in self._cancelled:
                    self._save(run_id, state="queued", error=None)  # it may have written its cancellation

    def submit(self, settings: Mapping[str, Any], *, wait: bool) -> str:
        """Start a loop, or queue it behind those on the same graph. Return its id.

        Raises:
            BadInput: the settings cannot be used.
            Busy: another loop works on the graph, and the request does not allow waiting.
            Full: too many loops wait.
        """
        graph = self._check(settings)
        with self._lock:
            unfinished = self._unfinished()
            if len(unfinished) >= MOST_AT_ONCE + MOST_WAITING:
                raise Full(f"{MOST_WAITING} learn loops wait already: cancel some, or send this one later")
            busy = [run_id for run_id in unfinished if self._request(run_id)["graph"] == graph]
            if busy and not wait:
                raise Busy(f"learn loop {busy[0]} works on this graph: cancel it, or send wait=true to begin after it")
            if not wait and self._is_at_work(graph):
                raise Busy("another learn loop works on this graph: cancel it, or send wait=true to begin after it")
            run_id = uuid.uuid4().hex[:12]
            write_json(
                self._folder / run_id / REQUEST,
                {"settings": dict(settings), "graph": graph, "order": self._next_order()},
            )
            self._save(run_id, state="queued", iteration=0, error=None)
            self._start_next()
        return run_id

    def cancel(self, run_id: str) -> None:
        """Stop a loop; finished iterations stay. Raises `KeyError` for an unknown loop, and `StartedElsewhere`."""
        with self._lock:
            if self.status(run_id)["state"] not in UNFINISHED:
                return
            if not (self._folder / run_id / REQUEST).exists():
                raise StartedElsewhere(f"learn loop {run_id} was started on the command line: stop it there")
            self._cancelled.add(run_id)  # the loop may still write that it runs or fails
            (self._folder / run_id / CANCELLED).touch()
            self._save(run_id, state="cancelled")
            process = self._processes.get(run_id)
        if process is not None:
            _terminate(process)
        else:
            with self._lock:
                self._start_next()

    def status(self, run_id: str) -> dict[str, Any]:
        """Return state, iteration, metrics of finished iterations and undelivered notices.

        Raises `KeyError` for an unknown loop.
        """
        folder = self._folder / run_id
        has_process = run_id in self._processes  # asked before its records are read: they are complete once it is gone
        try:
            state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise KeyError(run_id) from None
        if state["state"] == "cancelled" and (folder / REQUEST).exists() and not (folder / CANCELLED).exists():
            state |= {"state": "queued", "error": None}  # nobody cancelled it: its service was killed
        if has_process:  # the loop is over when its process has ended, regardless of its records
            state |= {"state": "running", "error": None}
        if run_id in self._cancelled:
            state["state"] = "cancelled"
        metrics = [
            json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob(f"iterations/*/{METRICS}"))
        ]
        waiting = sorted(file.stem for file in (folder / "webhook").glob("*.json"))
        return {**state, "undelivered": waiting, "metrics": metrics, "results_path": str(folder)}

    def _request(self, run_id: str) -> dict[str, Any]:
        return json.loads((self._folder / run_id / REQUEST).read_text(encoding="utf-8"))

    def _unfinished(self) -> list[str]:
        known = [file.parent.name for file in self._folder.glob(f"*/{REQUEST}")]
        found = [
            run_id
            for run_id in known
            if (self._folder / run_id / STATE).exists() and self.status(run_id)["state"] in UNFINISHED
        ]
        return sorted(found, key=lambda run_id: self._request(run_id)["order"])

    def _next_order(self) -> int:
        return 1 + max(
            (self._request(file.parent.name)["order"] for file in self._folder.glob(f"*/{REQUEST}")), default=0
        )

    def _save(self, run_id: str, **changes: Any) -> None:
        file = self._folder / run_id / STATE
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        write_json(file, known | changes)

    def _start_next(self) -> None:
        """Start every queued loop whose graph is free. The caller holds the lock."""
        if self._closing:
            return
        at_work = {self._request(run_id)["graph"] for run_id in self._processes}
        for run_id in self._unfinished():
            request = self._request(run_id)
            if run_id in self._processes or request["graph"] in at_work:
                continue
            if len(self._processes) >= MOST_AT_ONCE:
                return
            at_work.add(request["graph"])
            with (self._folder / run_id / LOG).open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, str(LIFELINE), *self._command(run_id, request["settings"])],
                    stdin=subprocess.PIPE,  # never written to: it closes when this process ends, even if killed
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._processes[run_id] = process
            self._save(run_id, state="running")
            threading.Thread(target=self._watch, args=(run_id, process), name=f"loop-{run_id}", daemon=True).start()

    def _watch(self, run_id: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._lock:
            if run_id in self._cancelled:
                self._save(run_id, state="cancelled", error=None)
            elif self._closing:
                self._save(run_id, state="queued", error=None)
            elif code == 0:
                self._save(run_id, state="finished")
            else:
                self._save(run_id, state="failed", error=self._last_line(run_id) or f"exit code {code}")
            del self._processes[run_id]
            self._start_next()

    def _last_line(self, run_id: str) -> str:
        lines = (self._folder / run_id / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
