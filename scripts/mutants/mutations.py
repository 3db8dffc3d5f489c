"""Small faults in Python code: where they can be, which are drawn, and how one is put into a file.

Kinds:

    off by one    an integer n becomes n + 1; < and <=, > and >= change places; a bound of a slice or range is one more
    negated test  a condition becomes its opposite; `and` and `or` change places
    lost call     a statement that only calls becomes `pass`

Left out is what cannot change a run: docstrings, annotations, `Literal[...]`, blocks of `TYPE_CHECKING` and of
`__name__ == "__main__"`, which no import runs; and code inside f-strings, whose place is unknown before Python 3.12.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.copies import room_of

KINDS = ("off by one", "negated test", "lost call")
_FLIPPED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
_SPACE = rb"(?:\s|\\\n|#[^\n]*\n|[()])*"


@dataclass(frozen=True, order=True)
class Key:
    """The identity of a mutation in every commit that has its line, wherever the line stands.

    Attributes:
        nth: which one, of those that are equal in the rest.
    """

    path: str
    scope: str
    kind: str
    text: str
    old: str
    new: str
    nth: int = 0

    @property
    def id(self) -> str:
        parts = (self.path, self.scope, self.kind, self.text, self.old, self.new, str(self.nth))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Mutation:
    """A key in one file.

    Attributes:
        line: from 1.
        lines: those of the statement that must run for the fault to matter; of a compound one, its head.
        at_import: whether it runs when the module is imported, and not in a function.
        edits: byte positions, from and to, and what stands there instead.
    """

    key: Key
    line: int
    lines: range
    at_import: bool
    edits: tuple[tuple[int, int, bytes], ...]

    def applied(self, source: bytes) -> bytes:
        """The file with the fault, all else as it was.

        Raises:
            SyntaxError: it is no Python.
        """
        compile(changed := edited(source, self.edits), self.key.path, "exec", dont_inherit=True)
        return changed


def edited(source: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    """A text in which each part from a position to another is replaced; positions are those of before."""
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def mutations(path: str, source: bytes) -> list[Mutation]:
    """All faults that a file can have, in the order of its lines."""
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    seen: Counter[Key] = Counter()
    numbered = []
    for one in sorted(found.found, key=lambda one: one.edits):
        numbered.append(replace(one, key=replace(one.key, nth=seen[one.key])))
        seen[one.key] += 1
    return numbered


def mutations_of(root: Path) -> dict[Key, Mutation]:
    """All faults that the files of agentrl/ can have."""
    files = sorted((root / "agentrl").rglob("*.py"))
    return {one.key: one for file in files for one in mutations(str(file.relative_to(root)), file.read_bytes())}


def draw(keys: Sequence[Key], weights: dict[str, int], count: int, seed: int) -> list[Key]:
    """So many faults, at least one of each room, the others by the rooms' weights; kinds take turns within a room.

    Each fault has a rank of its own by the seed: the draw stays as it is when others come or go.
    """
    rooms: dict[str, dict[str, list[Key]]] = defaultdict(lambda: defaultdict(list))
    for key in keys:
        rooms[room_of(key.path)][key.kind].append(key)
    drawn = []
    for room, seats in shares({room: weights[room] for room in rooms}, count).items():
        turns = sorted(KINDS, key=lambda kind: _rank(seed, f"{room} {kind}"))
        ranked = {kind: sorted(rooms[room][kind], key=lambda key: _rank(seed, key.id)) for kind in turns}
        drawn += _in_turns(ranked)[:seats]
    return drawn


def shares(weights: dict[str, int], count: int) -> dict[str, int]:
    """Seats by weight (Sainte-Laguë), at least one each."""
    seats = dict.fromkeys(sorted(weights), 1)
    for _ in range(count - len(seats)):
        seats[max(seats, key=lambda room: weights[room] / (2 * seats[room] + 1))] += 1
    return seats


def _in_turns(ranked: dict[str, list[Key]]) -> list[Key]:
    longest = max(map(len, ranked.values()))
    return [keys[k] for k in range(longest) for keys in ranked.values() if k < len(keys)]


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


@dataclass
class _Finder:
    """Walks a module, and notes each fault with the scope and the statement that it stands in."""

    path: str
    source: bytes
    scope: tuple[str, ...] = ()
    running: bool = False
    """True if the code is in a function."""
    statement: ast.stmt | None = None
    found: list[Mutation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def visit(self, node: ast.AST | None) -> None:
        if node is None or _never_matters(node):
            return
        outer = self.scope, self.running, self.statement
        if isinstance(node, ast.stmt):
            self.statement = node
        for fault in (self._off_by_one, self._negated, self._lost):
            fault(node)
        self._enter(node)
        self.scope, self.running, self.statement = outer

    def _enter(self, node: ast.AST) -> None:
        """Visits what is below a node, without annotations; the body of a function runs later than its head."""
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            inside = self.scope, self.running
            if name == "body" and named:
                self.scope = (*self.scope, node.name)  # type: ignore[attr-defined]
            if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self.running = True
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)
            self.scope, self.running = inside

    def _off_by_one(self, node: ast.AST) -> None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            self._note("off by one", node, [(*self._span(node), str(node.value + 1).encode())])
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                if type(operator) in _FLIPPED:
                    old, new = _FLIPPED[type(operator)]
                    self._note("off by one", node, [(*self._between(left, right, old), new.encode())])
        for bound in _bounds(node):
            start, end = self._span(bound)
            self._note("off by one", bound, [(start, end, b"(%s) + 1" % self.source[start:end])])

    def _negated(self, node: ast.AST) -> None:
        for test in _tests(node):
            start, end = self._span(test)
            self._note("negated test", test, [(start, end, b"(not (%s))" % self.source[start:end])])
        if isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            pairs = zip(node.values, node.values[1:], strict=False)
            self._note("negated test", node, [(*self._between(*pair, old), new.encode()) for pair in pairs])

    def _lost(self, node: ast.AST) -> None:
        if isinstance(node, ast.Expr):
            called = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(called, ast.Call):
                self._note("lost call", node, [(*self._span(node), b"pass")])

    def _note(self, kind: str, node: ast.expr | ast.stmt, edits: list[tuple[int, int, bytes]]) -> None:
        assert self.statement is not None
        first, last = edits[0][0], edits[-1][1]
        old = self.source[first:last].decode()
        new = edited(self.source[first:last], [(start - first, end - first, text) for start, end, text in edits])
        line = self.source[:first].count(b"\n") + 1
        self.found.append(
            Mutation(
                key=Key(
                    path=self.path,
                    scope=".".join(self.scope),
                    kind=kind,
                    text=self._line(line).strip(),
                    old=old,
                    new=new.decode(),
                ),
                line=line,
                lines=_head(self.statement),
                at_import=not self.running,
                edits=tuple(edits),
            )
        )

    def _line(self, number: int) -> str:
        return self.source[self._starts[number - 1] : self._starts[number]].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _between(self, left: ast.expr, right: ast.expr, operator: str) -> tuple[int, int]:
        """The place of an operator between two operands, which comments and parentheses may surround."""
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.compile(_SPACE + b"(" + re.escape(operator.encode()) + b")").match(self.source, start, end)
        assert found, self.source[start:end]
        return found.span(1)


def _bounds(node: ast.AST) -> Iterator[ast.expr]:
    """Bounds of a slice or range that are no numbers: those are numbers off by one already."""
    bounds: list[ast.expr | None] = []
    if isinstance(node, ast.Slice):
        bounds = [node.lower, node.upper]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        bounds = [*node.args[:2]]
    for bound in bounds:
        number = bound.operand if isinstance(bound, ast.UnaryOp) else bound
        if bound is not None and not isinstance(number, ast.Constant | ast.Starred):
            yield bound


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.match_case):
        return [node.guard] if node.guard else []
    return []


def _head(statement: ast.stmt) -> range:
    """The lines of a statement, without those of the statements below it."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    first = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
    return range(statement.lineno, max(first, statement.lineno + 1))


def _never_matters(node: ast.AST) -> bool:
    """Returns True if nothing below a node can change a run."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] == "Literal":
        return True
    return isinstance(node, ast.If) and _only_read_or_only_run(ast.unparse(node.test))


def _only_read_or_only_run(test: str) -> bool:
    return test.split(".")[-1] == "TYPE_CHECKING" or test.replace("'", '"') == '__name__ == "__main__"'
