"""The kinds of ``corpus.source``."""

from typing import Annotated, TypeAlias

from heldin.base.kinds import Family, OfKind
from heldin.corpus.sources.contract import SourceConfig

SOURCES = Family[SourceConfig](
    "sources",
    SourceConfig,
    {
        **dict.fromkeys(("jsonl", "csv", "parquet", "mbox", "iob"), "heldin.corpus.sources.files:FileCorpus"),
        "maildir": "heldin.corpus.sources.mail_folder:MaildirCorpus",
        "huggingface": "heldin.corpus.sources.hub_dataset:HubCorpus",
        "synthetic": "heldin.corpus.made_up.source:SyntheticCorpusConfig",
        "preset": "heldin.corpus.presets.source:PresetCorpus",
    },
)
CorpusSource: TypeAlias = Annotated[SourceConfig, OfKind(SOURCES)]
