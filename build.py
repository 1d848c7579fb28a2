"""`python build.py VERB`: the command line of torchproof, run from a checkout."""

import sys

from torchproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
