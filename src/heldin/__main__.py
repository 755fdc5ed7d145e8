"""`python -m heldin`."""

from heldin.commands.cli import main

main()
