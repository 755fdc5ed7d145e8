"""Clipping without noise (Kandpal et al., D.3): a heuristic without a guarantee."""

from typing import Any, Literal

from heldin.defenses.choices import BatchClip, ClipNorm, FlatClip
from heldin.defenses.mechanisms.contract import DefenseConfig, Given
from heldin.defenses.mechanisms.plain import plain_plan


class ClippingDefense(DefenseConfig):
    """Clipping without noise (Kandpal et al., D.3), a heuristic without a guarantee."""

    kind: Literal["clip"]
    unit: Literal["example", "batch"]
    """What to clip: the gradient of each example, or the gradient of the batch."""
    clip_norm: ClipNorm | None = None
    """Clip norm. null: the smallest gradient norm in a first training run without a defense."""

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields, with the norm in the config or the measured norm."""
        norm = self.clip_norm or given.clip_norm
        assert norm is not None
        kinds = {"batch": BatchClip, "example": FlatClip}
        return plain_plan(given, kinds[self.unit](norm=norm))

    @property
    def clips_plainly(self) -> Literal["example", "batch"]:
        """The clipped unit in the config."""
        return self.unit

    @property
    def measured_clip(self) -> Literal["example", "batch"] | None:
        """The clipped unit if the config has no clip norm, else None."""
        return self.unit if self.clip_norm is None else None

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The defense's key, because the defense clips whole gradients."""
        return (f"defense.kind {self.kind}",)

    def retraining_problem(self, documents: int | None) -> str | None:
        """Return a problem if heldin measures the clip norm."""
        if self.clip_norm is None:
            return "give defense.clip_norm: a norm measured in each training would differ between trainings"
        return None
