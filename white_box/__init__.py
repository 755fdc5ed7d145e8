"""The white-box audit of a training implementation. The audit watches every training step."""
