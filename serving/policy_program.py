"""The policy server as the program that `PolicyProcess` starts.

python -m serving.policy_program '{"model_dir": ..., "adapters": {NAME: FOLDER}, "trained_with": SETTINGS, "port": 0}'
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.backends.serving import VllmServer

CONVERSATION_TOKENS = 1_280
"""Tokens of an average conversation in the cache: prompt, search results, two mails and the answer."""
VLLM_CAPACITY = 64
"""Conversations that a GPU batches; vLLM queues those that its memory cannot hold."""


def main() -> None:
    """Serve until standard input ends."""
    # The parent reads one line from standard output, so everything that libraries print goes to standard error.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    wanted = json.loads(sys.argv[1])

    from training.backends.serving import VllmServer, open_policy_server, serving_settings
    from training.errors import BadInput

    adapters = {name: Path(folder) for name, folder in wanted["adapters"].items()}
    try:
        server = open_policy_server(Path(wanted["model_dir"]), adapters, wanted["trained_with"], port=wanted["port"])
    except BadInput as error:
        print(json.dumps({"error": str(error)}), file=report, flush=True)
        sys.exit(2)
    settings = serving_settings(wanted["trained_with"])
    capacity = max(1, min(settings.max_running, settings.kv_cache_tokens // CONVERSATION_TOKENS))
    if isinstance(server, VllmServer):
        capacity = VLLM_CAPACITY
        threading.Thread(target=_end_with, args=(server,), name="vllm-watch", daemon=True).start()
    print(json.dumps({"base_url": server.base_url, "capacity": capacity}), file=report, flush=True)
    report.close()
    sys.stdin.read()
    # Do not wait for the step that is being computed: nobody is left to read it.
    os._exit(0)


def _end_with(server: VllmServer) -> None:
    """End this program when vLLM ends, because the parent restarts what has ended."""
    server.wait()
    os._exit(1)


if __name__ == "__main__":
    main()
