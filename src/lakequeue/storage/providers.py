"""The kinds of object stores, by the scheme of a root's URI. A new kind needs only another ``Provider``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class Provider:
    """A kind of object store, such as S3."""

    prefix: str
    """Prefix of the names of options and environment variables for this kind of store."""
    also: tuple[str, ...] = ()
    """Other names that users may give for the scheme."""
    has_container: bool = False
    """True if URIs have the form ``container@account``. For other stores, a secret may precede the ``@``."""
    credentials: tuple[str, ...] = ()
    """Options that give credentials. If none is set, the metadata service of the machine gives credentials."""
    hadoop: str = ""
    """Hadoop module that Spark loads for this kind of store. Empty if Spark needs no module."""
    hadoop_scheme: str = ""
    """Scheme of a root's URI for Spark."""
    connector: str = ""
    """Connector that a user adds if Spark's Hadoop is before 3.5. Such a Hadoop lacks the module in ``hadoop``."""
    sdk: tuple[str, ...] = ()
    """Further packages that the Hadoop module needs."""
    sdk_releases: Mapping[str, str] = attrs.field(factory=dict)
    """Release of the packages in ``sdk`` for each release of Hadoop."""
    excluded: tuple[str, ...] = ()
    """Dependencies of the module ``hadoop`` that a Spark session does not need."""
    spark_overwrites: bool = False
    """True if Spark may lose one of two simultaneous commits, because it does not create log files atomically."""
    spark_settings: Callable[[Mapping[str, str]], dict[str, str]] | None = None
    """Converts a root's options to settings of Spark's file system. None if Spark takes its own credentials."""


_S3A = "org.apache.hadoop.fs.s3a"
_S3A_SETTINGS = {
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
}
"""Name of the setting of s3a for each option of delta-rs. The option's prefix is left out."""


def s3a_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Translates options of delta-rs into settings of Spark's s3a file system for one bucket."""
    bare_options = {bare_name(name): value for name, value in options.items()}
    found = {_S3A_SETTINGS[name]: value for name, value in bare_options.items() if name in _S3A_SETTINGS}
    if "access.key" in found:
        kind = "TemporaryAWSCredentialsProvider" if "session.token" in found else "SimpleAWSCredentialsProvider"
        found["aws.credentials.provider"] = f"{_S3A}.{kind}"
    elif bare_options.get("skip_signature", "").lower() == "true":
        found["aws.credentials.provider"] = f"{_S3A}.AnonymousAWSCredentialsProvider"
    virtual = bare_options.get(
        "virtual_hosted_style_request", os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "")
    )
    # Spark reads the endpoint from this variable by itself, but then requests bucket.host, which few servers
    # support.
    if ("endpoint" in found or "AWS_ENDPOINT_URL" in os.environ) and virtual.lower() != "true":
        found["path.style.access"] = "true"
    return found


PROVIDERS = {
    "s3": Provider(
        "aws_",
        ("s3a", "s3n"),
        credentials=(
            *("access_key_id", "skip_signature", "web_identity_token_file"),
            *("container_credentials_full_uri", "container_credentials_relative_uri"),
        ),
        hadoop="hadoop-aws",
        hadoop_scheme="s3a",
        # Only the parts that s3a uses. The whole SDK has 686 MB, and each executor gets a copy.
        sdk=("software.amazon.awssdk:s3-transfer-manager", "software.amazon.awssdk:sts"),
        sdk_releases={"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.5.0": "2.35.4"},
        excluded=("software.amazon.awssdk:bundle", "io.netty:*"),  # Spark has a newer release of Netty.
        spark_overwrites=True,
        spark_settings=s3a_settings,
    ),
    "az": Provider("azure_", ("azure",), hadoop_scheme="az"),
    "abfss": Provider("azure_", ("abfs",), has_container=True, hadoop="hadoop-azure", hadoop_scheme="abfss"),
    "gs": Provider(
        "google_", ("gcs",), hadoop="hadoop-gcp", hadoop_scheme="gs", connector="Google's gcs-connector"
    ),
}
PREFIXES = tuple({provider.prefix for provider in PROVIDERS.values()})


def scheme_named(name: str) -> str:
    """Returns the scheme for a name or an alias of a scheme, in lower case."""
    name = name.lower()
    return next((scheme for scheme, provider in PROVIDERS.items() if name in provider.also), name)


def scheme_of(root: str) -> str:
    """Returns the scheme of a root. Returns an empty text for a local root."""
    found = scheme_named(urlsplit(root).scheme)
    return found if found in PROVIDERS else ""


def bare_name(name: str) -> str:
    """Returns an option's name in lower case without its prefix."""
    name = name.lower()
    return next((name.removeprefix(each) for each in PREFIXES if name.startswith(each)), name)
