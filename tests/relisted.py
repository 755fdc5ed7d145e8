"""Files that a test altered, listed as whole again, as a dishonest owner could; only a recomputation shows it."""

from heldin.base.artefacts import read_index, write_index
from heldin.base.files import file_sha256


def relist(path, *, made_from=None):
    """Give the list of digests the digest that the file has now, and another origin if one is named."""
    files = read_index(path.parent)
    files[path.name] = [file_sha256(path), files[path.name][1] if made_from is None else made_from]
    write_index(path.parent, files)
