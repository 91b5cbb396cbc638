"""Start the sandbox service: `python -m sandbox --port 8100`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

import uvicorn
from pydantic import ValidationError

from sandbox.app import create_app
from sandbox.errors import NoIsolation
from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 2 when a setting is wrong or nothing confines untrusted code here."""
    parser = argparse.ArgumentParser(prog="python -m sandbox", description=__doc__)
    parser.add_argument(
        "--host", default="127.0.0.1", help="the service has no access control: only ever a trusted network"
    )
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of sandbox/settings.py or limits.KEY"
    )
    parser.add_argument("--stop-at-eof", action="store_true", help="stop when standard input ends")
    arguments = parser.parse_args(words)
    values: dict[str, object] = {}
    limits: dict[str, object] = {}
    for word in arguments.set:
        key, _, value = word.partition("=")
        section, _, name = key.rpartition(".")
        (limits if section == "limits" else values)[name if section == "limits" else key] = value
    try:
        settings = SandboxSettings.model_validate({**values, "limits": limits})
    except ValidationError as error:
        first = error.errors()[0]
        print(
            f"error: --set {'.'.join(map(str, first['loc']))}: {first['msg']}; see sandbox/settings.py", file=sys.stderr
        )
        return 2
    runner = LocalRunner(settings.limits)
    try:
        runner.require_isolation()
    except NoIsolation as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.stop_at_eof:
        threading.Thread(target=_stop_at_eof, daemon=True).start()
    uvicorn.run(create_app(settings, runner), host=arguments.host, port=arguments.port, log_level="warning")
    return 0


def _stop_at_eof() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
