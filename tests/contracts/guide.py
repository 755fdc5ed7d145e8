"""The worked examples of docs/contributing.md and docs/extending.md."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "contributing.md"
EXTENDING = GUIDE.parent / "extending.md"


def example(containing: str) -> str:
    """The block of Python in which a text occurs."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (GUIDE, EXTENDING))
    blocks = re.findall(r"^```python\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if containing in block]
    return code
