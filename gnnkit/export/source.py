"""The source of a function with everything that it uses, as one file that a person can read and edit."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from gnnkit.arguments import check_takes
from gnnkit.errors import PlanError
from gnnkit.export.code import (
    MODULE_NAMES,
    Library,
    Names,
    Statement,
    Unit,
    class_node,
    function_node,
    importable,
    is_installed,
    is_within,
    literal_text,
    names_of,
    own_functions,
    same_literal,
)
from gnnkit.export.job import TRAIN
from gnnkit.files import read_text
from gnnkit.plan import Sampling
from gnnkit.plan.sampling import check_module


def changed_defaults(name: str, value: Any, node: Any, scope: Scope) -> list[PlanError]:
    """A default that was computed from a name which has another value by now would silently become another one."""
    function = inspect.unwrap(value) if callable(value) else value
    if not isinstance(function, FunctionType) or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return []
    problems: list[PlanError] = []
    arguments, made = node.args, inspect.signature(function).parameters
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if isinstance(default, ast.Name) and scope.has(default.id):
            actual, now = made[argument.arg].default, scope.value(default.id)
            if now is not actual and not (literal_text(now) is not None and same_literal(now, actual)):
                problems.append(
                    PlanError(
                        f"{name}({argument.arg}={default.id}) was defined when {default.id} was {actual!r:.60}, and now it is {now!r:.60}",
                        f"run the cell of {name} again",
                    )
                )
    return problems


def changed_attributes(value: Any, node: Any, unit: Unit) -> list[PlanError]:
    """A class that was changed after it was made is not what its source says."""
    if not isinstance(value, type) or not isinstance(node, ast.ClassDef):
        return []
    problems: list[PlanError] = []
    written = {getattr(statement, "name", None) for statement in node.body}
    for name, function in own_functions(value).items():
        # Methods that a base or a decorator has made are of an installed module, or of no file.
        generated = function.__code__.co_filename.startswith("<") or is_installed(function.__module__ or "builtins")
        if not generated and not is_within(function.__code__, unit, node) and name not in written:
            problems.append(PlanError(f"{value.__name__}.{name} was set after the class was made", "write it in the class"))
    for statement in node.body:
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target] if isinstance(statement, ast.AnnAssign) else []
        )
        for target in targets:
            if not isinstance(target, ast.Name) or target.id not in vars(value):
                continue
            actual = vars(value)[target.id]
            try:
                written = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
            except (ValueError, TypeError, SyntaxError):
                continue
            if literal_text(actual) is not None and not same_literal(written, actual):
                problem = f"{value.__name__}.{target.id} is {actual!r:.60}, and the class says {written!r:.60}"
                problems.append(PlanError(problem, "write it in the class, and run its cell again"))
    return problems


_OWN = "_sitebuiltins", "builtins", "io", "_io"


@dataclass(frozen=True, eq=False)
class Scope:
    """The namespaces in which the names of a definition are looked up.

    Attributes:
        namespace: The module around it.
        closure: The variables of functions around it.
    """

    namespace: Mapping[str, Any]
    closure: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: FunctionType) -> Scope:
        """That of a function."""
        closure = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not assigned yet
                closure[name] = cell.cell_contents
        return cls(function.__globals__, closure)

    def has(self, name: str) -> bool:
        """Whether a name has a value that is not one of Python's own; IPython adds some to ``builtins``."""
        if name in self.closure or name in self.namespace:
            return True
        return hasattr(builtins, name) and (getattr(getattr(builtins, name), "__module__", None) or "builtins") not in _OWN

    def value(self, name: str) -> Any:
        """The value of a name that it ``has``."""
        if name in self.closure:
            return self.closure[name]
        return self.namespace[name] if name in self.namespace else getattr(builtins, name)


def _other_name(name: str, value: Any, inner: Any, scope: Scope, library: Library) -> str:
    """Another name of a definition, under which it can be brought along.

    Raises:
        PlanError: There is none.
    """
    own_name, nested = inner.__name__, "<locals>" in inner.__qualname__
    for other, there in scope.namespace.items():
        if there is value and other != name and ((other == own_name and not nested) or library.decorated(other, scope.namespace)):
            return other
    if inner is value:
        raise PlanError(f"`{name}` is another name of {own_name}, which is not there any more", f"define it under the name {name}")
    raise PlanError(
        f"`{name}` is what a call made of the function {own_name}()", f"decorate {own_name}() with @ in its cell, or make the call in train"
    )


def _module(name: str, module: ModuleType) -> str:
    """The line that imports a module.

    Raises:
        PlanError: Other machines do not have it.
    """
    full = module.__name__
    if sys.modules.get(full) is not module or full == "__main__":
        raise PlanError(f"`{name}` is a module that cannot be imported", "use one that can be installed")
    if not is_installed(full):
        raise PlanError(
            f"`{name}` is the module {full}, a file of yours that other machines do not have",
            f"write `from {full} import ...`, and the functions are brought along; or install it as a package",
        )
    return f"import {full}" if full == name else f"import {full} as {name}"


def _from(module: str, name: str, bound: str) -> str:
    return f"from {module} import {name}" if name == bound else f"from {module} import {name} as {bound}"


def _import_line(name: str, value: Any, scope: Scope, library: Library) -> str | None:
    """The import that the user wrote for a name, if it still stands for the same object and works on other machines."""
    if name not in scope.namespace:
        return None
    for _, statement in library.statements(scope.namespace):
        for module, attribute, bound in _imports_in(statement):
            if bound not in (name, "*") or not is_installed(module):
                continue
            home = sys.modules.get(module)
            if attribute is None:
                if home is value and bound != module:
                    return f"import {module} as {name}"
            elif bound == "*":
                if home is not None and getattr(home, name, None) is value and not isinstance(value, _LITERALS):
                    return _from(module, name, name)
            elif home is not None and getattr(home, attribute, sys.modules.get(f"{module}.{attribute}")) is value:
                return _from(module, attribute, name)
    return None


_LITERALS = (int, float, str, bytes, tuple, type(None))


def _imports_in(statement: ast.stmt) -> Iterator[tuple[str, str | None, str]]:
    """Module, attribute of it and bound name of what a statement imports; plain ``import a.b`` binds ``a`` and is left out."""
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        for alias in statement.names:
            yield statement.module, alias.name, alias.asname or alias.name
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.asname:
                yield alias.name, None, alias.asname


def submodules(scope: Scope, library: Library) -> set[str]:
    """Returns the submodules that the ``import a.b`` statements of a module name."""
    imports = (statement for _, statement in library.statements(scope.namespace) if isinstance(statement, ast.Import))
    return {alias.name for statement in imports for alias in statement.names if "." in alias.name and not alias.asname}


def _what(value: Any) -> str:
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, which is neither an import, a definition nor a literal"


def _advice(name: str, value: Any) -> str:
    if _is_a(value, "gnnkit.graph_loader", "GraphLoader"):
        return f"use the loader that train(loader, ctx) is given, or make {name} of it in train: loader.for_split('valid')"
    if _is_a(value, "torch.nn", "Module"):
        return f"create {name} in train: a class or function that does it is brought along"
    if _is_a(value, "torch", "Tensor") or type(value).__module__.startswith("numpy"):
        return f"write the number out ({name} = ...item()), or save {name} to a file and load it in train"
    if hasattr(value, "read") and hasattr(value, "close"):
        return f"open {name} in train"
    if isinstance(value, (list, dict, tuple, set, str, bytes)):
        return f"hold only plain numbers, texts and containers of them in {name}, and not too many, or make it in train"
    return f"make {name} in train, or in a function that train calls"


def _is_a(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class; a module that is not imported has no values."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


NAME = "train"


def file_source(path: Path) -> str:
    """The source of a file that defines ``train``, as it is.

    Raises:
        PlanError: It cannot be read, is no Python, defines no ``train``, or imports a file that other machines do not have.
    """
    try:
        text = read_text(path)
        tree = ast.parse(text, str(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise PlanError(f"train={str(path)!r} cannot be read: {error}", "name a Python file that defines train(loader, ctx)") from error
    if NAME not in names_of(tree, lazy_annotations=True).bound:
        raise PlanError(f"{str(path)!r} defines no train", "write `def train(loader, ctx): ...` in it")
    _check_imports(tree, path.parent)
    return text


def check_train(function: Any) -> None:
    """Checks that something can be called as ``train(loader, ctx)`` and has source.

    Raises:
        PlanError: It cannot, or has none.
    """
    hint = "def train(loader, ctx): ..."
    if not callable(function) or not isinstance(inspect.unwrap(function), FunctionType):
        raise PlanError(f"train must be a function, got {function!r}", hint)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise PlanError(f"{function.__name__}() must be a plain function, without async and yield", hint)
    check_takes(function, 2, "with a loader and a context", hint)


def check_source(text: str) -> None:
    """Checks that a file which was put together is Python and that no name in it is left free.

    Raises:
        PlanError: It is not, or one is.
    """
    try:
        tree = ast.parse(text)
        compile(tree, "train.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PlanError(
            f"what was brought along is no Python by itself: {error}", "define train and what it uses outside of functions"
        ) from error
    lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    names = names_of(tree, lazy_annotations=lazy)
    free = sorted(name for name in names.used - names.bound - MODULE_NAMES if not is_builtin(name))
    assert not free, f"names without a meaning: {free}"
    _check_imports(tree, None)


def is_builtin(name: str) -> bool:
    """Whether every Python knows a name by itself."""
    return not Scope({}).has(name) and hasattr(builtins, name)


def sampler_files(sampling: Sampling) -> dict[str, str]:
    """The files that define a way of sampling, ``{file name: text}``; none of what an installed package brings.

    Raises:
        PlanError: Other machines could not import them: the notebook itself defines it, or a part of a folder that is not installed.
    """
    check_module(sampling)
    found = {}
    for module in sampling.modules:
        if is_installed(module):
            continue
        file = sys.modules[module].__file__ if module in sys.modules else None
        if "." in module or file is None or f"{module}.py" == TRAIN:
            raise PlanError(
                f"the sampler {sampling.kind!r} is defined in {module}, which other machines do not have",
                f"install its package, or put it into one file of another name than {TRAIN}, which is brought along",
            )
        found[f"{module}.py"] = read_text(Path(file))
        _check_imports(ast.parse(found[f"{module}.py"]), Path(file).parent, module)
    return found


def _check_imports(tree: ast.Module, folder: Path | None, who: str = NAME) -> None:
    """Looks at imports wherever they are: in functions, too."""
    for node in ast.walk(tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "."] if not node.level else ["." * node.level + (node.module or "")]
        for module in modules:
            top = module.partition(".")[0]
            beside = folder is not None and top and ((folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists())
            if not top or beside or not is_installed(module):
                raise PlanError(
                    f"{who} imports {module}, a file of yours that other machines do not have",
                    "install it as a package, or export a function from a cell or script: what it uses is brought along",
                )


def in_order(pieces: Sequence[Definition]) -> list[Definition]:
    """Definitions so that each comes after what it needs to be executed, and otherwise after what it uses, ``train`` last."""
    by_name = {piece.name: piece for piece in pieces}
    needs = {name: _needs(piece, by_name) for name, piece in by_name.items()}
    preferred: list[str] = []
    for piece in sorted(pieces, key=lambda piece: piece.line):
        _visit(piece.name, {name: each.names.used for name, each in by_name.items()}, preferred, set())
    done: list[str] = []
    for name in preferred:
        _visit(name, needs, done, set())
    return [by_name[name] for name in done]


def _needs(piece: Definition, by_name: Mapping[str, Definition]) -> frozenset[str]:
    """Returns the names that a definition needs when it is executed: those that it reads, and those of functions that it calls."""
    used = {name: each.names.used & by_name.keys() for name, each in by_name.items()}
    eager = {name: each.names.eager & by_name.keys() for name, each in by_name.items()}
    called = {name for start in eager[piece.name] for name in _reached(start, used)}
    # What needs the definition itself cannot come before it.
    return piece.names.eager | {name for name in called if piece.name not in {name, *_reached(name, eager)}}


def _reached(start: str, edges: Mapping[str, frozenset[str]]) -> set[str]:
    """The names to which edges lead from one."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        further = edges[waiting.pop()] - found
        found |= further
        waiting += further
    return found


def _visit(name: str, edges: Mapping[str, frozenset[str]], done: list[str], under_way: set[str]) -> None:
    if name in done or name in under_way or name not in edges:
        return
    under_way.add(name)
    for other in sorted(edges[name]):
        _visit(other, edges, done, under_way)
    done.append(name)


_HEADER = '''"""{}

`gnnkit run plan.json --train train.py` calls train(loader, ctx) in every rank; ctx is a gnnkit.jobs.context.TrainContext.
"""'''


@dataclass(frozen=True)
class Definition:
    """A definition that goes into the file.

    Attributes:
        name: What it defines.
        text: Its source.
        names: The names that it reads.
        line: Where it was written, to keep an order that people know.
    """

    name: str
    text: str
    names: Names
    line: int


def function_source(function: Callable[..., Any], about: str) -> str:
    """A file that defines a function as ``train``, with the imports, definitions and constants that it uses.

    Args:
        function: ``train(loader, ctx)``, from a cell, a script or a module.
        about: The file's first line.

    Raises:
        PlanError: It is no such function, its source is not to be found or has changed since, or it uses something that cannot be brought
            along.
    """
    check_train(function)
    inner = inspect.unwrap(function)
    assert isinstance(inner, FunctionType)
    program, scope = _Program(), Scope.of(inner)
    own, statement = _written_as(function, inner, scope, program.library)
    named = NAME if own == "<lambda>" else own
    program.values[named] = function
    program.bring(named, function, scope, statement)
    if program.problems:
        raise _joined(function.__name__, program.problems)
    if named != NAME:
        program.rename(named)
    text = program.text(about)
    check_source(text)
    return text


def _written_as(function: Any, inner: FunctionType, scope: Scope, library: Library) -> tuple[str, Any]:
    """The name that a function was defined with, and the statement that did it where its code does not tell: it is decorated."""
    if inner is not function or "<locals>" in inner.__qualname__:
        for namespace in (scope.namespace, vars(sys.modules["__main__"])):
            for name, value in list(namespace.items()):
                if value is function and (statement := library.decorated(name, namespace)) is not None:
                    return name, statement
    if inner is not function:
        hint = f"decorate {inner.__name__}() with @ in its cell, or export that function itself"
        raise PlanError(f"train is what a call made of the function {inner.__name__}()", hint)
    return inner.__name__, None


def _joined(name: str, problems: list[PlanError]) -> PlanError:
    if len(problems) == 1:
        return PlanError(f"{name}() cannot be exported: {problems[0].message}", problems[0].hint)
    return PlanError(
        f"{name}() cannot be exported: " + "; ".join(problem.message for problem in problems),
        "; ".join(dict.fromkeys(problem.hint for problem in problems if problem.hint)),
    )


def _is_lazy(value: Any) -> bool:
    import __future__

    functions = [value] if isinstance(value, FunctionType) else list(own_functions(value).values()) if isinstance(value, type) else []
    return any(function.__code__.co_flags & __future__.annotations.compiler_flag for function in functions)


def _alias(name: str, other: str) -> Definition:
    text = f"{name} = {other}"
    return Definition(name, text, names_of(ast.parse(text), lazy_annotations=False), 1 << 30)


class _Program:
    """The file that is put together: what has been collected, by the name that it gets there."""

    def __init__(self) -> None:
        self.library = Library()
        self.values: dict[str, Any] = {}
        self.imports: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self.pieces: dict[str, Definition] = {}
        self.problems: list[PlanError] = []
        self.has_lazy_annotations = False

    def bring(self, name: str, value: Any, scope: Scope, statement: Statement | None = None) -> None:
        """Brings a definition along, and whatever it uses.

        Args:
            name: Its name in the file.
            value: The function or class, or what a decorator made of one.
            scope: Where its name was looked up.
            statement: The statement that made it, where its code does not tell.
        """
        unit, node, inner_scope = self._located(value, scope, statement)
        text = unit.segment(node)
        if isinstance(node, ast.Lambda):
            text = f"{name} = {text}"
        lazy = any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in unit.tree.body) or _is_lazy(value)
        self.has_lazy_annotations |= lazy
        try:
            tree = ast.parse(text)
            names = names_of(tree, lazy_annotations=lazy)
        except SyntaxError as error:
            raise PlanError(f"{name} cannot stand by itself: {error}", "define it outside of functions") from error
        self.pieces[name] = Definition(name, text, names, node.lineno)
        self.problems += changed_defaults(name, value, node, inner_scope) + changed_attributes(value, node, unit)
        attributes = {ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        for module in submodules(inner_scope, self.library):
            if module in attributes and is_installed(module):
                self.imports[module] = f"import {module}"
        changed = {name for name in names.bound if name in inner_scope.namespace}  # with a ``global`` statement
        for used in sorted(names.used | changed):
            self._add(used, name, inner_scope)
        for mentioned in sorted(names.annotations):
            if inner_scope.has(mentioned):
                kept, self.problems = self.problems, []
                self._add(mentioned, name, inner_scope)  # it is not needed to run
                self.problems = kept

    def _located(self, value: Any, scope: Scope, statement: Statement | None) -> tuple[Unit, Any, Scope]:
        """The unit and the node that defined something, and where its names are looked up."""
        if statement is not None:
            return (*statement, Scope(scope.namespace))
        if isinstance(value, type):
            unit, node = class_node(self.library, value)
            closure: dict[str, Any] = {}
            home = sys.modules.get(value.__module__)
            namespace = scope.namespace if home is None else vars(home)
            for function in own_functions(value).values():
                if is_within(function.__code__, unit, node):
                    within = Scope.of(function)
                    closure |= {name: cell for name, cell in within.closure.items() if name != "__class__"}
                    namespace = within.namespace
            return unit, node, Scope(namespace, closure)
        function = inspect.unwrap(value)
        found = self.library.named(function.__code__.co_filename, function.__globals__)
        if found is None:
            raise PlanError(f"the source of {function.__qualname__}() cannot be found", "define it in a cell, a script or a module")
        return found, function_node(found, function), Scope.of(function)

    def _add(self, name: str, user: str, scope: Scope) -> None:
        """Adds what a definition uses under a name, unless it is there."""
        if name in MODULE_NAMES:
            return
        if not scope.has(name):
            if not is_builtin(name) and not any(name in piece.names.bound for piece in self.pieces.values()):
                self.problems.append(PlanError(f"`{name}`, which {user} uses, is not defined", f"define {name}, or take it out of {user}"))
            return
        value = scope.value(name)
        if name in self.values:
            known = self.values[name]
            if known is not value and not (literal_text(known) is not None and same_literal(known, value)):
                self.problems.append(
                    PlanError(
                        f"`{name}` is two different things: {known!r:.60} and, for {user}, {value!r:.60}", "give one of them another name"
                    )
                )
            return
        self.values[name] = value
        try:
            self._take(name, value, scope)
        except PlanError as error:
            head, tail = f"`{name}`, which {user} uses", error.message.removeprefix(f"`{name}`")
            message = f"{head},{tail}" if tail != error.message else f"{head}: {error.message}"
            self.problems.append(PlanError(message, error.hint))

    def _take(self, name: str, value: Any, scope: Scope) -> None:
        """Has the file get the object that a name stands for.

        Raises:
            PlanError: It cannot get it; the message names the object, the hint what to do.
        """
        inner = inspect.unwrap(value) if isinstance(value, FunctionType) or hasattr(value, "__wrapped__") else value
        if name not in scope.closure and (line := _import_line(name, value, scope, self.library)) is not None:
            self.imports[name] = line
        elif isinstance(value, ModuleType):
            self.imports[name] = _module(name, value)
        elif (place := importable(value)) is not None:
            self.imports[name] = _from(place[0], place[1], name)
        elif isinstance(value, type) or isinstance(inner, FunctionType):
            is_plain = inner is value and inner.__name__ in (name, "<lambda>")
            hidden = not is_plain or "<locals>" in inner.__qualname__  # its code does not tell where it was made
            statement = self.library.decorated(name, scope.namespace) if hidden else None
            if is_plain or statement is not None:
                self.bring(name, value, scope, statement)
            else:
                other = _other_name(name, value, inner, scope, self.library)
                self._add(other, name, scope)
                self.pieces[name] = _alias(name, other)
        elif (text := literal_text(value)) is not None:
            self.constants[name] = text
        elif (statement := self.library.decorated(name, scope.namespace)) is not None:
            self.bring(name, value, scope, statement)
        else:
            raise PlanError(f"`{name}` is {_what(value)}", _advice(name, value))

    def rename(self, own: str) -> None:
        """Has the file define ``train``: under its own name where others call it by that, else in place of that."""
        if NAME in self.values:
            raise PlanError(
                f"{own}() uses something that is called train, which must be the name of {own}() in the file", "rename one of them"
            )
        piece = self.pieces[own]
        header = re.compile(rf"^(\s*def\s+){re.escape(own)}\b", re.MULTILINE)
        mentioned = [other for other in self.pieces.values() if own in other.names.used]
        if not mentioned and len(header.findall(piece.text)) == 1:
            del self.pieces[own]
            text = header.sub(rf"\g<1>{NAME}", piece.text)
            self.pieces[NAME] = Definition(NAME, text, piece.names, piece.line)
        else:
            self.pieces[NAME] = _alias(NAME, own)

    def text(self, about: str) -> str:
        """The text of the file, whose first line says what it is: imports, constants, definitions."""
        # ``import a.b`` does what ``import a`` does.
        implied = {f"import {name.partition('.')[0]}" for name, line in self.imports.items() if "." in name}
        lines = sorted({*self.imports.values()} - implied, key=lambda line: (line.startswith("from "), line.lower()))
        # Python's own come before others', and gnnkit's last.
        groups: list[list[str]] = [["from __future__ import annotations"] * self.has_lazy_annotations, [], [], []]
        for line in lines:
            top = line.split()[1].partition(".")[0]
            groups[1 if top in sys.stdlib_module_names else 3 if top == "gnnkit" else 2].append(line)
        constants = [f"{name} = {value}" for name, value in self.constants.items()]
        head = [_HEADER.format(about), *("\n".join(group) for group in (*groups, constants) if group)]
        return "\n\n\n".join(["\n\n".join(head), *(piece.text.rstrip() for piece in in_order(list(self.pieces.values())))]) + "\n"
