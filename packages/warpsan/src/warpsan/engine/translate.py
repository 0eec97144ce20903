"""Translator from a subset of Python to machine code: functions of 64-bit integers and structs.

The scheduling of warps and the state of copies and barriers are control flow on integers and words of memory. Numba
compiles such code in tens of seconds, because it infers types that are all the same; this translator of 64-bit integers
takes about 1 s, and LLVM a few more. The functions remain Python, which a debugger can step through
(:mod:`~warpsan.engine.words`).

A function may assign to names, fields of structs and elements of pointers (:mod:`~warpsan.engine.structs`), whose kinds
follow from annotations; call others; and use ``if``, ``while``, ``for name in range(...)``, ``break``, ``continue``,
``return``, integer operators, comparisons, ``and``, ``or``, ``not`` and conditional expressions. Division rounds down,
as in Python; arithmetic wraps at 64 bits.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import Any

from llvmlite import ir

from warpsan.engine.lanes import POINTER, WORD32, WORD64
from warpsan.engine.structs import Kind, NativeStruct, PtrTo, is_struct, kind_of, size_of
from warpsan.errors import LaunchError

__all__ = ["Translator", "symbol"]

_WORDS = "warpsan.engine.words"
_OPERATORS: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}
_COMPARISONS: dict[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class Translator:
    """Puts functions, and all their callees, into one LLVM module.

    Parameters
    ----------
    module : llvmlite.ir.Module
    exported : set of functions
        Functions whose symbol (:func:`symbol`) is visible outside the module.
    elsewhere : bool
        Whether functions are only declared, because another object has them.
    """

    def __init__(self, module: Any, exported: Collection[Callable[..., Any]] = (), *, elsewhere: bool = False) -> None:
        self.module, self.exported, self.elsewhere = module, frozenset(exported), elsewhere
        self.functions: dict[Callable[..., Any], Any] = {}

    def function(self, function: Callable[..., Any]) -> Any:
        """The LLVM function of a Python function; :meth:`finish` adds its code."""
        if function not in self.functions:
            signature = ir.FunctionType(WORD64, [WORD64] * function.__code__.co_argcount)
            translated = ir.Function(self.module, signature, symbol(function))
            if function not in self.exported and not self.elsewhere:
                translated.linkage = "internal"
            self.functions[function] = translated
        return self.functions[function]

    def finish(self) -> None:
        """Generate all exported functions, and all their callees.

        Raises
        ------
        SyntaxError
            For code outside this subset of Python.
        """
        for function in self.exported:
            self.function(function)
        while pending := [each for each, functions in self.functions.items() if not functions.blocks]:
            for function in pending:
                _Body(function, self.functions[function], self).build()


def symbol(function: Callable[..., Any]) -> str:
    """The name of a translated function in objects."""
    return f"{function.__module__}.{function.__name__}"


def _source_of(function: Callable[..., Any]) -> str:
    """The source of a function, which must be the one that this process has loaded.

    Raises
    ------
    LaunchError
        If its file was edited since.
    """
    loaded = function.__code__
    try:
        text = textwrap.dedent(inspect.getsource(function))
        code = next(each for each in compile(text, "", "exec").co_consts if isinstance(each, CodeType))
    except (OSError, SyntaxError, StopIteration):
        code = None
    if code is None or (code.co_name, code.co_code, code.co_names) != (loaded.co_name, loaded.co_code, loaded.co_names):
        raise LaunchError(f"{function.__module__} was edited since this process imported it: start the process again")
    return text


_NUMBERS = (None, "int", "bool", "None", "SupportsIndex")


def _bits(kind: Kind) -> int:
    """Width of a field or an element."""
    return 64 if is_struct(kind) else 8 * size_of(kind)


@functools.cache
def _declared(function: Callable[..., Any], name: str) -> Kind | None:
    """The kind of a parameter, or of the result (``return``); None for a number."""
    annotation = function.__annotations__.get(name)
    if annotation in _NUMBERS:
        return None
    return kind_of(ast.parse(annotation, mode="eval").body, function.__globals__)


class _Body:
    """The code of one function during its construction."""

    def __init__(self, function: Callable[..., Any], target: Any, translator: Translator) -> None:
        self.function, self.target, self.translator = function, target, translator
        self.module = translator.module
        tree = ast.parse(_source_of(function)).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.tree = tree
        self.builder = ir.IRBuilder(target.append_basic_block("entry"))
        self.places: dict[str, Any] = {}
        self.kinds: dict[str, Kind | None] = {}
        """The kind of each name: a struct or a pointer, or None for a number."""
        self.loops: list[tuple[Any, Any]] = []

    def build(self) -> None:
        """Generate the function."""
        b = self.builder
        for node, value in zip(self.tree.args.args, self.target.args, strict=True):
            b.store(value, self.place(node.arg))
            self.kinds[node.arg] = _declared(self.function, node.arg)
        self.statements(self.tree.body)
        if not b.block.is_terminated:
            b.ret(WORD64(0))

    def wrong(self, node: ast.AST) -> SyntaxError:
        """The exception for code that is not translated."""
        line = self.function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
        return SyntaxError(f"{self.function.__module__}, line {line}: {ast.unparse(node)} is not translated")

    def place(self, name: str) -> Any:
        """The stack place of a local name; LLVM turns these places into registers."""
        if name not in self.places:
            with self.builder.goto_entry_block():
                self.places[name] = self.builder.alloca(WORD64, name=name)
        return self.places[name]

    # ---- statements -------------------------------------------------------------------------------------------------

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        """Generate statements, up to the first one that control does not leave."""
        for node in nodes:
            if self.builder.block.is_terminated:
                return
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        """Generate one statement."""
        b = self.builder
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self.value(node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assign(node.targets[0], node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
            self.assign(node.target, ast.copy_location(ast.BinOp(read, node.op, node.value), node))
        elif isinstance(node, ast.AugAssign):
            place, kind = self.location(node.target)
            self.store(self.operate(node.op, self.load(place, kind), self.value(node.value), node), place, kind)
        elif isinstance(node, ast.Return):
            b.ret(WORD64(0) if node.value is None else self.value(node.value))
        elif isinstance(node, ast.If):
            self.branch(node)
        elif isinstance(node, ast.While):
            self.loop(node.test, node.body, ())
        elif isinstance(node, ast.For):
            self.counted(node)
        elif isinstance(node, ast.Continue):
            b.branch(self.loops[-1][0])
        elif isinstance(node, ast.Break):
            b.branch(self.loops[-1][1])
        else:
            raise self.wrong(node)

    def assign(self, target: ast.expr, source: ast.expr) -> None:
        """Assign to a name, a field or an element, or to several of these from as many values."""
        targets, sources = [target], [source]
        if isinstance(target, ast.Tuple) and isinstance(source, ast.Tuple):
            targets, sources = target.elts, source.elts
        values = [self.value(each) for each in sources]
        for each, given, value in zip(targets, sources, values, strict=True):
            if isinstance(each, ast.Name):
                kind = self.kind(given)
                if self.kinds.setdefault(each.id, kind) != kind:
                    raise self.wrong(target)
                self.builder.store(value, self.place(each.id))
            else:
                self.store(value, *self.location(each))

    def branch(self, node: ast.If) -> None:
        """``if``, with or without ``else``."""
        b = self.builder
        condition = self.truth(node.test)
        yes, no, after = (b.append_basic_block(name) for name in ("then", "else", "after"))
        b.cbranch(condition, yes, no)
        for block, body in ((yes, node.body), (no, node.orelse)):
            b.position_at_end(block)
            self.statements(body)
            if not b.block.is_terminated:
                b.branch(after)
        b.position_at_end(after)

    def loop(self, test: ast.expr, body: Sequence[ast.stmt], step: Sequence[ast.stmt]) -> None:
        """``while``; ``step`` follows each iteration, ``continue`` included."""
        b = self.builder
        check, turn, again, after = (b.append_basic_block(name) for name in ("check", "turn", "again", "after"))
        b.branch(check)
        b.position_at_end(check)
        b.cbranch(self.truth(test), turn, after)
        b.position_at_end(turn)
        self.loops.append((again, after))
        self.statements(body)
        self.loops.pop()
        if not b.block.is_terminated:
            b.branch(again)
        b.position_at_end(again)
        self.statements(step)
        b.branch(check)
        b.position_at_end(after)

    def counted(self, node: ast.For) -> None:
        """``for name in range(...)``, whose bound is evaluated once."""
        call = node.iter
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
            raise self.wrong(node.iter)
        if not isinstance(node.target, ast.Name) or len(call.args) > 2:
            raise self.wrong(node.iter)
        begin = call.args[0] if len(call.args) == 2 else ast.Constant(0)
        limit = f"{node.target.id} of line {node.lineno} ends at"
        counter = f"{node.target.id} of line {node.lineno}"
        self.builder.store(self.value(begin), self.place(counter))
        self.builder.store(self.value(call.args[-1]), self.place(limit))
        now = ast.Name(counter, ast.Load())
        test = ast.Compare(now, [ast.Lt()], [ast.Name(limit, ast.Load())])
        step = ast.Assign([ast.Name(counter, ast.Store())], ast.BinOp(now, ast.Add(), ast.Constant(1)))
        self.loop(test, [ast.Assign([node.target], now), *node.body], [step])

    # ---- expressions ------------------------------------------------------------------------------------------------

    def truth(self, node: ast.expr) -> Any:
        """A condition as an ``i1``."""
        b = self.builder
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return b.not_(self.truth(node.operand))
        if isinstance(node, ast.BoolOp):
            return self.shortcut(node)
        return b.icmp_signed("!=", self.value(node), WORD64(0))

    def comparison(self, node: ast.Compare) -> Any:
        """A comparison, a chain of them, or ``in`` several values."""
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(node.comparators[0], ast.Tuple):
            left = self.value(node.left)
            equal = [self.builder.icmp_signed("==", left, self.value(each)) for each in node.comparators[0].elts]
            among = functools.reduce(self.builder.or_, equal)
            return among if isinstance(node.ops[0], ast.In) else self.builder.not_(among)
        values = [self.value(each) for each in (node.left, *node.comparators)]
        result = None
        for operator, left, right in zip(node.ops, values, values[1:], strict=False):
            one = self.builder.icmp_signed(_COMPARISONS[type(operator)], left, right)
            result = one if result is None else self.builder.and_(result, one)
        return result

    def shortcut(self, node: ast.BoolOp) -> Any:
        """``and`` or ``or``: operands after the decision are not evaluated."""
        b, decided = self.builder, isinstance(node.op, ast.Or)
        after = b.append_basic_block("decided")
        sources = []
        for each in node.values[:-1]:
            truth, more = self.truth(each), b.append_basic_block("more")
            sources.append((ir.IntType(1)(int(decided)), b.block))
            b.cbranch(truth, *((after, more) if decided else (more, after)))
            b.position_at_end(more)
        sources.append((self.truth(node.values[-1]), b.block))
        b.branch(after)
        b.position_at_end(after)
        result = b.phi(ir.IntType(1))
        for value, block in sources:
            result.add_incoming(value, block)
        return result

    def value(self, node: ast.expr) -> Any:
        """An expression as an ``i64``."""
        b = self.builder
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return WORD64(int(node.value))
        if isinstance(node, ast.Name):
            if node.id in self.places:
                return b.load(self.places[node.id], typ=WORD64)
            constant = self.function.__globals__.get(node.id)
            if isinstance(constant, int):
                return WORD64(constant)
        elif isinstance(node, ast.Attribute) and node.attr == "byte_size" and isinstance(node.value, ast.Name):
            return WORD64(self.function.__globals__[node.value.id].byte_size)
        elif isinstance(node, ast.Attribute) and node.attr == "address":
            return self.value(node.value)
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            return self.load(*self.location(node))
        elif isinstance(node, ast.BinOp):
            return self.operate(node.op, self.value(node.left), self.value(node.right), node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert)):
            operand = self.value(node.operand)
            return b.neg(operand) if isinstance(node.op, ast.USub) else b.not_(operand)
        elif isinstance(node, (ast.Compare, ast.BoolOp)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return b.zext(self.truth(node), WORD64)
        elif isinstance(node, ast.IfExp):
            return self.conditional(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self.call(node.func.id, [self.value(each) for each in node.args], node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "at":
            return self.element(node.func.value, node.args[0])[0]
        raise self.wrong(node)

    def operate(self, operation: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        """An operator; division and remainder round down."""
        b = self.builder
        if isinstance(operation, (ast.FloorDiv, ast.Mod)):
            remainder = b.srem(left, right)
            apart = b.and_(
                b.icmp_signed("!=", remainder, WORD64(0)), b.icmp_signed("<", b.xor(remainder, right), WORD64(0))
            )
            if isinstance(operation, ast.Mod):
                return b.add(remainder, b.select(apart, right, WORD64(0)))
            return b.sub(b.sdiv(left, right), b.zext(apart, WORD64))
        if type(operation) not in _OPERATORS:
            raise self.wrong(node)
        return getattr(b, _OPERATORS[type(operation)])(left, right)

    # ---- structs ----------------------------------------------------------------------------------------------------

    def kind(self, node: ast.expr) -> Kind | None:
        """The kind of an expression; None for a number."""
        kind: Kind | None = None
        if isinstance(node, ast.Name):
            return self.kinds.get(node.id)
        if isinstance(node, ast.IfExp):
            return self.kind(node.body) or self.kind(node.orelse)
        if isinstance(node, ast.Attribute):
            struct = self.kind(node.value)
            if isinstance(struct, type) and node.attr in struct.fields:
                kind = struct.fields[node.attr].kind
        elif isinstance(node, ast.Subscript):
            pointer = self.kind(node.value)
            kind = pointer.element if isinstance(pointer, PtrTo) else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self.kind(node.func.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = self.function.__globals__.get(node.func.id)
            if isinstance(function, type) and issubclass(function, NativeStruct):
                return function
            return _declared(function, "return") if inspect.isfunction(function) else None
        return None if isinstance(kind, str) else kind

    def location(self, node: ast.expr) -> tuple[Any, Kind | None]:
        """The address of a field or an element, and its kind; None if its value is the address itself."""
        if isinstance(node, ast.Subscript):
            return self.element(node.value, node.slice)
        struct = self.kind(node.value) if isinstance(node, ast.Attribute) else None
        if not (isinstance(node, ast.Attribute) and isinstance(struct, type) and node.attr in struct.fields):
            raise self.wrong(node)
        field = struct.fields[node.attr]
        place = self.builder.add(self.value(node.value), WORD64(field.offset))
        return place, None if field.count else field.kind

    def element(self, pointer: ast.expr, k: ast.expr) -> tuple[Any, Kind | None]:
        """The address of an element, and its kind; None for a struct, whose value is the address itself."""
        kind, b = self.kind(pointer), self.builder
        if not isinstance(kind, PtrTo):
            raise self.wrong(pointer)
        place = b.add(self.value(pointer), b.mul(self.value(k), WORD64(size_of(kind.element))))
        return place, None if is_struct(kind.element) else kind.element

    def load(self, place: Any, kind: Kind | None) -> Any:
        """The value of a field or an element, an ``i64``."""
        if kind is None:
            return place
        b, bits = self.builder, _bits(kind)
        value = b.load(b.inttoptr(place, POINTER), typ=ir.IntType(bits), align=1)
        return value if bits == 64 else (b.zext if kind == "u8" else b.sext)(value, WORD64)

    def store(self, value: Any, place: Any, kind: Kind | None) -> None:
        """Assign to a field or an element."""
        if kind is None:
            raise SyntaxError(f"{symbol(self.function)} assigns to a struct")
        b, bits = self.builder, _bits(kind)
        b.store(value if bits == 64 else b.trunc(value, ir.IntType(bits)), b.inttoptr(place, POINTER), align=1)

    def conditional(self, node: ast.IfExp) -> Any:
        """``yes if condition else no``; only the chosen value is evaluated."""
        b = self.builder
        condition = self.truth(node.test)
        yes, no, after = (b.append_basic_block(name) for name in ("yes", "no", "chosen"))
        b.cbranch(condition, yes, no)
        sources = []
        for block, each in ((yes, node.body), (no, node.orelse)):
            b.position_at_end(block)
            sources.append((self.value(each), b.block))
            b.branch(after)
        b.position_at_end(after)
        result = b.phi(WORD64)
        for value, block in sources:
            result.add_incoming(value, block)
        return result

    def call(self, name: str, arguments: list[Any], node: ast.Call) -> Any:
        """A word of memory, min or max, or another function."""
        b = self.builder
        if name in ("min", "max") and len(arguments) == 2:
            left, right = arguments
            return b.select(b.icmp_signed("<" if name == "min" else ">", left, right), left, right)
        function = self.function.__globals__.get(name)
        if isinstance(function, type) and issubclass(function, NativeStruct) and len(arguments) == 1:
            return arguments[0]
        if not inspect.isfunction(function):
            raise self.wrong(node)
        if function.__module__ == _WORDS:
            return self.word(name, arguments)
        return b.call(self.translator.function(function), arguments)

    def word(self, name: str, arguments: list[Any]) -> Any:
        """A function of :mod:`~warpsan.engine.words`."""
        b = self.builder
        if name == "popcount":
            return b.ctpop(arguments[0])
        if name == "call_operation":
            signature = ir.FunctionType(WORD64, [POINTER, POINTER, WORD32, POINTER])
            function = b.inttoptr(arguments[0], signature.as_pointer())
            registers, record, context = (b.inttoptr(arguments[k], POINTER) for k in (1, 2, 4))
            return b.call(function, [registers, record, b.trunc(arguments[3], WORD32), context])
        if name in ("copy", "fill"):
            return self.stretch(name, arguments)
        place, bits = b.inttoptr(arguments[0], POINTER), int(name[len("load") :] or 0) if name[0] == "l" else 0
        if name.startswith("load"):
            value = b.load(place, typ=ir.IntType(bits), align=1)
            return value if bits == 64 else (b.zext if bits == 8 else b.sext)(value, WORD64)
        bits = int(name[len("store") :])
        value = arguments[1] if bits == 64 else b.trunc(arguments[1], ir.IntType(bits))
        b.store(value, place, align=1)
        return WORD64(0)

    def stretch(self, name: str, arguments: list[Any]) -> Any:
        """Copy or fill a range of memory."""
        b = self.builder
        target = b.inttoptr(arguments[0], POINTER)
        if name == "copy":
            intrinsic, second = "llvm.memmove.p0.p0.i64", b.inttoptr(arguments[1], POINTER)
        else:
            intrinsic, second = "llvm.memset.p0.i64", b.trunc(arguments[1], ir.IntType(8))
        signature = ir.FunctionType(ir.VoidType(), [POINTER, second.type, WORD64, ir.IntType(1)])
        function = self.module.globals.get(intrinsic) or ir.Function(self.module, signature, intrinsic)
        b.call(function, [target, second, arguments[2], ir.IntType(1)(0)])
        return WORD64(0)
