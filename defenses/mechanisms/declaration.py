"""Whose word a plan rests on, where another package takes its steps."""

from pydantic import JsonValue

from heldin.base.kinds import Origin
from heldin.base.wording import with_version
from heldin.defenses.choices import Choice
from heldin.words.guarantee import Watched


class Declared(Choice):
    """Who declares what a plan's steps do.

    Attributes:
        kind: of ``defense``, as the config names it.
        package: distribution; the top-level module, if none has it.
        version: of the distribution; None for modules that were not installed.
        sha256: of the package's Python files.
        settings: the section of the config, from which the step is made.
        audit: what a white-box audit of the step found.
    """

    kind: str
    package: str
    version: str | None
    sha256: str
    settings: dict[str, JsonValue]
    audit: Watched = "not run"

    @property
    def failed(self) -> bool:
        """Whether a white-box audit contradicts what is declared."""
        return self.audit == "failed"

    @property
    def of_package(self) -> str:
        """The package and its version."""
        return with_version(self.package, self.version)

    @property
    def origin(self) -> Origin:
        """The code that takes the steps."""
        return Origin(
            family="mechanisms", kind=self.kind, package=self.package, version=self.version, sha256=self.sha256
        )
