# ruff: noqa: E501
"""Programs that use the kernel, rather than Python, to get around the limits of a workspace."""

from __future__ import annotations

CALLS = """
import ctypes, fcntl, mmap, os, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def call(number, *words):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(word) if isinstance(word, int) else word for word in words])
def tried(action):
    try: return action()
    except OSError as error: print(error)
"""

COUNTER = (
    CALLS
    + """
count = [0]
raced = os.open('raced', os.O_WRONLY | os.O_CREAT)
os.pwrite(raced, b'%9d' % 0, 0)
def counting():
    while True: count[0] += 1; os.pwrite(raced, b'%9d' % count[0], 0); time.sleep(0.002)
threading.Thread(target=counting, daemon=True).start()
"""
)
AWAKE = {
    "thread": "",
    "timer": "event = struct.pack('QiiQ40x', 0, signal.SIGCONT, 0, 0)\ntimer = ctypes.create_string_buffer(8)\nprint(call(222, 1, event, timer))\ncall(223, ctypes.c_int.from_buffer(timer).value, 0, struct.pack('4q', 0, 10**7, 0, 10**7), None)",
    "inotify": "watch = call(294, 0)\nprint(call(254, watch, b'/tmp', 0xfff))\ntried(lambda: (fcntl.fcntl(watch, 10, signal.SIGCONT), fcntl.fcntl(watch, fcntl.F_SETOWN, os.getpid()), fcntl.fcntl(watch, fcntl.F_SETFL, os.O_ASYNC)))",
    "socket": "ours, theirs = socket.socketpair()\ntried(lambda: (fcntl.fcntl(ours, 10, signal.SIGCONT), fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid()), fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)))",
    "interval timer": "signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGCONT))\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)",
    "child that ends with SIGCONT": "if call(56, signal.SIGCONT, 0, 0, 0, 0) == 0: time.sleep(0.1); os._exit(0)",
    "message queue": "print(call(240, b'x', 0o102, 0o600, None))",
}
"""What might run `counting` between two cells."""

HOLDER = (
    CALLS
    + """
LIMIT, PIECE = 128 << 20, 8 << 20
held = 0
def holding(more):
    global held
    held += more
    if held > 3 * LIMIT: print('BREACH', held, 'bytes'); sys.stdout.flush(); time.sleep(1); os._exit(0)
    time.sleep(0.03)
"""
)
HIDDEN_MEMORY = {
    "shared mapping, shrunk": "while True:\n    place = libc.mmap(None, PIECE, 3, 0x21, -1, 0)\n    assert place != 2**64 - 1\n    ctypes.memset(place, 1, PIECE); libc.munmap(ctypes.c_void_p(place + 4096), ctypes.c_size_t(PIECE - 4096)); holding(PIECE)",
    "shared mapping, not needed": "while True:\n    place = libc.mmap(None, PIECE, 3, 0x21, -1, 0)\n    assert place != 2**64 - 1\n    ctypes.memset(place, 1, PIECE); libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(PIECE), 4); holding(PIECE)",
    "shared mapping of /dev/zero": "zero = os.open('/dev/zero', os.O_RDWR)\nwhile True:\n    place = libc.mmap(None, PIECE, 3, 1, zero, 0)\n    assert place != 2**64 - 1\n    ctypes.memset(place, 1, PIECE); libc.munmap(ctypes.c_void_p(place + 4096), ctypes.c_size_t(PIECE - 4096)); holding(PIECE)",
    "anonymous file, mapped in part": "kept = []\nwhile True:\n    file = os.memfd_create('x'); [os.write(file, b'x' * (4 << 20)) for _ in range(2)]\n    kept.append(mmap.mmap(file, 4096)); os.close(file); holding(PIECE)",
    "anonymous file in flight": "ours, theirs = socket.socketpair()\nwhile True:\n    file = os.memfd_create('x'); [os.write(file, b'x' * (4 << 20)) for _ in range(2)]\n    socket.send_fds(ours, [b'x'], [file]); os.close(file); holding(PIECE)",
    "anonymous file of a thread": "def own():\n    call(272, 0x400)\n    kept = []\n    while True:\n        kept.append(os.memfd_create('x')); [os.write(kept[-1], b'x' * (4 << 20)) for _ in range(2)]; holding(PIECE)\nthread = threading.Thread(target=own); thread.start(); thread.join(); assert held > 10**9",
    "secret memory": "file = call(447, 0)\nassert file >= 0",
    "System V": "while True:\n    segment = call(29, 0, PIECE, 0o1600)\n    assert segment >= 0\n    libc.shmat.restype = ctypes.c_void_p; place = libc.shmat(segment, None, 0); ctypes.memset(place, 1, PIECE); libc.shmdt(ctypes.c_void_p(place)); holding(PIECE)",
    "pages given to pipes": "pipes = []\nwhile len(pipes) < 25:\n    pipes.append(os.pipe()); place = libc.mmap(None, 2 << 20, 3, 0x22, -1, 0); ctypes.memset(place, 1, 2 << 20)\n    assert libc.vmsplice(pipes[-1][1], (ctypes.c_size_t * 2)(place, 4096), ctypes.c_size_t(1), 8) > 0; libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(2 << 20))",
    "first thread has ended": "def grow():\n    kept = []\n    while True: kept.append(bytearray(PIECE)); holding(PIECE)\nif os.fork() == 0:\n    threading.Thread(target=grow).start(); call(60, 0)\ntime.sleep(1000)",
    "swapped out": "kept = []\nwhile True:\n    place = libc.mmap(None, PIECE, 3, 0x22, -1, 0); ctypes.memset(place, 1, PIECE); libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(PIECE), 21); holding(PIECE)",
}
"""Memory that `RssAnon` and the descriptors of living first threads do not show."""

BURNER = (
    CALLS
    + """
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def children(start):
    for number in range(100):
        while True:
            try: pid = start(); break
            except OSError:
                try: os.waitpid(-1, 0x40000000)
                except OSError: time.sleep(0.01)
        if pid == 0: burn(0.04); os._exit(0)
        time.sleep(0.02)
    print('BREACH four seconds')
"""
)
HIDDEN_TIME = {
    "children whose end is ignored": "tried(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))\nchildren(os.fork)",
    "children that nobody waits for": "print(call(13, 17, struct.pack('QQQQ', 0, 2 | 0x04000000, 0, 0), None, 8))\nchildren(os.fork)",
    "children of children": "def two():\n    pid = os.fork()\n    if pid == 0:\n        tried(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))\n        if os.fork(): time.sleep(0.06); os._exit(0)\n    return pid\nchildren(two)",
    "children by another signal": "def other():\n    pid = call(56, 0, 0, 0, 0, 0)\n    if pid < 0: raise OSError\n    return pid\nchildren(other)",
    "in an orphan": "if os.fork() == 0:\n    os.setsid()\n    tried(lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))\n    children(os.fork)\ntime.sleep(1000)",
}
"""Processor time that no process's figures show."""

SURFACE = {
    "keys of the session": "assert call(250, 0, -3, 0) < 0 and call(248, b'user', b'note', b'x', 1, -3) < 0 and call(249, b'user', b'note', None, 0) < 0",
    "list of keys": "assert open('/proc/keys').read() == open('/proc/key-users').read() == ''",
    "sockets of the hypervisor": "assert call(41, 40, 1, 0) < 0 and call(53, 40, 1, 0, ctypes.create_string_buffer(8)) < 0",
    "sockets of the cryptography": "assert call(41, 38, 5, 0) < 0",
    "other netlinks": "assert all(call(41, 16, 3, number) < 0 for number in range(1, 23))",
    "families": "assert {family for family in range(60) for kind in range(1, 7) if call(41, family, kind, 0) >= 0} <= {1, 2, 10, 16}",
    "inotify": "assert call(253) < 0 and call(294, 0) < 0 and call(300, 0x200, 0) < 0 and fcntl.fcntl(os.open('/usr', 0), 1026, 1) < 0",
    "asynchronous kernel threads": "assert call(425, 8, ctypes.create_string_buffer(200)) < 0 and call(206, 8, ctypes.create_string_buffer(8)) < 0",
    "calls of 32-bit programs": "assert call(0x40000000 + 39) < 0",
    "calls that are not known yet": "assert all(call(number) < 0 for number in range(451, 600))",
    "the kernel's log": "assert libc.klogctl(3, ctypes.create_string_buffer(100), 100) < 0",
    "tracing": "assert libc.ptrace(0, 0, 0, 0) != 0",
    "new namespaces": "assert libc.unshare(0x10000000) != 0 and call(56, 0x10000000 | 17, 0, 0, 0, 0) < 0 and call(435, ctypes.create_string_buffer(88), 88) < 0",
    "limits of init": "assert call(302, 1, 7, struct.pack('QQ', 0, 0), None) < 0",
    "its own priority": "assert call(144, 0, 5, struct.pack('i', 0)) < 0 and call(141, 0, 0, 19) < 0 and call(203, 0, 8, struct.pack('Q', 1)) < 0 and call(251, 1, 0, 3 << 13) < 0\ntry: open('/proc/self/autogroup', 'w').write('19'); raise SystemExit('BREACH')\nexcept OSError: pass",
}
"""Parts of the kernel that workspaces share with each other and with the host."""
