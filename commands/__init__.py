"""Groups of subcommands of the command line; nothing but wiring."""
