"""The checks of ``heldin run --check`` before a run begins: mistakes, duration, space and memory."""
