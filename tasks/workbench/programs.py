"""Programs in a small part of Python, as a policy writes them: read as a syntax tree and never executed as Python.

A program can reach nothing but plain values, the functions that it is given, and the methods in `METHODS`. Its steps and
the size of its values are limited. Unlike Python, `+=` on a list makes a new one, a loop goes over the items that a list had
at its beginning, and a generator is a list.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks.workbench.program_values import (
    BUILTINS,
    LARGEST,
    LONGEST,
    METHODS,
    NUMBERS,
    OPERATORS,
    SCALARS,
    UNARY,
    ProgramError,
    flat,
    scalar,
    text,
)

STEPS = 50_000
"""Statements, expressions and items of a program, at most."""
_CALL = 100
"""Steps that a call of a function takes."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def run(program: str, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Run a program. It calls functions by their names, which may have one dot, and they return plain values.

    Raises:
        ProgramError: it is no program, or fails. What it did before stays done.
    """
    if len(program) > LONGEST:
        raise ProgramError("the program is too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(program)
        _Run(functions).block(tree.body)
    except ProgramError:
        raise
    except (_Break, _Continue):
        raise ProgramError("break or continue outside a loop") from None
    except SyntaxError as error:
        raise ProgramError(f"line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ProgramError("the program is nested too deeply") from None
    except KeyError:
        raise ProgramError("there is no such key") from None  # the key may be a tuple of texts, too large to be shown
    except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        raise ProgramError(f"{type(error).__name__}: {error}"[:200]) from None


class _Run:
    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions, self.names, self.steps = functions, dict[str, Any](), 0

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > STEPS:
            raise ProgramError("the program takes too many steps")

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.spend()
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=value):
                self.value(value)
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self.bind(target, found)
            case ast.AugAssign(target=ast.Name() | ast.Subscript() as target, op=op, value=value):
                self.bind(target, self.binary(op, self.value(target), self.value(value)))
            case ast.If(test=test, body=body, orelse=orelse):
                self.block(body if self.value(test) else orelse)
            case ast.For(target=target, iter=items, body=body, orelse=orelse):
                for item in self.items(self.value(items)):
                    self.bind(target, item)
                    if self.ends(body):
                        break
                else:
                    self.block(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                while self.value(test):
                    if self.ends(body):
                        break
                else:
                    self.block(orelse)
            case ast.Pass():
                pass
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case _:
                raise ProgramError(f"line {node.lineno}: {type(node).__name__} is not possible")

    def ends(self, body: Sequence[ast.stmt]) -> bool:
        """Execute the body of a loop. Return whether it ends the loop."""
        try:
            self.block(body)
        except _Continue:
            pass
        except _Break:
            return True
        return False

    def bind(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = list(self.items(value))
                if len(values) != len(targets):
                    raise ProgramError(f"line {target.lineno}: {len(values)} values for {len(targets)} names")
                for inner, item in zip(targets, values, strict=True):
                    self.bind(inner, item)
            case ast.Subscript(value=container, slice=index) if type(held := self.value(container)) is dict:
                held[self.flat(self.value(index))] = value
                self.limited(held)
            case _:
                raise ProgramError(f"line {target.lineno}: only names and keys of dictionaries can be set")

    def named(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        raise ProgramError(f"there is no {name}")

    def items(self, value: Any) -> list[Any]:
        if type(value) not in (list, tuple, dict, str):
            raise ProgramError(f"{type(value).__name__} has no items")
        self.spend(len(value))
        return list(value)

    def limited(self, value: Any) -> Any:
        """Return the value if it is not too large."""
        if type(value) in (str, list, tuple, dict) and len(value) > LONGEST:
            raise ProgramError("a value is too long")
        if type(value) in NUMBERS and abs(value) > LARGEST:
            raise ProgramError("a number is too large")
        return value

    def made(self, value: Any) -> Any:
        """Return a new value if it is not too large. A long one takes steps."""
        if type(value) in (str, list, tuple, dict):
            self.spend(len(value) // 10)
        return self.limited(value)

    def joined(self, between: str, parts: Sequence[Any]) -> str:
        texts = [str(scalar(part)) for part in parts]
        if sum(map(len, texts)) + len(between) * len(texts) > LONGEST:
            raise ProgramError("a text is too long")
        return self.made(between.join(texts))

    def flat(self, value: Any) -> Any:
        if type(value) in (list, tuple, dict):
            self.spend(len(value) // 10)
        return flat(value)

    def value(self, node: ast.expr) -> Any:
        self.spend()
        match node:
            case ast.Constant(value=value) if type(value) in SCALARS:
                return self.limited(value)
            case ast.Name(id=name):
                return self.named(name)
            case ast.List(elts=items):
                return [self.value(item) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self.value(item) for item in items)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.flat(self.value(key)): self.value(value)
                    for key, value in zip(keys, values, strict=True)
                    if key
                }
            case ast.BoolOp(op=op, values=values):
                found: Any = None
                for value in values:
                    found = self.value(value)
                    if bool(found) is isinstance(op, ast.Or):
                        break
                return found
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return UNARY[type(op)](self.value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.compare(self.value(left), ops, others)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.value(test) else orelse)
            case ast.Subscript(value=container, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                bounds = [None if bound is None else self.value(bound) for bound in (lower, upper, step)]
                return self.made(self.value(container)[slice(*bounds)])
            case ast.Subscript(value=container, slice=index):
                return self.value(container)[self.flat(self.value(index))]
            case ast.JoinedStr(values=parts):
                return self.joined("", [self.value(part) for part in parts])
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.value(value)
            case ast.FormattedValue(
                value=value, conversion=-1, format_spec=ast.JoinedStr(values=[ast.Constant(value=str(spec))])
            ) if re.fullmatch(r"\d{0,2}(\.\d)?[dfs]?", spec):
                return format(scalar(self.value(value)), spec)
            case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
                return [self.value(element) for _ in self.scope(loops)]
            case ast.DictComp(key=key, value=value, generators=loops):
                return {self.flat(self.value(key)): self.value(value) for _ in self.scope(loops)}
            case ast.Lambda(args=ast.arguments(args=arguments), body=body):
                return self.function([argument.arg for argument in arguments], body)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self.call(function, arguments, keywords)
        raise ProgramError(f"line {node.lineno}: {type(node).__name__} is not possible")

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        types = {type(left), type(right)}
        if type(op) in OPERATORS and types <= {*NUMBERS, bool}:
            return self.limited(OPERATORS[type(op)](left, right))
        if isinstance(op, ast.Add) and len(types) == 1 and types <= {str, list, tuple}:
            return self.made(left + right)
        raise ProgramError(f"{type(left).__name__} and {type(right).__name__} do not go together")

    def compare(self, left: Any, ops: Sequence[ast.cmpop], others: Sequence[ast.expr]) -> bool:
        for op, other in zip(ops, others, strict=True):
            right = self.value(other)
            if isinstance(op, ast.In | ast.NotIn) and type(right) is not str:
                self.flat(left)
                for item in self.items(right):
                    self.flat(item)
            elif not isinstance(op, ast.Is | ast.IsNot) and type(left) is type(right) and left and right:
                self.flat(left), self.flat(right)
            if not OPERATORS[type(op)](left, right):
                return False
            left = right
        return True

    def scope(self, loops: Sequence[ast.comprehension]) -> Iterator[None]:
        """Yield once for each turn of the loops of a comprehension."""
        if not loops:
            yield
            return
        before = dict(self.names)
        for item in self.items(self.value(loops[0].iter)):
            self.bind(loops[0].target, item)
            if all(self.value(condition) for condition in loops[0].ifs):
                yield from self.scope(loops[1:])
        self.names = before

    def function(self, arguments: Sequence[str], body: ast.expr) -> Callable[..., Any]:
        def called(*values: Any) -> Any:
            before = dict(self.names)
            self.names.update(zip(arguments, values, strict=True))
            found = self.value(body)
            self.names = before
            return found

        return called

    def call(self, function: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Any:
        given = [self.value(argument) for argument in arguments]
        options = {keyword.arg: self.option(keyword) for keyword in keywords if keyword.arg}
        if len(options) < len(keywords):
            raise ProgramError("** is not possible")
        name = _dotted(function)
        if name in self.functions:
            self.spend(_CALL + sum(len(value) for value in (*given, *options.values()) if type(value) is str))
            found = self.functions[name](*map(scalar, given), **{key: scalar(value) for key, value in options.items()})
            self.spend(len(found) if type(found) in (list, dict) else 0)
            return found
        if isinstance(function, ast.Name) and name in BUILTINS:
            return self.builtin(name, given, options)
        if isinstance(function, ast.Attribute) and (
            not isinstance(function.value, ast.Name) or function.value.id in self.names
        ):
            return self.method(self.value(function.value), function.attr, given, options)
        if callable(self.names.get(name)):
            return self.names[name](*given)
        raise ProgramError(f"there is no function {ast.unparse(function)[:80]}")

    def option(self, keyword: ast.keyword) -> Any:
        if keyword.arg == "key" and isinstance(keyword.value, ast.Attribute):  # max(figures, key=figures.get)
            owner, name = self.value(keyword.value.value), keyword.value.attr
            return lambda item: self.method(owner, name, [item], {})
        return self.value(keyword.value)

    def builtin(self, name: str, given: list[Any], options: dict[str, Any]) -> Any:
        key = options.get("key")
        ordered = name in ("sorted", "min", "max")
        if ordered and callable(key):
            options["key"] = lambda item: self.flat(key(item))
        for value in given:
            if type(value) in (list, tuple, dict, str) and name not in ("len", "bool"):
                for item in self.items(value):
                    if name == "sum":
                        scalar(item)
                    elif ordered and not callable(key):
                        self.flat(item)
            elif ordered or name in ("str", "int", "float", "round", "abs"):
                scalar(value)
            if name == "str":
                scalar(value)
            if name == "range" and abs(value) > LONGEST:
                raise ProgramError("a range is too long")
        return self.made(BUILTINS[name](*given, **options))

    def method(self, value: Any, name: str, given: list[Any], options: dict[str, Any]) -> Any:
        if name == "join" and type(value) is str and len(given) == 1:
            return self.joined(value, self.items(given[0]))
        if name == "replace" and type(value) is str and len(given) == 2 and given[0]:
            old, new = map(text, given)
            if value.count(old) * len(new) > LONGEST:
                raise ProgramError("a text is too long")
            return self.made(value.replace(old, new))
        if name not in METHODS.get(type(value), ()):
            raise ProgramError(f"{type(value).__name__} has no {name}")
        self.spend(0 if name in ("append", "get") else len(value))
        found = getattr(value, name)(*(given if name == "append" else map(self.flat, given)), **options)
        self.limited(value)
        return self.limited(list(found) if name in ("keys", "values", "items") else found)


def _dotted(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""
