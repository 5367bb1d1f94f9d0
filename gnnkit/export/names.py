"""Which names a piece of source takes from around it, and which of them it needs as soon as it is executed."""

from __future__ import annotations

import ast
import copy
import symtable
from dataclasses import dataclass

# What every module has by itself.
MODULE_NAMES = frozenset({"__name__", "__doc__", "__file__", "__builtins__", "__spec__", "__loader__", "__package__", "__annotations__"})


@dataclass(frozen=True)
class Names:
    """The names of the module around it that a piece of source reads.

    Attributes:
        used: All that must be there when it runs.
        eager: Those of them that it reads as it is executed, not only when something in it is called.
        annotations: Further ones that stand in annotations which nobody evaluates.
        bound: What it binds in the module by itself, with ``global`` statements as well.
    """

    used: frozenset[str]
    eager: frozenset[str]
    annotations: frozenset[str]
    bound: frozenset[str]


def names_of(tree: ast.Module, *, lazy_annotations: bool) -> Names:
    """The names of a module's source.

    Args:
        tree: The source.
        lazy_annotations: Whether annotations are not evaluated (``from __future__ import annotations``).

    Raises:
        SyntaxError: It is no module by itself, for example because of a ``nonlocal``.
    """
    whole, bound = _reads(tree)
    bare, _ = _reads(_changed(tree, _WithoutAnnotations()))
    used = bare if lazy_annotations else whole
    eager, _ = _reads(_changed(_changed(tree, _WithoutAnnotations()) if lazy_annotations else tree, _WithoutBodies()))
    quoted = frozenset[str]().union(*(_quoted_names(node) for node in ast.walk(tree)))
    return Names(used, eager & used, (whole | quoted) - used, bound)


def _changed(tree: ast.Module, change: ast.NodeTransformer) -> ast.Module:
    made: ast.Module = ast.fix_missing_locations(change.visit(copy.deepcopy(tree)))
    return made


def _reads(tree: ast.Module) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a module reads and does not bind on its way, and those that it binds."""
    top = symtable.symtable(ast.unparse(tree), "<export>", "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}
    read = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    waiting = list(top.get_children())
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global():
                if symbol.is_referenced():
                    read.add(symbol.get_name())
                if symbol.is_assigned():
                    bound.add(symbol.get_name())
    return frozenset(read), frozenset(bound)


class _WithoutAnnotations(ast.NodeTransformer):
    """Leaves annotations out; a field of a class keeps an annotation, which says nothing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


class _WithoutBodies(ast.NodeTransformer):
    """Leaves out what runs only when somebody calls it."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.body = [ast.Pass()]
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        node.body = ast.Constant(None)
        return self.generic_visit(node)


def _quoted_names(node: ast.AST) -> set[str]:
    """Names in the quoted parts of an argument's, a result's or a variable's annotation."""
    annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
    if not isinstance(annotation, ast.AST):
        return set()
    found: set[str] = set()
    for part in ast.walk(annotation):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                inner = ast.parse(part.value, mode="eval")
            except SyntaxError:
                continue
            found |= {name.id for name in ast.walk(inner) if isinstance(name, ast.Name)}
    return found


def attribute_chains(tree: ast.AST) -> set[str]:
    """Every ``a.b.c`` that begins with a name, as text, with all of its beginnings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts, base = [node.attr], node.value
            while isinstance(base, ast.Attribute):
                parts.append(base.attr)
                base = base.value
            if isinstance(base, ast.Name):
                found.add(".".join([base.id, *reversed(parts)]))
    return found
