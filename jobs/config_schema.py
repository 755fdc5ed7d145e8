"""The JSON schema of a config file, for editors: what the config accepts, and what the loader adds to it."""

from typing import Any

from pydantic import BaseModel

from heldin.stages.config import EXTENDS, RunConfig

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PARTIAL = "InFilesThatExtend"


def file_schema(config: type[BaseModel] = RunConfig, title: str = "A run of heldin") -> dict[str, Any]:
    """The schema of a file: a whole config, or, below ``extends``, the part of one that differs.

    In such a part nothing is required, since what it leaves out is in the other file.
    """
    whole = config.model_json_schema()
    partial = _relaxed(whole)
    # Both versions of every section stand in one file, so that those of a partial config need other names.
    definitions = {f"{name}{_PARTIAL}": content for name, content in partial.pop("$defs").items()}
    partial["properties"]["extends"] = {"type": "string", "title": "Extends", "description": EXTENDS}
    return {
        "$schema": DIALECT,
        "title": title,
        "$defs": {**whole.pop("$defs"), **definitions},
        # An editor decides by the file at hand whether to ask for what is required.
        "if": {"type": "object", "required": ["extends"]},
        "then": partial,
        "else": whole,
    }


def _relaxed(node: Any) -> Any:
    """The schema with nothing required; a section's kind may then be undetermined, so anyOf replaces oneOf."""
    if isinstance(node, list):
        return [_relaxed(item) for item in node]
    if not isinstance(node, dict):
        return node
    # Without a required kind a part may fit several kinds, which oneOf refuses; for the same reason no discriminator.
    renamed = {"oneOf": "anyOf"}
    return {
        renamed.get(key, key): f"{value}{_PARTIAL}" if key == "$ref" else _relaxed(value)
        for key, value in node.items()
        # A list only: a config key named "required" would have a schema here, not a list.
        if not (key == "required" and isinstance(value, list)) and key != "discriminator"
    }
