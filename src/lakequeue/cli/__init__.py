"""The command ``lakequeue``: the Python API on the command line.

Exit codes: 0 done. 1 the service refused the request, and its error code is printed. 2 wrong usage. 3 storage or
the environment failed. 130 interrupted by Ctrl-C. Results go to standard output, all other text to standard error.
Only the Spark commands start a JVM.
"""

from lakequeue.cli.app import app, main

__all__ = ["app", "main"]
