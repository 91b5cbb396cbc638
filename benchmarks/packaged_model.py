"""Compare the speed of a base model in 8 bits with llama.cpp on the GGUF file that it was converted from.

  python -m benchmarks.packaged_model --model models/qwen2.5-coder-1.5b-instruct --gguf FILE --llama-python PYTHON

Both sides read prompts of random ids and continue 1 and 6 of them, greedily, with one thread, each in a process of its own,
one after the other. Prefill is the time of a prompt with one token of reply. Decoding is the additional time of a longer
reply. Times are processor time, which other programs on the machine hardly change. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure both sides and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, help="the converted model's folder")
    add("--gguf", type=Path, help="the file that it was converted from")
    add("--llama-python", help="a Python that has xllamacpp")
    add("--prompt", type=int, default=256, help="tokens of each prompt (default 256)")
    add("--reply", type=int, default=32, help="tokens of each reply (default 32)")
    add("--slots", type=int, nargs="+", default=(1, 6), help="conversations continued at once (default 1 6)")
    add("--side", choices=("ours", "llama.cpp"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(_ours(options) if options.side == "ours" else _llama_cpp(options)))
        return 0
    figures = {}
    for side, python in (("ours", sys.executable), ("llama.cpp", options.llama_python)):
        words = [python, "-m", "benchmarks.packaged_model", *sys.argv[1:], "--side", side]
        shown = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures[side] = json.loads(shown.splitlines()[-1])
        print(side, figures[side], flush=True)
    ratios = {name: figures["ours"][name] / figures["llama.cpp"][name] for name in figures["ours"]}
    print(json.dumps({**figures, "ratios": ratios}))
    return 0


def _prompts(options: argparse.Namespace) -> list[list[int]]:
    chance = random.Random(0)
    # The first ids are bytes and common words, in both architectures' vocabularies.
    return [[chance.randrange(300, 30_000) for _ in range(options.prompt)] for _ in range(max(options.slots) + 1)]


def _rates(options: argparse.Namespace, complete: Any) -> dict[str, float]:
    """Return tokens per second. `complete(prompts, tokens)` continues all prompts at once and returns the sampled tokens."""
    prompts = _prompts(options)
    complete([prompts[-1][:32]], 2)  # warm-up
    found: dict[str, float] = {}
    for slots in options.slots:
        started = time.process_time()
        complete(prompts[:slots], 1)
        prefill = time.process_time() - started
        fresh = [[*prompt[1:], prompt[0]] for prompt in prompts[:slots]]
        started = time.process_time()
        sampled = complete(fresh, 1 + options.reply)
        decode = time.process_time() - started - prefill
        assert sampled == slots * (1 + options.reply), f"{sampled} tokens came"
        found[f"prefill tokens/s, {slots} at once"] = slots * options.prompt / prefill
        found[f"decode tokens/s, {slots} at once"] = slots * options.reply / decode
    return found


def _ours(options: argparse.Namespace) -> dict[str, float]:
    from training.backends.torch import TorchSettings
    from training.backends.torch.engine import Engine, SamplingParams
    from training.backends.torch.network import load_network

    settings = TorchSettings(device="cpu", base_weights="int8", threads=1, kv_cache_tokens=16_384)
    network = load_network(options.model, settings)
    network.end_ids = frozenset()
    engine = Engine(network, settings)

    def complete(prompts: list[list[int]], tokens: int) -> int:
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
        return sum(len(f.result().token_ids) for f in [engine.submit(prompt, sampling) for prompt in prompts])

    try:
        return _rates(options, complete)
    finally:
        engine.close()


def _llama_cpp(options: argparse.Namespace) -> dict[str, float]:
    from concurrent.futures import ThreadPoolExecutor

    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(options.gguf)
    parameters.n_parallel = max(options.slots)
    parameters.n_ctx = max(options.slots) * (options.prompt + options.reply + 64)
    parameters.n_batch = parameters.n_ubatch = 512
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)

    def one(slot: int, prompt: list[int], tokens: int) -> int:
        asked = {"prompt": prompt, "n_predict": tokens, "id_slot": slot, "ignore_eos": True, "temperature": 0.0}
        reply = server.handle_completions(asked)
        return int((json.loads(reply) if isinstance(reply, str) else reply)["usage"]["completion_tokens"])

    def complete(prompts: list[list[int]], tokens: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as threads:
            return sum(threads.map(one, range(len(prompts)), prompts, [tokens] * len(prompts)))

    return _rates(options, complete)


if __name__ == "__main__":
    raise SystemExit(main())
