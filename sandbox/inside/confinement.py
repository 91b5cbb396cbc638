"""What confines a workspace: namespaces of its own, and the privileges that untrusted code gives up."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import typing

from sandbox.inside.system_calls import join_new_session_keyring, refuse_system_calls

NOBODY = 65534
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
SET_DUMPABLE, DROP_FROM_BOUNDING_SET = 4, 24
libc = ctypes.CDLL(None, use_errno=True)


def enter_namespaces(work: str, disk_bytes: int) -> None:
    """Fork, and return as process 1 of new namespaces, in an empty folder `work`. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    spaces = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
    _call("unshare", spaces if user == 0 else spaces | NEWUSER)
    if user != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            _write_setting(f"/proc/self/{name}", text)
    if os.fork() != 0:
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    _call("mount", None, b"/", None, ctypes.c_ulong(REC | PRIVATE), None)
    _mount("proc", "/proc", NOSUID | NODEV | NOEXEC)
    # One file system for all three, so that its size bounds all files. Its root ends up below the last mount.
    _mount("tmpfs", "/tmp", NOSUID | NODEV, f"size={disk_bytes},nr_inodes=20000,mode=0755")
    for place, name in ((work, "work"), ("/dev/shm", "shm"), ("/tmp", "tmp")):
        os.mkdir(f"/tmp/{name}")
        os.chmod(f"/tmp/{name}", 0o777)
        _bind(f"/tmp/{name}", place)
    # Terminals would be shared with other workspaces.
    _mount("tmpfs", "/dev/pts", READ_ONLY | NOSUID | NODEV | NOEXEC)
    for name, value in (("shmall", 256), ("msgmni", 0), ("sem", "0 0 0 0")):
        with contextlib.suppress(OSError):
            _write_setting(f"/proc/sys/kernel/{name}", str(value))
    # Shared memory of /dev/zero is in no process's figures. This device yields zeros too, and cannot be mapped.
    _bind("/dev/full", "/dev/zero")
    for name in ("keys", "key-users"):
        with contextlib.suppress(OSError):  # a kernel without keyrings
            _bind("/dev/null", f"/proc/{name}")
    join_new_session_keyring()
    os.chdir(work)


def drop_privileges(limits: dict[str, typing.Any], in_container: bool) -> None:
    """Drop every privilege that untrusted code must not have. In a container, its user is kept."""
    if in_container:
        with contextlib.suppress(OSError):  # most container runtimes forbid it, and remove the network themselves
            _call("unshare", NEWUSER | NEWNET)
            _write_setting("/proc/sys/user/max_user_namespaces", "0")
    else:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        # The user namespace counts the processes of this workspace alone. The mount namespace is for a read-only /proc,
        # in which code cannot lower its own priority (autogroup).
        _call("unshare", NEWUSER | NEWNS)
        _write_setting("/proc/sys/user/max_user_namespaces", "0")
        libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # without it the next file belongs to root
        _write_setting("/proc/self/oom_score_adj", "1000")  # if memory runs out, rather this process than the service
        _call("mount", None, b"/proc", None, ctypes.c_ulong(REMOUNT | BIND | READ_ONLY | NOSUID | NODEV | NOEXEC), None)
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"] * 2),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    for capability in range(41):
        libc.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    _call("capset", header, bytes(24))
    libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)
    os.setsid()
    try:
        refuse_system_calls(in_container=in_container)
    except OSError:
        if not in_container:  # elsewhere the runtime has a filter of its own
            raise


@contextlib.contextmanager
def as_nobody() -> typing.Iterator[None]:
    """Create files that belong to the untrusted code, even if this process is root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _call(name: str, *arguments: object) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _mount(kind: str, place: str, flags: int, options: str = "") -> None:
    _call("mount", kind.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def _bind(source: str, place: str) -> None:
    _call("mount", source.encode(), place.encode(), None, ctypes.c_ulong(BIND), None)


def _write_setting(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
