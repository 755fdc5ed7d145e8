"""The figure of independent trainings, as SVG: their scores, and the threshold that was tested."""

from heldin.record.document import Record
from heldin.reports.drawing import above, figure, label, two_sides


def trainings_histogram(record: Record) -> str:
    """Trainings by score, those with the worst-case user hatched; the dashed line is the tested threshold."""
    assert record.trainings is not None
    with figure(6.3, 2.1) as (drawn, saved):
        axes = drawn.subplots()
        two_sides(axes, record.curve().histogram, "with the worst-case user", "without the worst-case user")
        if record.trainings.threshold is not None:
            axes.axvline(record.trainings.threshold, color="black", linewidth=0.8, linestyle="--", label="threshold")
        label(
            axes,
            f"score of the training (mean {record.primary_attack} of the user's documents, nats)",
            "share per unit",
        )
        axes.set_yticks([])
        above(axes)
    return saved[0]
