"""`python -m afarm`: the command line."""

from afarm.cli import main

main()
