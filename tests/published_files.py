"""Small made-up files in the published formats of the presets' datasets."""

import csv
import io
import json
import tarfile
import zlib
from email.message import EmailMessage
from xml.sax.saxutils import quoteattr

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.corpus.presets.catalogue import PRESETS, PresetSource
from heldin.corpus.presets.published import WORDS
from heldin.corpus.sources.bad_rows import BadRows


def mail(sender, to, subject, text, **headers):
    """A message as CMU's tarball has them, with its X- headers."""
    message = EmailMessage()
    message["Message-ID"] = f"<{zlib.crc32(repr((sender, to, subject, text)).encode())}.JavaMail.evans@thyme>"
    message["Date"] = headers.pop("date", "Mon, 14 May 2001 16:39:00 -0700 (PDT)")
    message["From"], message["To"], message["Subject"] = sender, to, subject
    for name, value in headers.items():
        message[name] = value
    message["X-From"], message["X-FileName"] = "Somebody", "somebody.nsf"
    message.set_content(text)
    return message.as_bytes()


def maildir(path, mails):
    """``mails``: (account, folder, message); written as maildir/ACCOUNT/FOLDER/1. below ``path``."""
    for number, (account, folder, message) in enumerate(mails, start=1):
        where = path / "maildir" / account / folder
        where.mkdir(parents=True, exist_ok=True)
        (where / f"{number}.").write_bytes(message)
    return path / "maildir"


def enron_tarball(path, mails):
    file = path / "enron_mail_20150507.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for number, (account, folder, message) in enumerate(mails, start=1):
            member = tarfile.TarInfo(f"maildir/{account}/{folder}/{number}.")
            member.size = len(message)
            archive.addfile(member, io.BytesIO(message))
    return file


def json_lines(path, rows, name):
    file = path / name
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(pa.Codec("zstd").compress(content, asbytes=True) if name.endswith(".zst") else content)
    return file


def parquet(path, rows, name):
    pq.write_table(pa.Table.from_pylist(rows), path / name)
    return path / name


def comment(author, body, second=1443000000, id_=None):
    """A line of pushshift's RC_2015-09."""
    return {
        "author": author, "author_flair_text": None, "body": body, "controversiality": 0, "created_utc": second,
        "id": id_ or f"c{zlib.crc32(repr((author, body, second)).encode()):x}",
        "link_id": "t3_3jc8r2", "parent_id": "t3_3jc8r2",
        "retrieved_on": 1444712064, "score": 3, "subreddit": "gardening", "subreddit_id": "t5_2qlqh",
    }  # fmt: skip


def article(domain, text, number):
    return {
        "title": f"Title {number}", "text": text, "domain": domain, "date": "2018-03-09 00:00:00",
        "description": "", "url": f"http://{domain}/{number}", "image_url": None,
    }  # fmt: skip


def paper(id_, submitter, abstract):
    """A line of Kaggle's arxiv-metadata-oai-snapshot.json."""
    return {
        "id": id_, "submitter": submitter, "authors": "A. One and B. Two", "title": "On things", "comments": "3 pages",
        "journal-ref": None, "doi": None, "report-no": None, "categories": "math.CO", "license": None,
        "abstract": abstract, "versions": [{"version": "v1", "created": "Mon, 2 Apr 2007 19:18:42 GMT"}],
        "update_date": "2022-06-01", "authors_parsed": [["One", "A.", ""], ["Two", "B.", ""]],
    }  # fmt: skip


def summary(bid, text, number):
    return {
        "": number, "bid": bid, "is_aggregate": True, "source": "cliffnotes",
        "chapter_path": f"all_chapterized_books/{bid}-chapters/chapters_{number}.txt",
        "summary_path": f"finished_summaries/{number}.txt", "book_id": f"A Book.chapters {number}",
        "summary_id": f"chapters {number}", "content": "", "summary": json.dumps({"name": f"Chapters {number}"}),
        "chapter": "It was a long\nchapter, with \"lines\".", "chapter_length": 6.0, "summary_name": "Chapters",
        "summary_url": "http://example.org", "summary_text": text, "summary_analysis": "", "summary_length": 5.0,
        "analysis_length": 0.0,
    }  # fmt: skip


def csv_file(path, rows, name):
    with (path / name).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path / name


def post(id_, kind, owner, body):
    """Attributes of a row of Posts.xml."""
    row = {"Id": str(id_), "PostTypeId": str(kind), "CreationDate": "2008-07-31T21:42:52.667", "Score": "5"}
    return {**row, "Body": body, **({"OwnerUserId": str(owner)} if owner is not None else {}), "CommentCount": "0"}


def posts_xml(path, rows, name="Posts.xml"):
    lines = ["  <row " + " ".join(f"{k}={quoteattr(v)}" for k, v in row.items()) + " />" for row in rows]
    content = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(lines) + "\n</posts>\n"
    (path / name).write_text(content, encoding="utf-8")
    return path / name


def preset_rows(name, path, tokens=WORDS, bad=None):
    source = PresetSource(PRESETS[name], path, tokens)
    return [row for batch in source.batches(bad or BadRows()) for row in batch.to_pylist()]


def words(count):
    return " ".join(f"w{i}" for i in range(count))


def sent_mail(sender, text, account="allen-p", folder="sent"):
    return (account, folder, mail(sender, "who@x.org", "about it", text))
