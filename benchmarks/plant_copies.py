"""Make a corpus in which a fifth of every user's records are copies of one text, as in web-scraped data.

python benchmarks/plant_copies.py plays.jsonl.gz plays_with_copies.jsonl.gz

The Enron copy and the plays have no exact duplicates within users, but an experiment on deduplication needs some. CC
News had 11 % (Kandpal et al. 2024, Appendix D.5).
"""

import gzip
import json
import sys
from itertools import groupby
from pathlib import Path

from heldin.base.files import whole_file

ONE_IN = 4  # one copy for every so many records: a fifth of all


def main(source: Path, copy: Path) -> None:
    """Write ``copy``, in which each user's longest text is copied."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = sorted(map(json.loads, lines), key=_user)
    with whole_file(copy) as temporary, gzip.open(temporary, "wt", encoding="utf-8", compresslevel=1) as out:
        for _, its in groupby(rows, key=_user):
            records = list(its)
            longest = max(records, key=lambda record: len(record["text"]))
            copies = [{**longest, "id": f"{longest['id']} copy {i}"} for i in range(len(records) // ONE_IN)]
            out.writelines(json.dumps(record) + "\n" for record in records + copies)


def _user(record: dict[str, str]) -> str:
    return record["user"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
