"""Options of how gnnkit shows itself, for the whole process; light enough to be imported with the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gnnkit.arguments import checks_calls
from gnnkit.bounds import check_choice
from gnnkit.errors import PlanError

Display = Literal["auto", "text"]
Tracebacks = Literal["short", "full"]
PROGRESS_VARIABLE = "GNNKIT_PROGRESS"
# Words of the environment variable. tqdm's own variable turns progress off with any text.
_WORDS: dict[str, bool] = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}


def check_progress(value: object) -> None:
    """Checks a value of ``progress``.

    Raises:
        PlanError: It is neither a bool nor "auto".
    """
    if not (isinstance(value, bool) or (isinstance(value, str) and value == "auto")):
        raise PlanError(
            f"progress must be True, False or 'auto', got {value!r}",
            "tqdm draws it as fits the place (a notebook, a terminal, a log): 'auto' what takes long, True each epoch too, False nothing",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options in force.

    Attributes:
        progress: As the ``progress`` argument of loaders.
        display: "auto" shows cards in notebooks, "text" plain text everywhere.
        tracebacks: "short" shows gnnkit's errors in IPython as a card or a few lines, "full" as IPython shows all others.
    """

    progress: bool | Literal["auto"] = "auto"
    display: Display = "auto"
    tracebacks: Tracebacks = "short"

    def __post_init__(self) -> None:
        check_progress(self.progress)
        check_choice("display", self.display, Display)
        check_choice("tracebacks", self.tracebacks, Tracebacks)


_options = Options()


def get_options() -> Options:
    """The options in force now."""
    return _options


@checks_calls()
class set_options:
    """Sets options for this process, or for a ``with`` block.

    Args:
        progress: "auto" draws the stages that take long, True each epoch too, False nothing. The environment variable
            ``GNNKIT_PROGRESS`` says the same.
        display: "auto" or "text": whether objects and errors show an HTML card in notebooks.
        tracebacks: "short" or "full": whether errors of gnnkit, and interrupts of its waits, show in notebooks and IPython what
            happened and what to do, or the whole traceback.

    Raises:
        PlanError: A value is none of these; nothing was changed.

    Example:
        >>> import gnnkit
        >>> with gnnkit.set_options(progress=False):
        ...     pass
    """

    def __init__(
        self, *, progress: bool | Literal["auto"] | None = None, display: Display | None = None, tracebacks: Tracebacks | None = None
    ) -> None:
        global _options
        self._before = _options
        given: dict[str, Any] = {"progress": progress, "display": display, "tracebacks": tracebacks}
        _options = replace(_options, **{name: value for name, value in given.items() if value is not None})

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        global _options
        _options = self._before


def resolve_progress(value: object, environment: Mapping[str, str] | None = None) -> bool | Literal["auto"]:
    """Joins an argument, the options and the environment: False anywhere is False, then True anywhere is True.

    Args:
        value: The ``progress`` argument.
        environment: Instead of ``os.environ``.

    Raises:
        PlanError: The argument is neither a bool nor "auto", or ``GNNKIT_PROGRESS`` is none of its words.
    """
    variables = os.environ if environment is None else environment
    check_progress(value)
    word = variables.get(PROGRESS_VARIABLE, "").strip().lower()
    if word not in ("", "auto", *_WORDS):
        raise PlanError(f"{PROGRESS_VARIABLE} must be one of {['auto', *_WORDS]}, got {word!r}", f"unset {PROGRESS_VARIABLE}")
    choices = (value, _options.progress, _WORDS.get(word, "auto"))
    if False in choices or variables.get("TQDM_DISABLE"):
        return False
    return True in choices or "auto"
