"""The checks of ``heldin run --check`` before a run: mistakes in the config, duration, disk space and memory."""
