"""Whose word a plan rests on, where another package takes its steps."""

from pydantic import JsonValue

from heldin.base.errors import InputError
from heldin.base.kinds import Origin
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
        return f"{self.package} {self.version or '(not installed)'}"

    def require_same_code(self, origin: Origin | None) -> None:
        """Raise InputError unless the installed code is the declared one."""
        now = None if origin is None else (origin.package, origin.version, origin.sha256)
        if now != (self.package, self.version, self.sha256):
            there = "gone" if origin is None else f"{origin.package} {origin.version} (code {origin.sha256[:16]})"
            raise InputError(
                f"the plan was made with {self.of_package} (code {self.sha256[:16]}), which is {there} now: install"
                " what it was, or make the plan again"
            )
