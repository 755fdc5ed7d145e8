"""The white-box audit of a training implementation, which watches every step."""
