"""The public Python interface: the functions and classes that ``import heldin`` offers."""
