"""The command ``lakequeue``: the Python API on the command line. Only the Spark commands start a JVM.

Exit codes: 0 done; 1 refused by the service, whose error code is printed; 2 wrong usage; 3 failure of storage or
environment; 130 Ctrl-C. Results go to standard output, all other text to standard error.
"""

from lakequeue.cli.app import app, main

__all__ = ["app", "main"]
