"""The torch engine as the program that `PolicyProcess` starts.

python -m serving.policy_program '{"model_dir": ..., "adapters": {NAME: FOLDER}, "port": 0}'
"""

from __future__ import annotations

import json
import os
import sys

CONVERSATION_TOKENS = 1_280
"""Tokens that a conversation of average length takes in the cache: prompt, search results, two mails and the answer."""


def main() -> None:
    """Serve until standard input ends."""
    # Standard output is for the one line that the parent reads; what libraries print goes to the log.
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    wanted = json.loads(sys.argv[1])

    from training.backends.torch import PolicyServer
    from training.backends.torch.settings import TorchSettings
    from training.errors import BadInput

    settings = TorchSettings()
    try:
        server = PolicyServer(wanted["model_dir"], wanted["adapters"], settings, port=wanted["port"])
    except BadInput as error:
        print(json.dumps({"error": str(error)}), file=report, flush=True)
        sys.exit(2)
    capacity = max(1, min(settings.max_running, settings.kv_cache_tokens // CONVERSATION_TOKENS))
    print(json.dumps({"base_url": server.base_url, "capacity": capacity}), file=report, flush=True)
    report.close()
    sys.stdin.read()
    # A step that is being computed is not waited for: nobody is left to read it.
    os._exit(0)


if __name__ == "__main__":
    main()
