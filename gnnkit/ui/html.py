"""Renders the package's HTML templates; every value is escaped."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    import jinja2

__all__ = ["Markup", "render"]


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("gnnkit.ui", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def render(template: str, **values: Any) -> str:
    """Renders a template of ``gnnkit/ui/templates``.

    Args:
        template: File name.
        **values: What the template asks for; a missing one is an error.
    """
    return _environment().get_template(template).render(**values)
