from heldin_digits import Digits

from heldin.corpus.document import Document
from heldin.defenses.data_side.apply import as_trained
from heldin.testing import check_defense


def test_it_does_what_it_declares():
    check_defense(Digits(kind="heldin_digits:Digits"))


def test_digits_are_gone():
    left = as_trained(
        [Digits(kind="heldin_digits:Digits")], {"a": Document.of("On day 17."), "b": Document.of("None.")}
    )
    assert [document.text for document in left] == ["On day 00.", "None."]
