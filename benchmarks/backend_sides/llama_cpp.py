"""llama.cpp's server in this process continues all prompts concurrently. Needs only xllamacpp and the standard
library.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp

from benchmarks.backend_sides.job import Job, fastest, job_of_command


def main() -> None:
    job = job_of_command()
    slots = len(job.decode_prompts)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[2]
    parameters.n_parallel = slots
    parameters.n_ctx = slots * (len(job.decode_prompts[0]) + job.decode_tokens + 64)
    parameters.n_batch = parameters.n_ubatch = 512  # as many as in a step of ours
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = job.threads
    parameters.warmup = True
    server = xllamacpp.Server(parameters)
    with ThreadPoolExecutor(slots) as threads:

        def decode(tokens: int) -> int:
            return sum(threads.map(lambda slot: _complete(server, job, slot, tokens), range(slots)))

        decode(1)
        seconds, sampled = fastest(lambda: decode(job.decode_tokens), job.repeats)
    assert sampled == slots * job.decode_tokens, f"every reply has the requested length, but {sampled} tokens came"
    print(json.dumps({"seconds": seconds, "sampled_tokens": sampled}))


def _complete(server: Any, job: Job, slot: int, tokens: int) -> int:
    """Return the number of sampled tokens."""
    asked = {
        "prompt": job.decode_prompts[slot],
        "n_predict": tokens,
        "id_slot": slot,
        "cache_prompt": True,
        "ignore_eos": True,
        "temperature": 1.0,
        "samplers": ["temperature"],
    }
    reply = server.handle_completions(asked)
    reply = json.loads(reply) if isinstance(reply, str) else reply
    return int(reply["usage"]["completion_tokens"])


if __name__ == "__main__":
    main()
