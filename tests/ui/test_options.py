from __future__ import annotations

import pytest

from gnnkit import set_options
from gnnkit.errors import PlanError
from gnnkit.ui.options import ProgressChoice, get_options, resolve_progress

OFF, AUTO, EPOCH = ProgressChoice(enabled=False), ProgressChoice(), ProgressChoice(epochs=True)


@pytest.mark.parametrize(
    ("argument", "option", "variable", "choice"),
    [
        ("auto", "auto", None, AUTO),
        (True, "auto", "", AUTO),
        (False, "auto", None, OFF),
        ("Off", "auto", "widget", OFF),
        ("epoch", "auto", None, EPOCH),
        ("epoch", "plain", None, ProgressChoice(epochs=True, renderer="plain")),
        ("html", "plain", None, ProgressChoice(renderer="html")),
        ("html", "plain", "text", ProgressChoice(renderer="text")),
        ("epoch", "auto", "plain", ProgressChoice(epochs=True, renderer="plain")),
        ("widget", "auto", "0", OFF),
        ("epoch", False, "plain", OFF),
    ],
)
def test_argument_option_and_environment_are_joined(
    argument: bool | str, option: bool | str, variable: str | None, choice: ProgressChoice
) -> None:
    with set_options(progress=option):
        assert resolve_progress(argument, {} if variable is None else {"GNNKIT_PROGRESS": variable}) == choice


def test_options_last_for_a_block_or_for_good() -> None:
    with set_options(progress="plain", display="text"):
        assert (get_options().progress, get_options().display) == ("plain", "text")
        with set_options(progress=False):
            assert (get_options().progress, get_options().display) == (False, "text")
    assert (get_options().progress, get_options().display) == ("auto", "auto")
    with pytest.raises(KeyError), set_options(progress=False):
        raise KeyError
    assert get_options().progress == "auto"
    set_options(progress="html")
    assert get_options().progress == "html"


@pytest.mark.parametrize("value", ["widgit", 3, 0, None, 1.5, ["auto"]])
def test_an_unknown_word_is_an_error_that_names_it(value: object) -> None:
    with pytest.raises(PlanError, match="progress must be True, False or one of") as caught:
        resolve_progress(value, {})  # type: ignore[arg-type]
    assert repr(value) in str(caught.value)


def test_errors_suggest_and_change_nothing() -> None:
    with pytest.raises(PlanError, match="did you mean 'widget'"):
        set_options(progress="widgit")
    with pytest.raises(PlanError, match="GNNKIT_PROGRESS must be .* got 'fancy'"):
        resolve_progress("auto", {"GNNKIT_PROGRESS": "fancy"})
    with pytest.raises(PlanError, match="display must be"):
        set_options(progress="plain", display="html")  # type: ignore[arg-type]
    assert get_options().progress == "auto"
