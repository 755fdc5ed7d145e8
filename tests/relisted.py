"""Files that a test altered, listed as whole again, as a dishonest owner could; only a recomputation shows it."""

import json

from heldin.base.artefacts import INDEX
from heldin.base.files import file_sha256


def relist(path):
    """Give the list of digests the digest that the file has now."""
    index = path.parent / INDEX
    content = json.loads(index.read_text(encoding="utf-8"))
    content["files"][path.name][0] = file_sha256(path)
    index.write_text(json.dumps(content), encoding="utf-8")
