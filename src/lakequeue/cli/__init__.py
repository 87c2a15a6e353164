"""The command ``lakequeue``: a thin face of the Python API for people and scripts.

Exit codes: 0 done; 1 the service refused, its code is printed; 2 the command line is wrong; 3 storage or
the environment failed; 130 interrupted by Ctrl-C. Results go to standard output, everything else to
standard error. Queue commands start no JVM.
"""

from lakequeue.cli.app import app, main

__all__ = ["app", "main"]
