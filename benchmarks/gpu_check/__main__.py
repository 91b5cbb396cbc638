"""Check of the torch backend on this machine's GPU, within twenty minutes and without a network.

  python -m benchmarks.gpu_check                 random models of Qwen2.5's 0.5B and 1.5B shape
  python -m benchmarks.gpu_check --shape tiny    seconds on a CPU: does everything run?

Needs torch, transformers, peft, safetensors and this repository; nothing of ZenML, ART or pydantic. For each shape: log-probabilities
against transformers with the same weights, with and without an adapter and a reused prefix; rollouts next to `transformers.generate`;
a whole GRPO step; peak memory; and the shares of a large matrix product and of memory bandwidth, both measured here. Progress goes to
stderr; stdout gets one JSON line. Exit code: 0 exact, 1 a check failed, 2 it could not run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Imported first, because they must not find pydantic's replacement.
import peft  # noqa: F401
import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM  # noqa: F401

from benchmarks.backend_sides.job import ModelSize
from benchmarks.gpu_check.carried import replaced_packages

with replaced_packages():
    from benchmarks.gpu_check.exactness import exactness
    from benchmarks.gpu_check.machine import limits, reset_peak
    from benchmarks.gpu_check.speed import generate, grpo_step, rollouts
    from benchmarks.gpu_check.workload import FULL, SHAPES, TINY, random_ids, save_random_model
    from training.backends.torch.engine import Engine, SamplingParams
    from training.backends.torch.hardware import release_memory
    from training.backends.torch.network import load_network
    from training.backends.torch.settings import TorchSettings
    from training.errors import BadInput


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["0.5b", "1.5b"])
    parser.add_argument("--device", default="auto", help="a torch device; auto takes CUDA when there is one")
    arguments = parser.parse_args()
    device = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # the latter where torch is built without support for it
        print(f"error: --device {device}: torch finds no such device here; --device cpu runs without", file=sys.stderr)
        return 2
    if device == "cpu" and arguments.shape != ["tiny"]:
        print("error: on a CPU the full shapes take hours: use --shape tiny, or a machine with a GPU", file=sys.stderr)
        return 2
    started = time.perf_counter()
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "limits": limits(torch.device(device), TINY if arguments.shape == ["tiny"] else FULL),
    }
    try:
        for shape in arguments.shape:
            figures[shape] = check_shape(shape, device, figures["limits"])
            release_memory()
    except BadInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    failed = [f"{shape} {name}" for shape in arguments.shape for name, ok in figures[shape]["passed"].items() if not ok]
    figures |= {"failed": failed, "seconds": round(time.perf_counter() - started, 1)}
    print(json.dumps(figures))
    return 1 if failed else 0


def check_shape(shape: str, device: str, limit: dict[str, float]) -> dict[str, Any]:
    """Make a random model of `shape`, run all checks on it and return their figures; `passed` says which held."""
    workload = TINY if shape == "tiny" else FULL
    room = 2 * workload.groups * (workload.rollouts + 1) * (workload.prompt + workload.reply) + 2 * max(
        workload.lengths
    )
    settings = TorchSettings(device=device, matmul_dtype="float32", kv_cache_tokens=max(256, room))
    with tempfile.TemporaryDirectory() as scratch:
        folder = save_random_model(Path(scratch) / "model", shape, torch.device(device))
        progress(f"{shape}: loading")
        started = time.perf_counter()
        network = load_network(folder, settings)
        network.end_ids = frozenset()  # replies have a fixed length
        figures: dict[str, Any] = {"load_seconds": round(time.perf_counter() - started, 1)}
        size = ModelSize.of(folder)
        engine = Engine(network, settings)
        try:
            engine.submit(random_ids(size, 16, seed=0), SamplingParams(max_tokens=2)).result()
            progress(f"{shape}: exactness")
            figures["exactness"] = exactness(engine, folder, workload, size, Path(scratch) / "adapter")
            reset_peak(network.device)
            progress(f"{shape}: rollouts")
            groups, figures["rollouts"] = rollouts(engine, workload, size)
            figures["rollouts"] |= generate(folder, network.device, workload, size)
            share = size.weights * network.dtype.itemsize * workload.reply / 1e9 / limit["read_gb_per_second"]
            figures["rollouts"]["share_of_bandwidth"] = round(share / figures["rollouts"]["seconds"], 3)
            progress(f"{shape}: GRPO step")
            reset_peak(network.device)
            figures["grpo_step"] = engine.run_exclusive(lambda: grpo_step(network, settings, groups, size))
            flops = figures["grpo_step"]["tflop"] / limit["product_tflops"]
            figures["grpo_step"]["share_of_product"] = round(flops / figures["grpo_step"]["seconds"], 3)
        finally:
            engine.close()
        figures["passed"] = {
            **{f"exactness, {name}": case["passed"] for name, case in figures["exactness"].items()},
            "GRPO step learns": figures["grpo_step"]["margin_after"] > figures["grpo_step"]["margin_before"],
            "GRPO ratio starts at 1": abs(figures["grpo_step"]["ratio_mean"] - 1) < 0.02,
        }
    return figures


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
