"""The cards of objects that lie in packages below this one."""

from __future__ import annotations

from typing import Any

from gnnkit.loader.advice.autotune import AutotuneResult
from gnnkit.loader.advice.profile import Profile
from gnnkit.storage.store import Store
from gnnkit.ui.advice import autotune_card, profile_card
from gnnkit.ui.cards import Card
from gnnkit.ui.store import store_card


def card_of(shown: Any) -> Card:
    """The card of an object of a lower package.

    Args:
        shown: A ``Store``, a ``Profile`` or an ``AutotuneResult``; other objects make their cards themselves.
    """
    if isinstance(shown, Store):
        return store_card(shown)
    if isinstance(shown, Profile):
        return profile_card(shown)
    assert isinstance(shown, AutotuneResult), type(shown)
    return autotune_card(shown)
