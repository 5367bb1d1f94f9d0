"""The stubs of packages whose public names are imported when they are first used: their one list of these names."""

from __future__ import annotations

import ast


def homes_of(package_file: str) -> dict[str, str]:
    """Returns ``{public name: the module that it lives in}``, as the stub beside a package's ``__init__.py`` imports them.

    Args:
        package_file: The package's ``__file__``.
    """
    with open(package_file.removesuffix(".py") + ".pyi", encoding="utf-8") as file:
        imports = [statement for statement in ast.parse(file.read()).body if isinstance(statement, ast.ImportFrom)]
    names = [(each.module or "", name.name) for each in imports if each.module != "typing" for name in each.names]
    # What is imported from gnnkit itself are modules of it.
    return {name: f"gnnkit.{name}" if home == "gnnkit" else home for home, name in names if not name.startswith("_")}
