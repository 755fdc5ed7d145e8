"""Recompute published results with heldin: ``python -m replication`` from the root of the repository.

heldin's installation does not include this package, and no package of heldin imports it.
"""
