"""The declaration of a package that computes the steps of a plan."""

from pydantic import JsonValue

from heldin.base.kinds import Origin
from heldin.base.wording import with_version
from heldin.defenses.choices import Choice
from heldin.words.guarantee import Watched


class Declared(Choice):
    """The package that declares a plan's steps.

    Attributes:
        kind: kind of ``defense`` in the config.
        package: name of the distribution; the top-level module if no distribution has it.
        version: version of the distribution; None for modules that were not installed.
        sha256: hash of the package's Python files.
        settings: the config section of the step.
        audit: result of a white-box audit of the step.
    """

    kind: str
    package: str
    version: str | None
    sha256: str
    settings: dict[str, JsonValue]
    audit: Watched = "not run"

    @property
    def failed(self) -> bool:
        """Whether a white-box audit contradicts the declaration."""
        return self.audit == "failed"

    @property
    def of_package(self) -> str:
        """The package and its version."""
        return with_version(self.package, self.version)

    @property
    def origin(self) -> Origin:
        """The code that computes the steps."""
        return Origin(
            family="mechanisms", kind=self.kind, package=self.package, version=self.version, sha256=self.sha256
        )
