"""The part of a record about the arithmetic in which texts were scored, where it is not float32."""

from heldin.base.section import Facts


class PrecisionFacts(Facts):
    """In what the models were loaded for scoring, and how far that moved a sample of the leading statistic.

    Attributes:
        precision: bf16, int8 or nf4.
        statistic: the leading attack.
        values: number of texts of the sample, or of users for a statistic of all of a user's texts.
        mean_shift: mean of the difference to float32, with its sign; null if float32 did not fit into memory.
        largest_shift: largest difference, without its sign; null likewise.
        deviation: standard deviation of the statistic in float32 over the sample; null likewise.
    """

    precision: str
    statistic: str
    values: int
    mean_shift: float | None
    largest_shift: float | None
    deviation: float | None

    @property
    def line(self) -> str:
        """It in a sentence."""
        if self.mean_shift is None or self.largest_shift is None or self.deviation is None:
            return f"{self.precision}; how far it moves scores was not measured: float32 did not fit into memory"
        return (
            f"{self.precision}; moves {self.statistic} by {self.mean_shift:+.2g} on average and at most"
            f" {self.largest_shift:.2g} on a sample of {self.values}, whose standard deviation is {self.deviation:.2g}"
        )
