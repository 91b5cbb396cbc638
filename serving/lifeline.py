"""Run a command, and end it with SIGTERM when standard input closes, because then the parent process is gone.

Start this program in a session of its own; the command joins that session. It needs only the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Return the command's exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    # The command ends on it; this program waits for that.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def end_with_input() -> None:
        while os.read(0, 1):  # unbuffered: a buffer's lock would still be held when the interpreter ends
            pass
        os.killpg(0, signal.SIGTERM)

    threading.Thread(target=end_with_input, name="lifeline", daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
