"""The system calls that untrusted code may not make: a seccomp filter, assembled here because libseccomp may be missing.

It applies to the REPL and its children. The init and the template need some of these calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER_MODE = 38, 22, 2
LAST_KNOWN = 450
"""Later system calls are as if the kernel did not know them."""

# Numbers on x86_64 and aarch64; -1 where there is no such call.
NUMBERS = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fanotify_init": (300, 262),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mmap": (9, 222),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "request_key": (249, 218),
    "rt_sigaction": (13, 134),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "syslog": (103, 116),
    "timer_create": (222, 107),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vmsplice": (278, 75),
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the table, and the kernel's word for the machine."""

ANYWHERE = {
    # the init: its memory, its descriptors, and what wakes or reschedules a process that it has stopped
    errno.EPERM: (
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "process_madvise",
        "pidfd_getfd",
        "kcmp",
        "timer_create",
    ),
    # secrets of other processes of the user, and kernel threads that work while a process is stopped
    errno.ENOSYS: ("keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register"),
}
"""Refused in a container too, by error."""

LOCALLY = {
    errno.EPERM: (
        *(
            "acct",
            "bpf",
            "chroot",
            "mount",
            "umount2",
            "pivot_root",
            "move_mount",
            "mount_setattr",
            "open_tree",
            "setns",
        ),
        *("fsopen", "fsconfig", "fsmount", "fspick", "unshare", "open_by_handle_at", "name_to_handle_at", "quotactl"),
        *("perf_event_open", "userfaultfd", "syslog", "move_pages", "migrate_pages", "process_mrelease"),
        # a lower priority would let code starve until nobody can judge it
        *("setpriority", "ioprio_set", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"),
    ),
    errno.ENOSYS: (
        "clone3",  # its flags are out of a filter's reach; the C library falls back to clone
        # memory that no process's figures show
        *("memfd_create", "memfd_secret", "vmsplice", "io_setup", "io_submit", "shmget", "semget", "msgget", "mq_open"),
        # channels through files that workspaces share
        *("inotify_init", "inotify_init1", "fanotify_init"),
    ),
    0: ("flock",),  # succeeds without effect, as do the locks of fcntl
}
"""Refused where workspaces share the host's kernel, files and counters."""

LOAD, EQUAL, GREATER, AT_LEAST, ANY_BIT, RETURN, MASK = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06, 0x54
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NEW_NAMESPACES = 0x7E020000
SIGCHLD, SET_DUMPABLE, SETSIG, SETLEASE, NOTIFY = 17, 4, 10, 1024, 1026
LOCKS = (6, 7, 37, 38)
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
SHARED_ANONYMOUS = 0x21

Step = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def _refuse(number: int) -> Step:
    return RETURN, 0, 0, REFUSE | number


def _argument(index: int, *, high: bool = False) -> Step:
    return LOAD, 0, 0, 16 + 8 * index + (4 if high else 0)


_ALLOW: Step = (RETURN, 0, 0, ALLOW)


def _unless_own(index: int) -> list[Step]:
    """Allow a call on the calling process only."""
    return [_argument(index), (EQUAL, 0, 1, 0), _ALLOW, _refuse(errno.EPERM)]


def _conditions(in_container: bool) -> dict[str, list[Step]]:
    """Return the steps for calls that depend on their arguments. Each list ends by returning."""
    fcntl = [_argument(1), (EQUAL, 0, 1, SETSIG), _refuse(errno.EPERM)]
    found = {
        "prlimit64": _unless_own(0),
        "prctl": [_argument(0), (EQUAL, 0, 1, SET_DUMPABLE), _refuse(errno.EPERM), _ALLOW],
    }
    if in_container:
        found |= {name: _unless_own(0) for name in ("sched_setaffinity", "sched_setattr", "sched_setparam")}
        found |= {"sched_setscheduler": _unless_own(0), "setpriority": _unless_own(1), "ioprio_set": _unless_own(1)}
        return {**found, "fcntl": [*fcntl, _ALLOW]}
    for lock in LOCKS:
        fcntl += [(EQUAL, 0, 1, lock), _refuse(0)]
    for command in (SETLEASE, NOTIFY):
        fcntl += [(EQUAL, 0, 1, command), _refuse(errno.EPERM)]
    return {
        **found,
        "fcntl": [*fcntl, _ALLOW],
        "clone": [_argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), _refuse(errno.EPERM), _ALLOW],
        # Only a parent that waits for its children adds their processor time to its own.
        "rt_sigaction": [
            *(_argument(0), (EQUAL, 1, 0, SIGCHLD), _ALLOW),
            *(_argument(1), (EQUAL, 0, 2, 0), _argument(1, high=True), (EQUAL, 1, 0, 0), _refuse(errno.EPERM), _ALLOW),
        ],
        # Such memory outlives its mappings, and is not in the figures of any process.
        "mmap": [
            *(_argument(3), (MASK, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 1, SHARED_ANONYMOUS)),
            *(_refuse(errno.ENOMEM), _ALLOW),
        ],
        "socketpair": [_argument(0), (EQUAL, 1, 0, UNIX), _refuse(errno.EAFNOSUPPORT), _ALLOW],
        # Other families leave the network namespace. Routes, which the C library asks for, are a netlink of their own.
        "socket": [
            *(_argument(0), (EQUAL, 6, 0, UNIX), (EQUAL, 5, 0, INET), (EQUAL, 4, 0, INET6), (EQUAL, 0, 2, NETLINK)),
            *(_argument(2), (EQUAL, 1, 0, 0), _refuse(errno.EAFNOSUPPORT), _ALLOW),
        ],
    }


def _program(column: int, machine: int, in_container: bool) -> list[Step]:
    steps: list[Step] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, machine), _refuse(errno.ENOSYS), (LOAD, 0, 0, 0)]
    if not in_container:
        steps += [(GREATER, 0, 1, LAST_KNOWN), _refuse(errno.ENOSYS)]
    for refused in (ANYWHERE, {} if in_container else LOCALLY):
        for error, names in refused.items():
            for name in names:
                if (number := NUMBERS[name][column]) >= 0:
                    steps += [(EQUAL, 0, 1, number), _refuse(error)]
    for name, then in _conditions(in_container).items():
        steps += [(EQUAL, 0, len(then), NUMBERS[name][column]), *then]
    return [*steps, _ALLOW]


def join_new_session_keyring() -> None:
    """Leave the session keyring of whoever started the service. Does nothing where the kernel has no keyrings."""
    machine = os.uname().machine
    if machine in _MACHINES:
        _libc.syscall(ctypes.c_long(NUMBERS["keyctl"][_MACHINES[machine][0]]), ctypes.c_long(1), None)


def filter_steps(*, in_container: bool) -> list[Step]:
    """Return the filter for this machine. Raises OSError if none is known."""
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    return _program(*_MACHINES[machine], in_container)


def refuse_system_calls(*, in_container: bool) -> None:
    """Install the filter for this process and its children. Raises OSError where the kernel or the machine has none."""
    steps = filter_steps(in_container=in_container)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
    if _libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or _libc.prctl(SET_SECCOMP, FILTER_MODE, program, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"filter of system calls: {os.strerror(number)}")
