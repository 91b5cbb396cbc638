"""Publish the folder of a training run in the artifact store after every step, so that another machine can resume it."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from zenml.artifact_stores.base_artifact_store import BaseArtifactStore
from zenml.client import Client

from materializers.local_files import get_file, put_file
from reports.console import TrainingConsole, say
from training.record.experiment import EXPERIMENT_FILE, Experiment
from training.record.history import HISTORY_FILE, StepRecord

RUNS_FOLDER = "training_runs"
LOOPS_FOLDER = "learn_loops"


def experiments_elsewhere(kept_in: str = RUNS_FOLDER) -> list[Experiment]:
    """Return the experiments that a remote artifact store has; none if the store is a folder of this machine."""
    store = Client().active_stack.artifact_store
    return [] if store.config.is_local else published_experiments(store, kept_in)


def published_experiments(store: BaseArtifactStore, kept_in: str = RUNS_FOLDER) -> list[Experiment]:
    """Return the experiments of the runs in the store. Raises errors of the store, and BadInput if a run is damaged."""
    runs = os.path.join(store.path, kept_in)
    found = []
    for name in store.listdir(runs) if store.exists(runs) else []:
        file = os.path.join(runs, os.fsdecode(name), EXPERIMENT_FILE)
        if store.exists(file):
            with store.open(file, "rb") as stream:
                found.append(Experiment.parse(stream.read(), file))
    return found


class PublishedRun:
    """Keep `{store}/{kept_in}/{name of folder}` equal to `folder`. Only one process at a time may publish a run."""

    def __init__(self, store: BaseArtifactStore, folder: Path, kept_in: str = RUNS_FOLDER) -> None:
        self._store = store
        self._folder = folder
        self._uri = os.path.join(store.path, kept_in, folder.name)
        self._published: dict[str, tuple[int, int]] = {}
        """Path in the folder -> size and modification time (nanoseconds) of the file when it was published or
        fetched."""

    def fetch(self) -> int:
        """Replace the folder by the published one if that has more finished steps. Return their number, else 0.

        Raises errors of the artifact store, because a start without its contents could repeat the training.
        """
        files = self._stored_files()
        histories = [name for name in files if Path(name).name == HISTORY_FILE]
        if not histories:
            return 0
        with self._store.open(os.path.join(self._uri, histories[0]), "rb") as file:
            steps = file.read().count(b"\n")
        local = self._folder / histories[0]
        if local.is_file() and local.read_bytes().count(b"\n") >= steps:
            return 0
        # Whole or not at all: a history without its checkpoints would be taken for a damaged run.
        partial = self._folder.with_name(f".{self._folder.name}.{uuid.uuid4().hex}.partial")
        try:
            for name in files:
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                get_file(self._store, os.path.join(self._uri, name), partial / name)
            for path in sorted(self._local_files(), key=_is_history, reverse=True):
                (self._folder / path).unlink()
            for name in sorted(files, key=_is_history):
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(partial / name, self._folder / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._published = self._local_files()
        return steps

    def publish(self) -> None:
        """Upload changed files. If the store does not answer, print a line; the next step tries again."""
        try:
            self._upload()
        except Exception as error:  # botocore, aiohttp and s3fs each raise their own errors
            reason = " ".join(str(error).split())[:160] or type(error).__name__
            say(f"this step is not in the artifact store yet, the next one tries again: {reason}")

    def _upload(self) -> None:
        files = self._local_files()
        changed = [name for name, state in files.items() if self._published.get(name) != state]
        # The row makes a step count, so it is uploaded after everything that it refers to.
        for name in sorted(changed, key=_is_history):
            uri = os.path.join(self._uri, name)
            self._store.makedirs(os.path.dirname(uri))
            put_file(self._store, self._folder / name, uri)
            self._published[name] = files[name]
        for name in self._published.keys() - files.keys():
            self._store.remove(os.path.join(self._uri, name))
            del self._published[name]

    def _local_files(self) -> dict[str, tuple[int, int]]:
        """Return the finished files. Names of unfinished ones begin with a dot."""
        found = {}
        for path in sorted(self._folder.rglob("*")):
            name = path.relative_to(self._folder)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                state = path.stat()
                found[str(name)] = (state.st_size, state.st_mtime_ns)
        return found

    def _stored_files(self) -> list[str]:
        if not self._store.exists(self._uri):
            return []
        return [
            os.path.relpath(os.path.join(os.fsdecode(folder), os.fsdecode(name)), self._uri)
            for folder, _, names in self._store.walk(self._uri)
            for name in names
        ]


class PublishingConsole(TrainingConsole):
    """A console that publishes the run after every step."""

    def __init__(self, max_steps: int, published: PublishedRun) -> None:
        super().__init__(max_steps)
        self._published = published

    def step(self, row: StepRecord) -> None:
        super().step(row)
        self._published.publish()


def open_console(max_steps: int, run_folder: Path, kept_in: str = RUNS_FOLDER) -> TrainingConsole:
    """Return the console of a run.

    With a remote artifact store it publishes the run, after fetching one that began elsewhere.
    """
    store = Client().active_stack.artifact_store
    if store.config.is_local:
        return TrainingConsole(max_steps)
    published = PublishedRun(store, run_folder, kept_in)
    if steps := published.fetch():
        say(f"resuming the run from the artifact store: {steps} finished steps")
    return PublishingConsole(max_steps, published)


def _is_history(name: str) -> bool:
    return Path(name).name == HISTORY_FILE
