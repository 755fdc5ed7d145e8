"""A folder of mail as a source of a corpus."""

from pathlib import Path
from typing import Literal

from heldin.base.section import ExpandedPath
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.mail import Maildir, MailUser
from heldin.corpus.sources.rows import Source


class MaildirCorpus(SourceConfig):
    """A folder with a subfolder per account and one file per message, as in the Enron tarball."""

    kind: Literal["maildir"]
    path: ExpandedPath
    """Folder with a subfolder for each account."""
    user: MailUser = "sender"
    """Who counts as the user of a message: the sender, or the account whose folder contains the message."""
    folders: tuple[str, ...] = ()
    """Mail folders to read, such as sent or sent_items; an empty list: all."""

    def source(self) -> Source:
        """Return the source that reads the folder."""
        return Maildir(self.path, self.user, self.folders)

    def paths(self) -> tuple[Path, ...]:
        """Return the folder."""
        return (self.path,)

    def may_be_folder(self, path: Path) -> bool:
        """Return True, because the source is a folder."""
        return True
