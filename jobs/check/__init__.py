"""The checks that ``heldin run --check`` makes before a run: mistakes in the config, duration, disk space and
memory."""
