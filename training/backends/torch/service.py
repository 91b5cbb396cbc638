"""ART's `ModelService` for one trainable model: its engine and HTTP server, and the trainer of its adapter."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

from art import dev, types
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY
from art.preprocessing.pack import DiskPackedTensors, packed_tensors_from_dir
from art.preprocessing.tokenize import SFTBatch
from art.utils.get_model_step import get_step_from_dir
from art.utils.output_dirs import get_step_checkpoint_dir

from training.backends.prompt_template import load_tokenizer
from training.backends.torch.adapter_trainer import AdapterTrainer
from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.engine import Engine
from training.backends.torch.hardware import release_memory
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork, load_network
from training.backends.torch.server import BASE, HttpThread, UnknownModel, create_app
from training.backends.torch.settings import UNFINISHED_SFT, TorchSettings
from training.backends.torch.unfinished_sft import UnfinishedSft
from training.checkpoint import ADAPTER_WEIGHTS

_LOADED_ADAPTERS = 4
_KEPT_EVERY = 120.0
"""Seconds between two times that the state of a fine-tuning is kept."""
_BATCHES_PER_TRIM = 8  # batches reuse freed memory, but less and less as the heap fragments


class TorchService:
    """Serves `{model_name}@{step}` from the checkpoints in `output_dir` and writes the next one after training.

    Step 0 is the untouched base model until something has been trained. Model and server start on first use.
    """

    def __init__(self, model_name: str, base_model: str, output_dir: str, settings: TorchSettings) -> None:
        self._model_name = model_name
        self._base_model = base_model
        self._output_dir = output_dir
        self._settings = settings
        self._start_lock = threading.Lock()
        self._network: PolicyNetwork | None = None
        self._engine: Engine | None = None
        self._http: HttpThread | None = None
        self._trainer: tuple[int, AdapterTrainer] | None = None
        self._adapters: OrderedDict[tuple[Path, int], LoraAdapter] = OrderedDict()

    async def start_openai_server(self, config: dev.OpenAIServerConfig | None) -> tuple[str, int]:
        """Start serving (once). Return host and port."""
        port = int((config or {}).get("server_args", {}).get("port") or 0)
        http = await asyncio.to_thread(self._start, port)
        return "127.0.0.1", http.port

    async def vllm_engine_is_sleeping(self) -> bool:
        return False

    async def train(
        self,
        disk_packed_tensors: DiskPackedTensors,
        config: types.TrainConfig,
        _config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        """Take one GRPO step on all packed tensors. The checkpoint is complete when the metrics are yielded."""
        engine = await self._ready()

        def update() -> dict[str, float]:
            packed = packed_tensors_from_dir(**disk_packed_tensors)
            step, trainer = self._current_trainer()
            metrics = trainer.policy_step(packed, config, _config)
            self._save(step + 1, trainer)
            return metrics

        metrics = await asyncio.to_thread(engine.run_exclusive, update)
        await asyncio.to_thread(release_memory)
        yield {**metrics, TRAIN_GRADIENT_STEPS_KEY: 1.0}

    async def train_sft(
        self, batches: list[SFTBatch], config: types.TrainSFTConfig, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        """Take one optimizer step per batch, then write one checkpoint.

        What is done is kept every `_KEPT_EVERY` seconds and at the end, unless it is useless. After a kill, the same batches
        continue there: the metrics of those that are done come again at once, the last of them with their seconds in all as
        `time/earlier_s`. The trainer removes it once the row of the warm start is written.
        """
        engine = await self._ready()
        started = time.monotonic()

        def resume() -> UnfinishedSft:
            step = get_step_from_dir(self._output_dir)
            unfinished = UnfinishedSft(Path(self._output_dir) / UNFINISHED_SFT, step, batches)
            if unfinished.checkpoint is not None:
                assert self._network is not None
                trainer = AdapterTrainer(self._network, self._settings, unfinished.checkpoint)
                self._trainer = step, trainer
                if len(unfinished.metrics) == len(batches):
                    self._save(step + 1, trainer)
            return unfinished

        def update(batch: SFTBatch) -> dict[str, float]:
            return self._current_trainer()[1].sft_step(batch)

        def keep() -> None:
            if _finite(done[-1]):
                unfinished.keep(self._current_trainer()[1], done, unfinished.seconds + time.monotonic() - started)

        def save() -> None:
            keep()
            step, trainer = self._current_trainer()
            self._save(step + 1, trainer)

        unfinished = await asyncio.to_thread(engine.run_exclusive, resume)
        for metrics in unfinished.metrics[:-1]:
            yield metrics
        for metrics in unfinished.metrics[-1:]:
            yield {**metrics, "time/earlier_s": unfinished.seconds}
        done = list(unfinished.metrics)
        kept = time.monotonic()
        for index, batch in enumerate(batches[len(done) :], start=len(done)):
            metrics = await asyncio.to_thread(engine.run_exclusive, partial(update, batch))
            done.append(metrics)
            if index == len(batches) - 1:
                await asyncio.to_thread(engine.run_exclusive, save)
            elif time.monotonic() - kept > _KEPT_EVERY:
                await asyncio.to_thread(engine.run_exclusive, keep)
                kept = time.monotonic()
            if index % _BATCHES_PER_TRIM == 0 or index == len(batches) - 1:
                await asyncio.to_thread(release_memory)
            yield metrics

    def close(self) -> None:
        """Stop server and engine. The next use starts them again."""
        with self._start_lock:
            if self._http is not None:
                self._http.close()
            if self._engine is not None:
                self._engine.close()
            self._http = self._engine = self._network = self._trainer = None
            self._adapters.clear()

    async def _ready(self) -> Engine:
        await asyncio.to_thread(self._start, 0)
        assert self._engine is not None
        return self._engine

    def _start(self, port: int) -> HttpThread:
        with self._start_lock:
            if self._http is None:
                self._network = load_network(self._base_model, self._settings)
                chat = ChatFormat(load_tokenizer(self._base_model))
                self._engine = Engine(self._network, self._settings)
                app = create_app(self._engine, chat, self._resolve, self._model_names)
                self._http = HttpThread(app, port)
            return self._http

    def _current_trainer(self) -> tuple[int, AdapterTrainer]:
        """Return the trainer of the latest checkpoint, loading it unless the one in memory is of that step."""
        step = get_step_from_dir(self._output_dir)
        if self._trainer is None or self._trainer[0] != step:
            assert self._network is not None
            folder = self._checkpoint(step)
            self._trainer = step, AdapterTrainer(self._network, self._settings, folder if folder.is_dir() else None)
        return self._trainer

    def _save(self, step: int, trainer: AdapterTrainer) -> None:
        trainer.save(self._checkpoint(step))
        self._trainer = step, trainer

    def _checkpoint(self, step: int) -> Path:
        return Path(get_step_checkpoint_dir(self._output_dir, step))

    def _resolve(self, name: str) -> LoraAdapter | None:
        if name in (BASE, self._base_model, Path(self._base_model).name):
            return None
        found = re.fullmatch(rf"{re.escape(self._model_name)}(?:@(\d+))?", name)
        if not found:
            raise UnknownModel(f"There is no model {name!r} here; served are {', '.join(self._model_names())}.")
        step = int(found[1]) if found[1] else get_step_from_dir(self._output_dir)
        folder = self._checkpoint(step)
        if not folder.is_dir():
            if step == 0:
                return None
            raise UnknownModel(f"{self._model_name} has no checkpoint of step {step}.")
        return self._adapter(folder)

    def _adapter(self, folder: Path) -> LoraAdapter:
        assert self._network is not None
        version = folder, (folder / ADAPTER_WEIGHTS).stat().st_mtime_ns
        if version not in self._adapters:
            self._adapters[version] = self._network.load_adapter(folder)
            while len(self._adapters) > _LOADED_ADAPTERS:
                self._adapters.popitem(last=False)
        self._adapters.move_to_end(version)
        return self._adapters[version]

    def _model_names(self) -> list[str]:
        folder = self._checkpoint(0).parent
        steps = sorted(int(entry.name) for entry in folder.glob("*") if entry.name.isdigit()) if folder.is_dir() else []
        return [BASE, self._model_name, *(f"{self._model_name}@{step}" for step in steps or [0])]


def _finite(metrics: Mapping[str, float]) -> bool:
    """Return whether an update left usable weights. A run that finds others kept could never go on."""
    return all(math.isfinite(metrics.get(name, 0.0)) for name in ("loss/train", "loss/grad_norm"))
