"""The REPL of a workspace: runs untrusted code, without privileges."""

from __future__ import annotations

import ast
import base64
import collections
import contextlib
import dataclasses
import datetime
import decimal
import functools
import io
import itertools
import math
import os
import random
import re
import shutil
import signal
import socket
import statistics
import string
import subprocess
import sys
import textwrap
import traceback
import types
import typing
import unittest

from sandbox.inside.confinement import drop_privileges
from sandbox.inside.protocol import receive, send

WARM = (
    base64,
    collections,
    dataclasses,
    datetime,
    decimal,
    functools,
    io,
    itertools,
    math,
    random,
    re,
    shutil,
    statistics,
    string,
    subprocess,
    textwrap,
    typing,
    unittest,
)
"""Modules that code under repair often imports; each import costs more than the isolation."""


def become_repl(link: socket.socket, sink: int, limits: dict[str, typing.Any], folder: str, in_container: bool) -> None:
    """Execute the requests that arrive by `link` in `folder`, with output to `sink`, until its other end is closed."""
    drop_privileges(limits, in_container)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.argv, sys.path[:0] = [""], [folder]
    sys.dont_write_bytecode = True
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]  # the code under repair may have a module of this name
    while (request := receive(link)) is not None:
        if request["op"] == "evaluate":
            reply = _evaluate(request["code"], module.__dict__)
        else:
            reply = {"ok": _run_cell(request["code"], module.__dict__)}
        send(link, {**reply, "number": request["number"]})


def _run_cell(code: str, names: dict[str, typing.Any]) -> bool:
    """Run a cell and print the value of a last expression. Return whether it raised nothing."""
    try:
        tree = ast.parse(code, "<cell>")
        last = typing.cast(ast.Expr, tree.body.pop()) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                print(repr(value))
        return True
    except BaseException as error:
        try:
            shown = error.__traceback__.tb_next if error.__traceback__ else None
            traceback.print_exception(type(error), error, shown, limit=-6)
        except BaseException:
            print(type(error).__name__)
        return False
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()


def _evaluate(code: str, names: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Return the value of the last expression as text, after running the statements before it; for an exception its
    class.
    """
    try:
        tree = ast.parse(code, "<check>")
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        exec(compile(tree, "<check>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<check>", "eval"), names)
        return {"ok": True, "value": repr(value)[:20_000]}
    except BaseException as error:
        return {"ok": False, "value": f"raises {type(error).__name__}"}
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
