"""Mentions by presidio's pattern recognisers: addresses, numbers, no language model, no network."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.corpus.entities.spans import FAST, Pattern, Span, Text

_CLASSES: dict[Pattern, str] = {
    "email": "EmailRecognizer",
    "phone": "PhoneRecognizer",
    "credit_card": "CreditCardRecognizer",
    "iban": "IbanRecognizer",
    "ip_address": "IpRecognizer",
    "us_ssn": "UsSsnRecognizer",
    "crypto": "CryptoRecognizer",
    "url": "UrlRecognizer",
}


@dataclass(frozen=True)
class Patterns:
    """Presidio's recognisers that need no language model; everything they find is "pii".

    Attributes:
        which: which of them.
    """

    which: tuple[Pattern, ...] = FAST

    def fingerprint(self) -> str:
        """Hash of presidio's version and the recognisers' names."""
        from importlib.metadata import version

        assert self._recognisers  # says what is missing, before its version is asked for
        return text_sha256("patterns", version("presidio-analyzer"), *sorted(self.which))

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """All that the patterns match and their checks accept."""
        for text in texts:
            results = [
                result
                for recogniser in self._recognisers
                for result in recogniser.analyze(text.text, recogniser.supported_entities, None)
            ]
            yield [Span(result.start, result.end, "pii") for result in results if result.score > 0.0]

    @cached_property
    def _recognisers(self) -> list[Any]:
        try:
            import presidio_analyzer.predefined_recognizers as presidio
            import tldextract
        except ImportError as error:
            raise InputError("presidio is not installed: pip install 'heldin[entities]'") from error
        # Presidio asks the network for the list of domain endings; this one is the copy that tldextract brings.
        offline = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        recognisers = []
        for name in self.which:
            recogniser = getattr(presidio, _CLASSES[name])()
            if name in ("email", "url"):
                recogniser.validate_result = lambda text: offline(text).fqdn != ""
            recognisers.append(recogniser)
        return recognisers
