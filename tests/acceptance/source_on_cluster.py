"""``spark-submit … source_on_cluster.py ROOT PLACE``: the four lines of the data source on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, for the driver alone

from lakequeue.spark.session import build_session
from spark.source_scenario import four_lines

if __name__ == "__main__":
    four_lines(build_session("data source"), sys.argv[1], Path(sys.argv[2]))
