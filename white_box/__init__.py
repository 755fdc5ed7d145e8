"""The audit of a training implementation, every step watched."""
