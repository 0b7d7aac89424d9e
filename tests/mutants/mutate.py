"""Which defects a module can be given, and the module with one of them; sources in, sources out."""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


class Mutant(NamedTuple):
    """One defect, named so that it is found again after changes elsewhere.

    It is the `number`th of its `kind` in the function, which is named with its class. The statement
    stands, without its blocks, in the lines `line` to `last_line`; `text` is for readers.
    """

    module: str
    function: str
    kind: str
    number: int
    line: int
    last_line: int
    text: str

    @property
    def name(self) -> str:
        """Stays the same wherever in its module the function stands."""
        return f"{self.module}:{self.function}:{self.kind}:{self.number}"


class _Site(NamedTuple):
    function: str
    kind: str
    number: int
    node: ast.AST
    statement: ast.stmt
    """The statement that the node is in."""


def find(module: str, source: str) -> list[Mutant]:
    """All defects that a module can be given, in the order of its text.

    Args:
        module: its path, as mutants are to name it.
        source: its text.
    """
    return [
        Mutant(
            module,
            *(site.function, site.kind, site.number),
            *_lines(site.statement),
            _first_line(site),
        )
        for site in _sites(ast.parse(source))
    ]


def apply(source: str, mutant: Mutant) -> str:
    """The module with the defect; comments are lost.

    Raises:
        LookupError: it has no such place.
    """
    tree = ast.parse(source)
    wanted = (mutant.function, mutant.kind, mutant.number)
    for site in _sites(tree):
        if (site.function, site.kind, site.number) == wanted:
            changed = _Replace(site.node, _changed(site.kind, site.node)).visit(tree)
            return ast.unparse(ast.fix_missing_locations(changed)) + "\n"
    raise LookupError(mutant.name)


def choose(sources: Mapping[str, str], count: int, *, most: int, seed: int) -> list[Mutant]:
    """A sample of all modules' mutants, in random order, so that its beginnings are samples too.

    Args:
        sources: the modules, path to text.
        count: of mutants; a module has as many as its share of all lines.
        most: of one module.
        seed: the same one chooses the same mutants of the same sources.
    """
    found = {module: find(module, sources[module]) for module in sorted(sources)}
    lines = {module: sources[module].count("\n") for module in found if found[module]}
    whole = sum(lines.values())
    chosen: list[Mutant] = []
    for module, size in lines.items():
        share = min(most, len(found[module]), max(1, round(count * size / whole)))
        # Seeded by module: what changes elsewhere does not change the choice here.
        chosen += random.Random(f"{seed}:{module}").sample(found[module], share)
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    counts: Counter[tuple[str, str]] = Counter()
    for function, statement in _statements(tree.body, "", in_function=False):
        for kind, node in _places(statement):
            yield _Site(function, kind, counts[function, kind], node, statement)
            counts[function, kind] += 1


def _statements(
    body: Sequence[ast.stmt], scope: str, *, in_function: bool
) -> Iterator[tuple[str, ast.stmt]]:
    """The statements within functions, with the name of their function."""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{scope}.{statement.name}".lstrip(".")
            is_function = not isinstance(statement, ast.ClassDef)
            yield from _statements(statement.body, name, in_function=is_function)
            continue
        if in_function:
            yield scope, statement
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, block, []), scope, in_function=in_function)
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body, scope, in_function=in_function)


def _places(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """What of a statement can be changed, its blocks aside: these have statements of their own."""
    match statement:
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield "removed", statement
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removed", statement
        case ast.Return(value) if value is not None:
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield "returned", statement
        case ast.If(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
                yield "negated", test
    for node in _expressions(statement):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                yield "compared", node
            case ast.BoolOp():
                yield "joined", node
            case ast.UnaryOp(op=ast.Not()):
                yield "not", node
            case ast.Constant(int()):  # True and False are as well
                yield "constant", node


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr | ast.keyword | ast.comprehension | ast.withitem):
                yield child
                yield from _expressions(child)


def _changed(kind: str, node: ast.AST) -> ast.AST:
    match kind, node:
        case "removed", _:
            return ast.Pass()
        case "returned", ast.Return(ast.Constant(bool(value))):
            return ast.Return(ast.Constant(not value))
        case "returned", _:
            return ast.Return(ast.Constant(None))
        case "negated", ast.expr():
            return ast.UnaryOp(ast.Not(), node)
        case "compared", ast.Compare(left, [operator], comparators):
            return ast.Compare(left, [_COMPARISONS[type(operator)]()], comparators)
        case "joined", ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case "not", ast.UnaryOp(operand=operand):
            return operand
        case "constant", ast.Constant(bool(value)):
            return ast.Constant(not value)
        case "constant", ast.Constant(int(value)):
            return ast.Constant(value + 1)
    raise AssertionError(kind)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._old:
            return self._new
        return super().visit(node)  # type: ignore[no-any-return]


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement, without its blocks."""
    body: list[ast.stmt] = getattr(statement, "body", [])
    last = body[0].lineno - 1 if body else statement.end_lineno
    return statement.lineno, max(statement.lineno, last or 0)


def _first_line(site: _Site) -> str:
    """The statement before and after, as far as its first lines tell."""
    after = copy.deepcopy(site.statement)
    before = ast.unparse(site.statement).partition("\n")[0]
    if site.node is site.statement:
        changed: ast.AST = _changed(site.kind, after)
    else:
        index = next(
            number for number, node in enumerate(ast.walk(site.statement)) if node is site.node
        )
        node = next(node for number, node in enumerate(ast.walk(after)) if number == index)
        changed = _Replace(node, _changed(site.kind, node)).visit(after)
    return f"{before}  ->  {ast.unparse(ast.fix_missing_locations(changed)).partition(chr(10))[0]}"
