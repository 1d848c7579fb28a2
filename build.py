"""`python build.py VERB`: the command line of torchproof, run from a checkout."""

import sys

if __name__ == "__main__":
    try:
        from torchproof.cli import main
    except KeyboardInterrupt:  # Ctrl-C while the libraries load
        sys.exit(130)
    sys.exit(main())
