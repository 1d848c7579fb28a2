"""The verbs of the command line: each parses, calls the library, prints, returns an exit code."""
