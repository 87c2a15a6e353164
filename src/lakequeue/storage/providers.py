"""What tells one kind of object store from another, by the scheme of its roots: a new kind is a row."""

from __future__ import annotations

from urllib.parse import urlsplit

import attrs


@attrs.frozen
class Provider:
    """A kind of object store."""

    prefix: str
    """What its options begin with, and its variables of the environment."""
    also: tuple[str, ...] = ()
    """Other names of the scheme."""
    hadoop: str = ""
    """The module of Hadoop by which Spark reaches it; empty: Spark needs another name of the root."""
    hadoop_scheme: str = ""
    """The scheme in names that Spark gets."""
    excluded: tuple[str, ...] = ()
    """Packages that the module names, and a session does not need."""


PROVIDERS = {
    # the whole SDK has 686 MB, of which each executor gets a copy; Netty is in Spark, in a newer release
    "s3": Provider("aws_", ("s3a", "s3n"), "hadoop-aws", "s3a", ("software.amazon.awssdk:bundle", "io.netty:*")),
    "az": Provider("azure_", ("azure",), hadoop_scheme="az"),
    "abfss": Provider("azure_", ("abfs",), "hadoop-azure", "abfss"),
    "gs": Provider("google_", ("gcs",), "hadoop-gcp", "gs"),
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
