from __future__ import annotations

from typing import Any

import pytest

from gnnkit import set_options
from gnnkit.errors import PlanError
from gnnkit.ui.options import get_options, resolve_progress


@pytest.mark.parametrize(
    ("argument", "option", "variables", "choice"),
    [
        ("auto", "auto", {}, "auto"),
        (True, "auto", {"GNNKIT_PROGRESS": ""}, True),
        (False, "auto", {}, False),
        ("auto", True, {}, True),
        ("auto", "auto", {"GNNKIT_PROGRESS": "On"}, True),
        ("auto", True, {"GNNKIT_PROGRESS": "auto"}, True),
        (False, True, {"GNNKIT_PROGRESS": "1"}, False),
        (True, False, {}, False),
        (True, "auto", {"GNNKIT_PROGRESS": "off"}, False),
        (True, "auto", {"TQDM_DISABLE": "1"}, False),
        ("auto", "auto", {"TQDM_DISABLE": ""}, "auto"),
    ],
)
def test_argument_option_and_environment_are_joined(argument: Any, option: Any, variables: dict[str, str], choice: Any) -> None:
    with set_options(progress=option):
        assert resolve_progress(argument, variables) == choice


def test_options_last_for_a_block_or_for_good() -> None:
    with set_options(progress=True, display="text"):
        assert (get_options().progress, get_options().display) == (True, "text")
        with set_options(progress=False):
            assert (get_options().progress, get_options().display) == (False, "text")
    assert (get_options().progress, get_options().display) == ("auto", "auto")
    with pytest.raises(KeyError), set_options(progress=False):
        raise KeyError
    assert get_options().progress == "auto"
    set_options(progress=True)
    assert get_options().progress is True


@pytest.mark.parametrize("value", ["html", "widget", "text", "plain", "epoch", "off", "rich", "tqdm", "log", 3, 0, 1, None, 1.5, ["auto"]])
def test_every_other_word_is_answered_with_the_three_that_there_are(value: Any) -> None:
    with pytest.raises(PlanError, match="progress must be True, False or 'auto', got") as caught:
        resolve_progress(value, {})
    assert repr(value) in str(caught.value) and "True each epoch too, False nothing" in str(caught.value)


def test_errors_change_nothing() -> None:
    with pytest.raises(PlanError, match="progress must be"):
        set_options(progress="widget")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="GNNKIT_PROGRESS must be .* got 'fancy'"):
        resolve_progress("auto", {"GNNKIT_PROGRESS": "fancy"})
    with pytest.raises(PlanError, match="display must be"):
        set_options(progress=False, display="html")  # type: ignore[arg-type]
    assert get_options().progress == "auto"
