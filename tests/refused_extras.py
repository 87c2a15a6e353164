"""A sitecustomize.py that refuses the packages of all extras, as if only the core were installed."""

from __future__ import annotations

REFUSE = """
import sys

EXTRAS = {"pyspark", "delta", "deltalake", "py4j", "pandas", "matplotlib", "starlette", "uvicorn", "httptools"}
EXTRAS |= {"uvloop", "botocore", "boto3", "prometheus_client", "opentelemetry", "grpc"}
EXTRAS |= {"kombu", "airflow", "dagster"}


class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Refuse)
"""
