"""A named preset for each dataset of the papers: the format of its files, the steps, and the filter of users.

Nobody can change a preset, because another threshold would be another experiment. Each step declares the data that it
depends on (docs/theory.md#rules-of-the-data), and a run's plan copies the declarations.
"""

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.base.wording import counted
from heldin.corpus.presets.mail import enron_chua, enron_fingerprint, enron_kandpal
from heldin.corpus.presets.posts import posts_file, stackoverflow
from heldin.corpus.presets.published import WORDS, PresetTokens, table_files
from heldin.corpus.presets.tables import SMALL_LAST_SECOND, arxiv, booksum, cc_news, reddit
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.rows import Source
from heldin.corpus.statistics import records_percentiles
from heldin.corpus.store import CorpusStore
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT, UserFilter, select_users
from heldin.words.data_steps import PresetText

PRESET_VERSION = "1"  # part of every fingerprint: with another one, stores are built again
Read = Callable[[Path, PresetTokens, BadRows], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class PresetStep:
    """A step of a preset, and the data that it depends on.

    Attributes:
        text: description of the step.
        user_local: whether the kept records of a user depend only on that user's records.
        record_local: whether keeping a record depends only on that record.
        slots_only: whether the kept records depend only on users, ids and counts, and on no text.
    """

    text: PresetText
    user_local: bool = True
    record_local: bool = True
    slots_only: bool = False


@dataclass(frozen=True)
class Preset:
    """A dataset, prepared as in a paper.

    Attributes:
        name: name in configs and on the command line.
        paper: the paper that describes the steps.
        files: description of the published format.
        user: definition of a user.
        text: definition of a record's text.
        steps: the steps over rows, in order.
        minimum: the paper's minimum number of records per user; None: the paper has no minimum.
        published: the numbers in the paper.
        read: function that yields the records of files in the published format.
    """

    name: str
    paper: str
    files: str
    user: str
    text: str
    steps: tuple[PresetStep, ...]
    minimum: int | None
    published: str
    read: Read

    @property
    def users(self) -> UserFilter:
        """Return the default filter of users. If the paper has no minimum, a user needs enough records to split."""
        return UserFilter(min_records=self.minimum or MIN_RECORDS_TO_SPLIT)


REDDIT_STEPS = (
    PresetStep(PresetText.NO_BOTS),
    # A record stays or goes by how many others its user has.
    PresetStep(PresetText.FEW_COMMENTS, record_local=False, slots_only=True),
    PresetStep(PresetText.LONG_COMMENTS),
)
PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="enron-kandpal",
            paper="Kandpal et al. (2024), Appendix D.1",
            files="CMU's enron_mail_*.tar.gz, or its folder maildir",
            user="the address of the mailbox's owner",
            text="the mail's plain text",
            steps=(
                PresetStep(
                    PresetText.OWN_MAILS,
                    user_local=False,  # senders in one mailbox are weighed against each other
                    record_local=False,
                ),
                PresetStep(PresetText.FIRST_OF_EQUAL, record_local=False),
            ),
            minimum=150,
            published="136 users, 91K records, minimum 28 (Table 1, below the paper's own threshold of 150)",
            read=enron_kandpal,
        ),
        Preset(
            name="enron-chua",
            paper="Chua et al. (2024), Appendix B.1",
            files="CMU's enron_mail_*.tar.gz, or its folder maildir",
            user="the sender's address",
            text="the fields Date, From, To, Subject and the mail's plain text",
            steps=(
                # One mail in the data is several records in training, so that an epsilon of one record is not that of
                # one mail.
                PresetStep(PresetText.PER_ADDRESS, record_local=False),
                PresetStep(PresetText.NO_REPEATS),
                PresetStep(PresetText.NO_FORWARDED),
            ),
            minimum=None,
            published=(
                "240,173 training and 39,086 evaluation records; 13.2 per user, minimum 1, median 2, maximum 5,049"
            ),
            read=enron_chua,
        ),
        Preset(
            name="booksum",
            paper="Chua et al. (2024), section 3",
            files="train.csv, dev.csv or test.csv of kmfoda/booksum",
            user="the book (bid)",
            text="the summary (summary_text)",
            steps=(),
            minimum=None,
            published="9,600 training and 1,431 evaluation records; 52.2 per book, minimum 1, median 28.5, maximum 266",
            read=booksum,
        ),
        Preset(
            name="reddit",
            paper="Kandpal et al. (2024), Appendix D.1",
            files="pushshift's RC_2015-09 to RC_2016-02 (.zst, .bz2, JSON lines) or Parquet",
            user="author",
            text="body",
            steps=(PresetStep(PresetText.SIX_MONTHS), *REDDIT_STEPS),
            minimum=100,
            published="5,194 users, 1,002K records, records per user 100 | 116 | 144 | 199 | 1,921 (Table 1)",
            read=reddit,
        ),
        Preset(
            name="reddit-small",
            paper="Kandpal et al. (2024), Appendix D.1 (four of the six months, which the paper does not name)",
            files="pushshift's RC_2015-09 to RC_2015-12 (.zst, .bz2, JSON lines) or Parquet",
            user="author",
            text="body",
            steps=(PresetStep(PresetText.FOUR_MONTHS), *REDDIT_STEPS),
            minimum=100,
            published="2,774 users, 537K records, records per user 100 | 115 | 141 | 194 | 1,662 (Table 3)",
            read=functools.partial(reddit, end=SMALL_LAST_SECOND),
        ),
        Preset(
            name="cc_news",
            paper="Kandpal et al. (2024), Appendix D.1",
            files="cc_news of the Hugging Face hub (Parquet, JSON lines, or a save_to_disk folder)",
            user="the web domain",
            text="the article (text)",
            steps=(),
            minimum=30,
            published="2,839 users, 660K records, records per user 30 | 50 | 87 | 192 | 24,480 (Table 1)",
            read=cc_news,
        ),
        Preset(
            name="arxiv",
            paper="Kandpal et al. (2024), Appendix D.1",
            files="Kaggle's arxiv-metadata-oai-snapshot.json, or arxiv-abstracts-2021 of the hub",
            user="submitter",
            text="abstract",
            steps=(
                PresetStep(PresetText.WITH_SUBMITTER),
                PresetStep(PresetText.TO_2021),
            ),
            minimum=20,
            published="16,511 users, 625K records, records per user 20 | 24 | 30 | 41 | 3,204 (Table 3)",
            read=arxiv,
        ),
        Preset(
            name="stackoverflow",
            paper="named in Kandpal et al. (2024), Appendix F, without steps of its own",
            files="Posts.xml of the Stack Exchange dump at archive.org",
            user="OwnerUserId",
            text="the post's text, without HTML",
            steps=(PresetStep(PresetText.WITH_OWNER),),
            minimum=None,
            published="around 350K users in the user-level DP literature",
            read=stackoverflow,
        ),
    )
}


@dataclass(frozen=True)
class PresetSource(Source):
    """A local copy of a dataset, prepared by its preset.

    Attributes:
        preset: the preset.
        path: a file, or a folder of files.
        tokens: the unit of the preset's lengths.
    """

    preset: Preset
    path: Path
    tokens: PresetTokens = WORDS

    @property
    def reason_if_empty(self) -> str:
        """Return why the source may have no usable record."""
        return "the preset's steps left nothing of the record: docs/presets.md lists these steps"

    def fingerprint(self) -> str:
        """Hash of the files, the preset and the unit of tokens."""
        # The path is left out: the same files elsewhere are the same corpus.
        return text_sha256("preset", self.preset.name, PRESET_VERSION, self.tokens.name, *_content(self))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the records that pass the preset's steps. Raises InputError for files in another format."""
        return self.preset.read(self.path, self.tokens, bad)


def preset_named(name: str) -> Preset:
    """Return the preset with this name. Raises InputError, with the nearest name, if there is no such preset."""
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise InputError(f"unknown preset '{name}': {hint}choose from {', '.join(PRESETS)}")


def presets_table() -> str:
    """Return all presets with their steps and thresholds, as plain text for a terminal."""
    lines = []
    for preset in PRESETS.values():
        lines += [f"{preset.name}  ({preset.paper})", f"  files  {preset.files}"]
        lines += [f"  user   {preset.user}", f"  text   {preset.text}"]
        lines += [f"  step   {step.text()} [{_reach(step)}]" for step in preset.steps]
        least = f"at least {preset.minimum} records [user-local]" if preset.minimum else "no minimum (a split needs 4)"
        lines += [f"  users  {least}", ""]
    return "\n".join([*lines, "Tokens are words between blanks unless a tokenizer is named."])


def presets_dict() -> list[dict[str, Any]]:
    """Return all presets as dictionaries, for JSON."""
    names = ("name", "paper", "files", "user", "text", "minimum", "published")
    return [
        {
            **{name: getattr(preset, name) for name in names},
            "steps": [{**asdict(step), "text": str(step.text())} for step in preset.steps],
        }
        for preset in PRESETS.values()
    ]


def preset_outcome(preset: Preset, store: CorpusStore) -> str:
    """Return the users and records that pass the preset's filter of users, next to the paper's numbers."""
    minimum = preset.minimum or 1
    # The seed decides nothing here: this filter draws no users.
    users = select_users(store, UserFilter(min_records=minimum), seed=0).users
    counts = [store.count(user) for user in users]
    ours = f"{counted(len(users), 'user')}, {counted(sum(counts), 'record')}"
    if counts:
        ours += ", records per user P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*records_percentiles(counts))
    return f"{preset.name}, at least {minimum} records per user: {ours}\nthe paper: {preset.published}"


def _reach(step: PresetStep) -> str:
    user = "user-local" if step.user_local else "not user-local"
    return f"{user}, {'record-local' if step.record_local else 'not record-local'}"


def _content(source: PresetSource) -> list[str]:
    # What identifies the content depends on the format: a tree of small files, one large file, or tables.
    if source.preset.read in (enron_kandpal, enron_chua):
        return [enron_fingerprint(source.path) or file_sha256(existing(source.path))]
    if source.preset.read is stackoverflow:
        return [file_sha256(posts_file(source.path))]
    tables = table_files(source.path)
    return [HuggingFace(str(file)).fingerprint() if file.is_dir() else file_sha256(file) for file in tables]
