"""Keep user names out of the record: the patterns of a config, and a command that sets them."""

import re
import shlex
from typing import Any

_NAMES = {"include", "exclude"}


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """The config with its user-name patterns counted, not named."""
    return {key: _masked(value, key) for key, value in config.items()}


def without_names(command: str) -> str:
    """The command with the values of ``--set ...include=`` and ``...exclude=`` left out."""
    names = re.compile(r"^(\S*(?:include|exclude|users))=.*", flags=re.DOTALL)
    return shlex.join(names.sub(r"\1=...", word) for word in shlex.split(command))


def _masked(value: Any, key: str) -> Any:
    if key in _NAMES and isinstance(value, list):
        return f"{len(value)} pattern(s)"
    if isinstance(value, list | tuple):
        return [_masked(part, "") for part in value]
    return masked(value) if isinstance(value, dict) else value
