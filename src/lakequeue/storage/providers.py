"""What tells one kind of object store from another, by the scheme of its roots: a new kind is a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import attrs


@attrs.frozen
class Provider:
    """A kind of object store."""

    prefix: str
    """What its options begin with, and its variables of the environment."""
    also: tuple[str, ...] = ()
    """Other names of the scheme."""
    has_container: bool = False
    """Whether its roots name a container before an @, where others might have a secret."""
    credentials: tuple[str, ...] = ()
    """Options that give credentials, or name their source; without one, the machine's service is asked."""
    hadoop: str = ""
    """The module of Hadoop by which Spark reaches it; empty: Spark needs another name of the root."""
    hadoop_scheme: str = ""
    """The scheme in names that Spark gets."""
    connector: str = ""
    """What Spark may use instead with Hadoop before 3.5, if that has no such module."""
    sdk: tuple[str, ...] = ()
    """Packages that the module needs, too."""
    sdk_releases: Mapping[str, str] = attrs.field(factory=dict)
    """Their release by that of Hadoop."""
    excluded: tuple[str, ...] = ()
    """Packages that the module names, and a session does not need."""
    spark_overwrites: bool = False
    """Whether Delta's log store in Spark checks and then writes, so that of two commits one may be lost."""
    spark_settings: Callable[[Mapping[str, str]], dict[str, str]] | None = None
    """Settings of Spark's file system for one bucket, by the root's options; None: it has rights of its own."""


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
"""Settings of s3a by options of delta-rs, without their prefix."""


def s3a_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of s3a for one bucket that mean what options of delta-rs mean."""
    given = {bare_name(name): value for name, value in options.items()}
    found = {_S3A_SETTINGS[name]: value for name, value in given.items() if name in _S3A_SETTINGS}
    if "access.key" in found:
        kind = "TemporaryAWSCredentialsProvider" if "session.token" in found else "SimpleAWSCredentialsProvider"
        found["aws.credentials.provider"] = f"{_S3A}.{kind}"
    elif given.get("skip_signature", "").lower() == "true":
        found["aws.credentials.provider"] = f"{_S3A}.AnonymousAWSCredentialsProvider"
    virtual = given.get("virtual_hosted_style_request", os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", ""))
    # Spark takes an endpoint from this variable by itself, but then asks for bucket.host, which few servers have
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
        # the parts that s3a uses; the whole SDK has 686 MB, of which each executor gets a copy
        sdk=("software.amazon.awssdk:s3-transfer-manager", "software.amazon.awssdk:sts"),
        sdk_releases={"3.4.1": "2.24.6", "3.4.2": "2.29.52", "3.5.0": "2.35.4"},
        excluded=("software.amazon.awssdk:bundle", "io.netty:*"),  # Netty is in Spark, in a newer release
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
    """The scheme of roots that a name means; the name in small letters if it means none."""
    name = name.lower()
    return next((scheme for scheme, provider in PROVIDERS.items() if name in provider.also), name)


def scheme_of(root: str) -> str:
    """The scheme of a root; empty for a local one."""
    found = scheme_named(urlsplit(root).scheme)
    return found if found in PROVIDERS else ""


def bare_name(name: str) -> str:
    """The name of an option without a prefix, in small letters."""
    name = name.lower()
    return next((name.removeprefix(each) for each in PREFIXES if name.startswith(each)), name)
