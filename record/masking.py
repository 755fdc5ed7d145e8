"""Keep user names out of the record: the patterns of a config, and a command that sets them."""

import shlex
from typing import Any

# Keys whose values are patterns of user names, wherever they stand in a config.
_NAMES = {"include", "exclude"}
_SECTIONS = ("users", "public_validation")  # set as a whole, they hold such patterns


def masked(config: dict[str, Any]) -> dict[str, Any]:
    """The config with each list of user-name patterns replaced by its length."""
    return {key: _masked(value, key) for key, value in config.items()}


def without_names(command: str) -> str:
    """The command without the values of every ``--set`` that may name users, anywhere in the value."""
    return shlex.join(_without_names(word) for word in shlex.split(command))


def _without_names(word: str) -> str:
    key, equals, _ = word.partition("=")
    # Anywhere in the word, not only in its key: ``corpus={users: {include: [...]}}`` names people in the
    # value, and ``--set=corpus.users.include=[...]`` is one word whose first "=" comes before the key. A value
    # that is masked needlessly costs nothing.
    naming = key.endswith(_SECTIONS) or any(name in word for name in _NAMES)
    return f"{key}=..." if equals and naming else word


def _masked(value: Any, key: str) -> Any:
    # The number alone: how many patterns there are tells a reader that users were picked, and not whom.
    if key in _NAMES and isinstance(value, list):
        return f"{len(value)} pattern(s)"
    if isinstance(value, list | tuple):
        return [_masked(part, "") for part in value]
    return masked(value) if isinstance(value, dict) else value
