"""The worked examples of docs/contributing.md."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "contributing.md"


def example(containing: str) -> str:
    """The block of Python in which a text occurs."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if containing in block]
    return code
