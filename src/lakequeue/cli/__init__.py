"""The command ``lakequeue``: the Python API on the command line. Only the Spark commands start a JVM.

Exit codes: 0 done; 1 refused by the service; 2 wrong usage; 3 failure of storage or environment; 130 Ctrl-C. With
code 1, the service's error code is printed. Results go to standard output. All other text goes to standard error.
"""

from lakequeue.cli.app import app, main

__all__ = ["app", "main"]
