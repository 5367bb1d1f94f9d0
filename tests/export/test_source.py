"""A function's source with what it uses: from scripts, and from modules that are nowhere installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gnnkit.errors import PlanError
from gnnkit.export.source import file_source, function_source

Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a module of the user's: a file that no distribution has."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write_and_import(text: str, name: str = "users_own") -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield write_and_import
    for name in made:
        sys.modules.pop(name, None)


def run(source: str) -> Any:
    """The ``train`` of a file that was put together, executed where nothing of what it came from is."""
    module = sys.modules["exported_train"] = ModuleType("exported_train")
    exec(compile(source, "train.py", "exec", dont_inherit=True), vars(module))
    return module.train


@pytest.fixture(autouse=True, scope="module")
def no_exported_module() -> Iterator[None]:
    yield
    sys.modules.pop("exported_train", None)


def refused(module: ModuleType, name: str = "train") -> PlanError:
    with pytest.raises(PlanError) as caught:
        function_source(getattr(module, name), "About.")
    assert caught.value.hint, "it says what to do"
    return caught.value


def test_everything_that_a_function_uses_comes_along(load: Load) -> None:
    module = load('''
import math as m
import xml.etree.ElementTree
from collections import OrderedDict as Ordered, deque
from functools import wraps
from json import *
SIZES = {"a": [1, -2.5], "b": (None, b"x")}
LIMIT = float("inf")
calls = 0
def twice(function):
    @wraps(function)
    def call(*args):
        return function(*args) * FACTOR
    return call
FACTOR = 2
class Base:
    unit = FACTOR
    def other(self):
        return Derived()
class Derived(Base):
    size = len(SIZES)
    label: "Base"
    def area(self) -> "Derived":
        return helper(self.unit * self.size)
helper = lambda value: m.floor(value + 0.5)
@twice
def scaled(value, by=FACTOR, *, keyword=FACTOR):
    return value * by + keyword
def count():
    global calls, fresh
    calls += 1
    fresh = 7
    return calls + fresh
def train(loader, ctx):
    """What it does."""
    # a comment
    def inner(value):
        return [scaled(each) for each in (value, value)]
    node = xml.etree.ElementTree.fromstring(f"<a b='{loader}'/>")
    deep = deque([count(), count()])
    assertion = Base().other().area()
    return (inner(3), list(deep), assertion, node.attrib["b"], dumps(Ordered(k=1)), LIMIT > SIZES["a"][0], __name__)
''')
    source = function_source(module.train, "About.")
    assert source.startswith('"""About.')
    assert "# a comment" in source
    assert "users_own" not in source
    assert run(source)(1, None) == ([16, 16], [8, 9], 4, "1", '{"k": 1}', True, "exported_train")
    assert module.train(1, None)[:5] == ([16, 16], [8, 9], 4, "1", '{"k": 1}')


def test_the_file_is_laid_out_for_people(load: Load) -> None:
    module = load("""
import numpy as np
import os
from gnnkit.errors import PlanError
RATE = 0.1
def fit(loader, ctx):
    return np.asarray(RATE), os.sep, PlanError, helper()
def helper():
    return 1
""")
    assert (
        function_source(module.fit, "About.").split("\n\n", 2)[2]
        == """import os

import numpy as np

from gnnkit.errors import PlanError

RATE = 0.1


def helper():
    return 1


def train(loader, ctx):
    return np.asarray(RATE), os.sep, PlanError, helper()
"""
    )


def test_a_function_that_calls_itself_keeps_its_name(load: Load) -> None:
    module = load("def fit(loader, ctx):\n    return loader if loader < 2 else loader * fit(loader - 1, ctx)\n")
    source = function_source(module.fit, "About.")
    assert source.endswith("train = fit\n")
    assert run(source)(4, None) == 24


def test_lambdas_and_nested_functions_with_literals_around_them(load: Load) -> None:
    module = load('''
def make(rate):
    text = """
  two
    lines"""
    def fit(loader, ctx):
        local = """
      kept
    as it is"""
        return rate * loader, text, local
    return fit
nested = make(0.5)
anonymous = lambda loader, ctx: loader + ctx
''')
    assert run(function_source(module.nested, "About."))(4, None) == module.nested(4, None)
    assert run(function_source(module.anonymous, "About."))(4, 5) == 9


def test_decorators_that_hide_what_they_decorate(load: Load) -> None:
    module = load("""
import functools
def hiding(function):
    def wrapper(*args):
        return ("hidden", function(*args))
    return wrapper
@hiding
def helper(value):
    return value
@functools.lru_cache(maxsize=None)
def cached(value):
    return value + 1
@hiding
def train(loader, ctx):
    return helper(cached(loader))
other = helper
def uses_other(loader, ctx):
    return other(loader)
""")
    assert run(function_source(module.train, "About."))(1, None) == ("hidden", ("hidden", 2))
    assert run(function_source(module.uses_other, "About."))(1, None) == ("hidden", 1)


def test_classes_of_every_kind(load: Load) -> None:
    module = load("""
from __future__ import annotations
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TYPE_CHECKING
if TYPE_CHECKING:
    from nowhere import Missing
class Color(Enum):
    RED = 1
@dataclass
class Config:
    rate: float = 0.5
    colors: list[Missing] = field(default_factory=lambda: [Color.RED])
class Pair(NamedTuple):
    left: int
    right: int = 2
class Meta(type):
    def __new__(mcs, name, bases, body):
        return super().__new__(mcs, name, bases, {**body, "made": name})
class Plain(metaclass=Meta):
    @staticmethod
    def one(): return 1
    @classmethod
    def named(cls): return cls.made
    @property
    def both(self): return self.one(), self.named()
def train(loader: Missing, ctx) -> Config:
    return Config().colors[0].name, Pair(1), Plain().both
""")
    made = run(function_source(module.train, "About."))(None, None)
    assert (made[0], tuple(made[1]), made[2]) == ("RED", (1, 2), (1, "Plain"))


def test_functions_of_files_beside_the_notebook_come_along(load: Load) -> None:
    load("import math\nSCALE = 3\ndef scaled(value):\n    return math.floor(value) * SCALE\n", "beside")
    module = load("from beside import scaled\ndef train(loader, ctx):\n    return scaled(loader)\n")
    source = function_source(module.train, "About.")
    assert "beside" not in source
    assert run(source)(1.5, None) == 3


def test_a_module_beside_the_notebook_cannot_come_along(load: Load) -> None:
    load("def scaled(value):\n    return value\n", "beside")
    error = refused(load("import beside\ndef train(loader, ctx):\n    return beside.scaled(loader)\n"))
    assert "`beside`" in error.message
    assert "from beside import" in str(error.hint)
    assert (
        "beside" in refused(load("def train(loader, ctx):\n    from beside import scaled\n    return scaled(loader)\n", "second")).message
    )


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("import numpy as np\nused = np.ones(2)", "numpy.ndarray"),
        ("import numpy as np\nused = np.float64(2)", "numpy.float64"),
        ("used = open(__file__)\nused.close()", "TextIOWrapper"),
        ("class Thing: pass\nused = Thing()", "Thing"),
        ("import functools\nused = functools.partial(print)", "partial"),
        ("used = [object()]", "list"),
        ("used = list(range(100000))", "list"),
        ("used = (n for n in ())", "generator"),
        ("import threading\nused = threading.Lock()", "lock"),
    ],
)
def test_a_value_that_is_no_literal_is_named(load: Load, setting: str, what: str) -> None:
    error = refused(load(f"{setting}\ndef train(loader, ctx):\n    return used\n"))
    assert "`used`, which train uses" in error.message
    assert what in error.message


def test_tensors_models_and_names_without_a_value_are_named_together(load: Load) -> None:
    error = refused(
        load("import torch\nt = torch.ones(2)\nmodel = torch.nn.Linear(2, 2)\ndef train(loader, ctx):\n    return model(t) + lost\n")
    )
    assert all(f"`{name}`, which train uses" in error.message for name in ("t", "model", "lost"))
    assert "create model in train" in str(error.hint)


def test_a_closure_variable_that_is_no_literal_is_named(load: Load) -> None:
    module = load("def make(thing):\n    def train(loader, ctx):\n        return thing\n    return train\ntrain = make(object())\n")
    assert "`thing`, which train uses, is an object" in refused(module).message
    counter = load(
        "def make():\n    n = 0\n    def train(loader, ctx):\n        nonlocal n\n        n += 1\n    return train\ntrain = make()\n",
        "second",
    )
    assert "cannot stand by itself" in refused(counter).message


def test_one_name_for_two_things_is_an_error(load: Load) -> None:
    load("RATE = 1\ndef helper():\n    return RATE\n", "beside")
    error = refused(load("from beside import helper\nRATE = 2\ndef train(loader, ctx):\n    return helper() * RATE\n"))
    assert "`RATE` is two different things" in error.message
    assert (
        "called train" in refused(load("def train():\n    return 1\ndef fit(loader, ctx):\n    return train()\n", "second"), "fit").message
    )


def test_what_is_not_as_it_was_written_is_an_error(load: Load, tmp_path: Path) -> None:
    module = load("""
RATE = 1
class Config:
    rate = 0.1
    def step(self): return 1
def default(loader, ctx, rate=RATE):
    return rate
def uses(loader, ctx):
    return Config().rate
""")
    assert run(function_source(module.uses, "About."))(None, None) == 0.1
    module.Config.rate = 0.5  # type: ignore[attr-defined]
    assert "Config.rate is 0.5, and the class says 0.1" in refused(module, "uses").message
    module.Config.rate = 0.1  # type: ignore[attr-defined]
    module.Config.step = lambda self: 2  # type: ignore[attr-defined]
    module.Config.jump = module.uses  # type: ignore[attr-defined]
    assert "Config.jump was set after the class was made" in refused(module, "uses").message
    module.RATE = 2  # type: ignore[attr-defined]
    assert "was defined when RATE was 1, and now it is 2" in refused(module, "default").message
    path = tmp_path / "users_own.py"
    path.write_text(path.read_text().replace("return rate", "return rate * 2"))
    assert "has changed since it was defined" in refused(module, "default").message


def test_what_cannot_be_called_with_a_loader_and_a_context_is_refused() -> None:
    async def asynchronous(loader: Any, ctx: Any) -> None: ...

    for wrong in (3, print, str.upper, (lambda loader: 1), asynchronous):
        with pytest.raises(PlanError, match="must be|cannot be called"):
            function_source(wrong, "About.")  # type: ignore[arg-type]


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def train(loader, ctx): return 1", namespace)
    with pytest.raises(PlanError, match="source of train.. cannot be found"):
        function_source(namespace["train"], "About.")


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path, text = tmp_path / "mine.py", "import os\n\ndef train( loader,ctx ):  return  os.sep\n"
    path.write_text(text)
    assert file_source(path) == text
    for wrong, why in (
        ("def fit(): pass", "defines no train"),
        ("def train(:", "cannot be read"),
        ("import other\ntrain = 1", "imports other"),
    ):
        (tmp_path / "other.py").write_text("")
        path.write_text(wrong)
        with pytest.raises(PlanError, match=why):
            file_source(path)
    with pytest.raises(PlanError, match="cannot be read"):
        file_source(tmp_path / "nowhere.py")


def test_a_constant_is_written_as_python_reads_it_back() -> None:
    from gnnkit.export.code import literal_text

    for value in (1, -1.5, 1e300, "a'b\"\n", b"\x00", None, True, (1,), [], {}, set(), {1, 2}, {"a": [{"b": (1, 2)}]}, 1j):
        text = literal_text(value)
        assert text is not None
        assert eval(text) == value
        assert type(eval(text)) is type(value)
