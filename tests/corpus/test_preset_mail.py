"""The two presets for Enron: whose mail a folder is, what is left of it, and at which edges."""

from collections import Counter

import pytest

from heldin.corpus.presets.catalogue import PRESETS
from heldin.corpus.presets.mail import is_forwarded, owner_of, repeats_ngram
from heldin.corpus.presets.published import WORDS, TokenUnit
from tests.published_files import (
    enron_tarball,
    mail,
    maildir,
    preset_rows,
    sent_mail,
    words,
)
from tests.refusals import refused

# Enron, Kandpal et al.


def test_the_owner_is_the_most_frequent_sender_with_the_accounts_last_name(tmp_path):
    mails = [
        sent_mail("Phillip Allen <Phillip.Allen@ENRON.com>", "one\n"),
        sent_mail("phillip.allen@enron.com", "two\n", folder="_sent_mail"),
        sent_mail("pallen70@hotmail.com", "from home\n"),
        *(sent_mail("newsletter@news.org", f"news {i}\n", folder="inbox") for i in range(9)),
        sent_mail("kay.mann@enron.com", "bye\n", account="zipper-a"),
    ]
    rows = preset_rows("enron-kandpal", maildir(tmp_path, mails))
    assert {(r["user"], r["text"]) for r in rows} == {
        ("phillip.allen@enron.com", "one\n"),
        ("phillip.allen@enron.com", "two\n"),
    }
    assert owner_of("crandell-s", Counter({"sean.crandall@enron.com": 9})) is None  # the paper's footnote 7
    assert owner_of("mims-thurston-p", Counter({"patrice.mims-thurston@enron.com": 2, "x@y": 9})) is not None


def test_exact_duplicates_go_within_an_owner_even_over_two_mailboxes_and_not_across_owners(tmp_path):
    mails = [
        sent_mail("greg.whalley@enron.com", "Thanks.\n", "whalley-g", "inbox"),
        sent_mail("greg.whalley@enron.com", "Thanks.\n", "whalley-g", "calendar"),
        sent_mail("greg.whalley@enron.com", "Thanks.\n", "whalley-l", "inbox"),
        sent_mail("greg.whalley@enron.com", "Thanks. \n", "whalley-l", "inbox"),
        sent_mail("kay.mann@enron.com", "Thanks.\n", "mann-k", "inbox"),
    ]
    for write in (maildir, enron_tarball):
        rows = preset_rows("enron-kandpal", write(tmp_path, sorted(mails)))
        found = Counter((r["user"], r["text"]) for r in rows)
        assert found == {
            ("greg.whalley@enron.com", "Thanks.\n"): 1,
            ("greg.whalley@enron.com", "Thanks. \n"): 1,
            ("kay.mann@enron.com", "Thanks.\n"): 1,
        }


def test_finding_the_owner_is_not_user_local_as_declared(tmp_path):
    """Two people of one name in one mailbox: without the first one's mails, the second one's are kept."""
    mails = [sent_mail("matt.smith@enron.com", f"m{i}\n", "smith-m") for i in range(3)]
    johns = [sent_mail("john.smith@enron.com", f"j{i}\n", "smith-m") for i in range(2)]
    for name in ("both", "john"):
        (tmp_path / name).mkdir()
    both = preset_rows("enron-kandpal", maildir(tmp_path / "both", mails + johns))
    john = preset_rows("enron-kandpal", maildir(tmp_path / "john", johns))
    assert {r["user"] for r in both} == {"matt.smith@enron.com"}
    assert {r["user"] for r in john} == {"john.smith@enron.com"}
    assert not PRESETS["enron-kandpal"].steps[0].user_local


def test_a_tarball_with_an_account_in_two_places_or_no_maildir(tmp_path):
    mails = [
        sent_mail("a.allen@e.com", "1\n"),
        sent_mail("b.bass@e.com", "2\n", "bass-e"),
        sent_mail("a.allen@e.com", "3\n"),
    ]
    with refused(by="_owned", naming="allen-p"):
        preset_rows("enron-kandpal", enron_tarball(tmp_path, mails))
    file = enron_tarball(tmp_path, [])
    with refused(by="_archived", naming="maildir/ACCOUNT/FOLDER/MESSAGE"):
        preset_rows("enron-chua", file)
    whole = enron_tarball(tmp_path, [sent_mail("a.allen@e.com", words(9000)[i:]) for i in range(9)]).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with refused(by="_messages", naming="enron_mail_20150507.tar.gz"):
        preset_rows("enron-chua", file)


# Enron, Chua et al.


def test_one_record_per_receiver_with_the_fields_written_out(tmp_path):
    message = mail(
        "Kay Mann <kay.mann@enron.com>",
        "Ann B <ann@x.org>, bob@x.org",
        "lunch",
        "At noon?\n",
        Cc="cid@x.org, dan@x.org",
        Bcc="cid@x.org, dan@x.org",  # CMU's mails repeat Cc in Bcc
    )
    rows = preset_rows("enron-chua", maildir(tmp_path, [("mann-k", "sent", message)]))
    assert [r["user"] for r in rows] == ["kay.mann@enron.com"] * 4
    receivers = ["ann@x.org", "bob@x.org", "cid@x.org", "dan@x.org"]
    assert [r["text"] for r in rows] == [
        f"Date: Mon, 14 May 2001 16:39:00 -0700\nFrom: kay.mann@enron.com\nTo: {r}\nSubject: lunch\n\nAt noon?\n"
        for r in receivers
    ]


@pytest.mark.parametrize(
    ("subject", "text", "forwarded"),
    [
        ("FW: lunch", "see below", True),
        ("Fwd: lunch", "see below", True),
        ("lunch", "fyi\n---------------------- Forwarded by Kay Mann/Corp/Enron on 05/14/2001 -----\n", True),
        ("Re: lunch", "ok\n-----Original Message-----\nFrom: Ann", False),
        ("forward planning", "the forwarded date", False),
        ("fwiw: lunch", "hm", False),
    ],
)
def test_forwarded_mails_are_told_by_subject_or_line(subject, text, forwarded):
    assert is_forwarded(subject, text) is forwarded


def test_a_twenty_gram_may_stand_once_only():
    gram = words(20)
    assert not repeats_ngram(gram, WORDS)
    assert not repeats_ngram(f"{gram} and then {words(19)}", WORDS)
    assert repeats_ngram(f"{gram} and then {gram}", WORDS)
    assert repeats_ngram(" ".join(["same"] * 21), WORDS)
    assert not repeats_ngram(" ".join(["same"] * 20), WORDS)
    letters = TokenUnit("letters", list)
    assert repeats_ngram("abcdefghijklmnopqrst!abcdefghijklmnopqrst", letters)
    assert not repeats_ngram("abcdefghijklmnopqrst!abcdefghijklmnopqrs", letters)


def test_chuas_filters_drop_whole_mails(tmp_path):
    mails = [
        sent_mail("a@e.com", "kept\n"),
        sent_mail("a@e.com", f"{words(20)} {words(20)}\n"),
        ("allen-p", "sent", mail("a@e.com", "b@e.com, c@e.com", "Fw: it", "dropped\n")),
    ]
    assert [r["text"].rpartition("\n\n")[2] for r in preset_rows("enron-chua", maildir(tmp_path, mails))] == ["kept\n"]
