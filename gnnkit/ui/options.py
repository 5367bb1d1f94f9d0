"""Options of how gnnkit shows itself, for the whole process; light enough to be imported with the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gnnkit.arguments import checks_calls
from gnnkit.bounds import check_choice
from gnnkit.errors import PlanError, near_matches

RendererName = Literal["widget", "html", "text", "plain"]
Display = Literal["auto", "text"]
Tracebacks = Literal["short", "full"]
PROGRESS_VARIABLE = "GNNKIT_PROGRESS"


@dataclass(frozen=True, slots=True)
class ProgressChoice:
    """The display that a value of ``progress`` asks for.

    Attributes:
        enabled: Whether anything is drawn.
        epochs: Whether epochs are drawn beside the other stages.
        renderer: The renderer to use, or None for the one that fits.
    """

    enabled: bool = True
    epochs: bool = False
    renderer: RendererName | None = None


_WORDS = ["auto", "off", "epoch", *get_args(RendererName)]
_CHOICES = {
    **dict.fromkeys(("auto", "true", "1", "yes", "on", ""), ProgressChoice()),
    **dict.fromkeys(("off", "false", "0", "no", "none"), ProgressChoice(enabled=False)),
    "epoch": ProgressChoice(epochs=True),
    **{word: ProgressChoice(renderer=word) for word in get_args(RendererName)},
}


def parse_progress(value: bool | str, *, source: str = "progress") -> ProgressChoice:
    """Reads one value of ``progress``.

    Args:
        value: A word in any case, or a bool.
        source: What to call the value in an error.

    Raises:
        PlanError: The value is not one of the known words.
    """
    word = str(value).strip().lower() if isinstance(value, (bool, str)) else None
    if word not in _CHOICES:
        raise PlanError(
            f"{source} must be True, False or one of {_WORDS}, got {value!r}{near_matches(str(value), _WORDS)}",
            f"{source}=False draws nothing" if source == "progress" else f"unset {source} to let gnnkit choose",
        )
    return _CHOICES[word]


@dataclass(frozen=True, slots=True)
class Options:
    """The options in force.

    Attributes:
        progress: As the ``progress`` argument of loaders.
        display: "auto" shows cards in notebooks, "text" plain text everywhere.
        tracebacks: "short" shows gnnkit's errors in IPython as a card or a few lines, "full" as IPython shows all others.
    """

    progress: bool | str = "auto"
    display: Display = "auto"
    tracebacks: Tracebacks = "short"

    def __post_init__(self) -> None:
        parse_progress(self.progress)
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
        progress: True or "auto" draws progress where and how it fits; False or "off" draws none; "epoch" draws epochs
            too; "widget", "html", "text" and "plain" choose how. The environment variable ``GNNKIT_PROGRESS`` takes the
            same words and has the last one.
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

    def __init__(self, *, progress: bool | str | None = None, display: Display | None = None, tracebacks: Tracebacks | None = None) -> None:
        global _options
        self._before = _options
        given: dict[str, Any] = {"progress": progress, "display": display, "tracebacks": tracebacks}
        _options = replace(_options, **{name: value for name, value in given.items() if value is not None})

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc_info: object) -> None:
        global _options
        _options = self._before


def resolve_progress(value: bool | str, environment: Mapping[str, str] | None = None) -> ProgressChoice:
    """Joins an argument, the options and the environment: "off" anywhere is off, and the environment's renderer comes first.

    Args:
        value: The ``progress`` argument.
        environment: Instead of ``os.environ``.

    Raises:
        PlanError: The argument or the environment variable is not one of the known words.
    """
    variables = os.environ if environment is None else environment
    argument = parse_progress(value)
    variable = parse_progress(variables.get(PROGRESS_VARIABLE, ""), source=PROGRESS_VARIABLE)
    option = parse_progress(_options.progress)
    choices = (variable, argument, option)
    if not all(choice.enabled for choice in choices):
        return ProgressChoice(enabled=False)
    return ProgressChoice(
        epochs=any(choice.epochs for choice in choices),
        renderer=next((choice.renderer for choice in choices if choice.renderer), None),
    )
