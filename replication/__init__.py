"""Published results, computed again with heldin: ``python -m replication`` from the root of the repository.

Nothing here is installed with heldin, and no package of heldin imports it.
"""
