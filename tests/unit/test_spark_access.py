"""What Spark gets of a root's options, and that the files in conf/ name the same jars."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from lakequeue.spark.session import excluded, installed_delta_jar
from lakequeue.storage.engines.spark_access import packages
from lakequeue.storage.providers import s3a_settings

CONF = Path(__file__).parents[2] / "conf"
S3A = "org.apache.hadoop.fs.s3a"


@pytest.mark.parametrize(
    ("name", "scheme"), [("s3", "s3"), ("azure", "abfss"), ("gcs", "gs"), ("local", ""), ("standalone", "")]
)
def test_files_name_the_jars_that_a_session_of_python_gets(name: str, scheme: str) -> None:
    lines = (CONF / f"{name}.conf").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split() for line in lines if line and not line.startswith("#") and "Options" not in line)
    delta, *others = settings["spark.jars.packages"].split(",")
    assert delta == installed_delta_jar()
    assert tuple(others) == packages(scheme, None) == packages(scheme, "3.5.0")
    assert settings["spark.jars.excludes"] == ",".join(excluded(scheme))
    assert not any("logStore" in setting for setting in settings)


def test_excluded_jars_are_in_spark() -> None:
    """Delta's other jars are its own, or only these need them."""
    in_spark = {path.name for path in (Path(pyspark.__file__).parent / "jars").iterdir()}
    named = ["jackson-annotations", "jackson-core", "jackson-databind", "jsr305", "hadoop-client-api"]
    named += ["hadoop-client-runtime", "log4j-api", "log4j-core", "log4j-slf4j2-impl", "parquet-column"]
    named += ["parquet-common", "parquet-hadoop", "RoaringBitmap", "slf4j-api", "jcl-over-slf4j"]
    assert [name for name in named if not any(jar.startswith(f"{name}-") for jar in in_spark)] == []
    assert {name.split(":")[0] for name in excluded("")} == {
        "com.fasterxml.jackson.core",
        "com.google.code.findbugs",
        "commons-logging",
        "org.apache.hadoop",
        "org.apache.logging.log4j",
        "org.apache.parquet",
        "org.roaringbitmap",
        "org.slf4j",
    }


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        (
            {"AWS_ACCESS_KEY_ID": "a", "aws_secret_access_key": "b"},
            {
                "access.key": "a",
                "secret.key": "b",
                "aws.credentials.provider": f"{S3A}.SimpleAWSCredentialsProvider",
            },
        ),
        (
            {"access_key_id": "a", "secret_access_key": "b", "AWS_SESSION_TOKEN": "c"},
            {
                "access.key": "a",
                "secret.key": "b",
                "session.token": "c",
                "aws.credentials.provider": f"{S3A}.TemporaryAWSCredentialsProvider",
            },
        ),
        ({"AWS_SKIP_SIGNATURE": "true"}, {"aws.credentials.provider": f"{S3A}.AnonymousAWSCredentialsProvider"}),
        (
            {"AWS_ENDPOINT_URL": "http://minio:9000", "AWS_REGION": "eu-west-1"},
            {"endpoint": "http://minio:9000", "endpoint.region": "eu-west-1", "path.style.access": "true"},
        ),
        (
            {"endpoint": "https://lake.example", "aws_virtual_hosted_style_request": "true"},
            {"endpoint": "https://lake.example"},
        ),
        # for delta-rs alone
        ({"AWS_S3_LOCKING_PROVIDER": "dynamodb", "AWS_ALLOW_HTTP": "true", "timeout": "10s"}, {}),
    ],
)
def test_options_become_settings_of_s3a(
    options: dict[str, str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert s3a_settings(options) == settings


def test_an_endpoint_of_the_environment_is_asked_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert s3a_settings({}) == {"path.style.access": "true"}
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    assert s3a_settings({}) == {}
