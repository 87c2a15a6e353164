"""Metadata that Airflow reads when it starts. This module must not import Airflow."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns the metadata for Airflow's entry point ``apache_airflow_provider``."""
    module = "lakequeue.integrations.airflow"
    operators = {"integration-name": "lakequeue", "python-modules": [module]}
    triggers = {"integration-name": "lakequeue", "python-modules": [f"{module}_triggers"]}
    return {
        "package-name": "lakequeue",
        "name": "lakequeue",
        "description": "A message queue that lives in Delta tables.",
        "integrations": [{"integration-name": "lakequeue", "tags": ["software"]}],
        "operators": [operators],
        "sensors": [operators],
        "hooks": [operators],
        "triggers": [triggers],
        "connection-types": [
            {
                "connection-type": "lakequeue",
                "hook-class-name": f"{module}.LakeQueueHook",
                "hook-name": "lakequeue",
            }
        ],
        "queues": [f"{module}.LakeQueueMessageQueueProvider"],
    }
