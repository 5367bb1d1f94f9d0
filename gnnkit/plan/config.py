"""The hyper-parameters of a job, which a train function finds in ``ctx.config``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError, SettingMissing, near_matches
from gnnkit.files import read_json

# Beside the plan: what the job was exported with.
CONFIG = "config.json"


class Config(dict[str, Any]):
    """Hyper-parameters by name."""

    def __missing__(self, name: str) -> Any:
        has = f"the job has {', '.join(self)}" if self else "the job has no hyper-parameters"
        raise SettingMissing(
            f"there is no ctx.config[{name!r}]: {has}{near_matches(name, list(self))}",
            f"launch(config={{{name!r}: ...}}), export(config={{{name!r}: ...}}) or gnnkit run --set {name}=... give it;"
            f" ctx.config.get({name!r}, ...) does without",
        )


def read_config(plan: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The hyper-parameters of a job: those of the file beside its plan, and what the command line sets.

    Args:
        plan: A plan file.
        settings: ``name=value`` each; a value is JSON, or else text.

    Raises:
        PlanError: One is no setting, or the job has none of that name.
    """
    file = plan.absolute().parent / CONFIG
    try:
        config = check_config(read_json(file)) if file.exists() else {}
    except ValueError as error:
        raise PlanError(f"{str(file)!r} holds no JSON: {error}", "export the job again") from error
    return with_settings(config, settings)


def with_settings(config: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Hyper-parameters with those that a command line sets.

    Args:
        config: Those that there are; where there are any, others cannot be set.
        settings: See ``read_config``.

    Raises:
        PlanError: One is no setting, or has no name of those.
    """
    known, changed = list(config), dict(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.isidentifier():
            raise PlanError(f"--set {setting!r} is no name with a value", "for example --set lr=0.01")
        if known and name not in known:
            raise PlanError(f"--set {setting!r}: {CONFIG} has no {name!r}{near_matches(name, known)}", f"it has {', '.join(known)}")
        changed[name] = value = _value(text)
        if _is_number(config.get(name)) and not _is_number(value):
            raise PlanError(
                f"--set {setting!r}: {name} is a number, {config[name]!r}, and {value!r} is none", f"for example --set {name}=0.01"
            )
    return changed


def _value(text: str) -> Any:
    for read in (json.loads, float):  # ".01" is no JSON
        with suppress(ValueError):
            return read(text)
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_config(config: Any) -> dict[str, Any]:
    """Hyper-parameters as JSON holds them.

    Raises:
        PlanError: They are no mapping of names to values that JSON has.
    """
    hint = "names with numbers, texts, and lists and dicts of them: config={'lr': 0.01}"
    if not isinstance(config, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in config):
        raise PlanError(f"config={config!r} is no mapping of names to values", hint)
    try:
        checked: dict[str, Any] = json.loads(json.dumps(dict(config)))
    except (TypeError, ValueError) as error:
        raise PlanError(f"config={config!r}: {error}", hint) from error
    return checked
