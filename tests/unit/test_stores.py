"""Options of object stores: who gets them, and who never sees them."""

from __future__ import annotations

import logging
import re
import traceback
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError

from insides import engine_of
from lakequeue import InvalidParameterValue, LakeQueue, QueueClientError
from lakequeue.model.secrets import STORES, hidden
from lakequeue.storage.providers import PROVIDERS, bare_name
from lakequeue.storage.stores import Store

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA-nobody", "AWS_SECRET_ACCESS_KEY": "s3cr3t-value"}


def test_options_never_show(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lq = LakeQueue("s3://lake/a", storage_options=KEYS)
    shown = repr(lq) + str(lq) + repr(engine_of(lq).store) + repr(vars(lq)) + caplog.text
    assert "s3cr3t" not in shown and "AKIA" not in shown
    assert lq.root in shown


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"AWS_ENDPOIND_URL": "http://s3cr3t"}, "aws_endpoind_url"),
        ({"AWS_REGION": 1}, "AWS_REGION"),
        (
            {"AWS_SECRET_ACCESS_KEY": b"s3cr3t"},
            "of type bytes for parameter storage_options['AWS",
        ),
        ({"AWS_SECRET_ACCESS_KEY": ["s3cr3t"]}, "of type list"),
        ({1: "a"}, "storage_options"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidParameterValue, match="storage_options") as caught:
        LakeQueue("s3://lake/a", storage_options=KEYS | options)
    assert told in caught.value.message and "s3cr3t" not in caught.value.message


@pytest.mark.parametrize("options", ["s3cr3t", [("AWS_SECRET_ACCESS_KEY", "s3cr3t")]])
def test_options_that_are_no_mapping_are_refused_by_type(options: object) -> None:
    with pytest.raises(
        InvalidParameterValue, match="storage_options is invalid. Reason: Must be a mapping"
    ) as caught:
        LakeQueue("s3://lake/a", storage_options=options)  # type: ignore[arg-type]
    assert "s3cr3t" not in caught.value.message


SCHEMES = sorted({each for name, provider in PROVIDERS.items() for each in (name, *provider.also)})
SECRETIVE = [
    *(f"{name}{slashes}{rest}" for name in (*SCHEMES, "S3", "http", "HTTPS", "redis") for slashes in (":/", "://")
      for rest in ("id:s3cr3t@lake/a", "id:s3/cr3t+x=@lake/a", "id:a@s3cr3t@lake/a", "s3cr3t:x@y")),
    *(f"{name}:{rest}" for name in (*SCHEMES, "S3A", "http") for rest in ("id:s3cr3t@lake/a", "id:x/s3cr3t@b")),
    *(f"{name}{slashes}id:s3cr3t{rest}" for name in STORES for slashes in (":", ":/", ":///")
      for rest in ("", "/")),
    *("s3:/s3cr3t@lake/a", "az://box/a?sig=s3cr3t", "az:/box/a?sig=s3cr3t", "gs:box?s3cr3t", "s3://box/a#s3cr3t"),
    *("https:/account/a?sig=s3cr3t", "abfss://c:s3cr3t@account.dfs/a"),
]  # fmt: skip


def test_secrets_in_a_root_are_refused_unseen() -> None:
    for root in SECRETIVE:
        with pytest.raises(InvalidParameterValue, match="root") as caught:
            LakeQueue(root)
        told = "".join(traceback.format_exception(caught.value))
        assert not re.search("cr3t|id:", told), root


@pytest.mark.parametrize("before", ["no root: ", "'", '"', "root=", "(", "/home/me/", ""])
def test_secrets_are_in_no_text(before: str) -> None:
    for root in SECRETIVE:
        if "#" not in root:
            assert not re.search("cr3t|id:", hidden(f"{before}{root}")), root


@pytest.mark.parametrize(
    "text",
    [
        *(
            "s3://lake/a@b/c",
            "abfss://box@account.dfs.core.windows.net/a",
            "az://box@account/a",
            "http://host:80/a@b",
        ),
        *("arn:lakequeue:local:default:orders", "celery@host: gone", "12:30:00 me@host", "C:/users/me", "a: b@c"),
        "user 5: file /data/x@y is missing",
    ],
)
def test_a_text_without_secrets_stays(text: str) -> None:
    assert hidden(text) == text


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "proxy_url"])
def test_secrets_of_an_endpoint_or_a_proxy_are_not_shown(name: str) -> None:
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
    lake = LakeQueue("s3://lake/a", storage_options=KEYS | options | {name: "http://me:s3cr3t@127.0.0.1:1"})
    with pytest.raises(QueueClientError, match="nothing listens") as caught:
        lake.create_queue("orders")
    told = "".join(traceback.format_exception(caught.value))
    assert "s3cr3t" not in told and "me:" not in told


NO_URLS = [
    *(
        "",
        "foo bar",
        "store:9000",
        "http://",
        "http://me:s3cr3t@foo bar",
        "http://store:99999",
        "http://[::1",
        "ftp://store",
    ),
    *("http://k\u00e4se:1", " http://store", "http://store/s3cr3t\n"),
]


@pytest.mark.parametrize("value", NO_URLS)
def test_an_endpoint_that_is_no_url_is_refused_by_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a panic, at which obstore would end."""
    names = {"s3": "AWS_ENDPOINT_URL", "gs": "google_base_url", "az": "azure_storage_endpoint"}
    for scheme, name in names.items():
        with pytest.raises(InvalidParameterValue, match=f"^{name} must be a URL") as caught:
            LakeQueue(f"{scheme}://lake/a", storage_options={name: value})
        assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("AWS_ENDPOINT_URL", value)
    with pytest.raises(InvalidParameterValue, match="^AWS_ENDPOINT_URL must be a URL"):
        LakeQueue("s3://lake/a")
    LakeQueue("gs://lake/a")
    LakeQueue("/tmp/lake")


@pytest.mark.parametrize(
    "value",
    [
        *("http://127.0.0.1:9000", "https://store.example/", "HTTP://[::1]:80", "http://me:s3cr3t@store_1"),
        *("http://127.0.0.1:10000/devstoreaccount1", "https://x.blob.core.windows.net:65535/a?b=%20c"),
    ],
)
def test_an_endpoint_may_be_any_url(value: str) -> None:
    LakeQueue("s3://lake/a", storage_options=KEYS | {"AWS_ENDPOINT_URL": value})


REACHED = {
    "s3": {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", **KEYS},
    "az": {
        "azure_storage_endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "azure_storage_account_name": "mine",
        "azure_storage_account_key": "a2V5",
    },
    "gs": {"google_base_url": "http://127.0.0.1:1", "google_skip_signature": "true", "allow_http": "true"},
}
"""Options with which nothing is missing but a server."""


def options_of(scheme: str) -> list[str]:
    """Names of all options of obstore for a store."""
    stubs = Path(obstore.__file__).with_name("_store")
    kinds = {"s3": "_aws", "az": "_azure", "gs": "_gcs"}[scheme], "_client"
    texts = [(stubs / f"{kind}.pyi").read_text() for kind in kinds]
    return sorted({name for text in texts for name in re.findall("^    ([a-z0-9_]+): ", text, re.MULTILINE)})


def test_the_options_of_obstore_are_known() -> None:
    assert all(len(options_of(scheme)) > 25 for scheme in REACHED)
    assert {"http1_only", "user_agent", "region"} <= set(options_of("s3"))


@pytest.mark.parametrize("value", ["s3cr3t", "s3\ncr3t", "http://me:s3cr3t@127.0.0.1:1"], ids=ascii)
@pytest.mark.parametrize("scheme", REACHED)
def test_no_trace_shows_a_wrong_value_of_an_option(scheme: str, value: str) -> None:
    """Nor does obstore end in a panic."""
    names = [*options_of(scheme), "retry_timeout", "max_retries", "init_backoff"]
    for name in (*names, *(f"{PROVIDERS[scheme].prefix}{each}" for each in names)):
        options = {given: each for given, each in REACHED[scheme].items() if bare_name(given) != bare_name(name)}
        try:
            LakeQueue(
                f"{scheme}://lake/a", storage_options={"max_retries": "0"} | options | {name: value}
            ).list_queues()
        except (InvalidParameterValue, QueueClientError) as error:
            assert "cr3t" not in "".join(traceback.format_exception(error)), name


@pytest.mark.parametrize("name", ["AWS_BUCKET", "bucket_name"])
def test_the_root_alone_names_the_bucket(name: str) -> None:
    with pytest.raises(InvalidParameterValue, match=f"the root names the bucket, not {name}"):
        LakeQueue("s3://lake/a", storage_options=KEYS | {name: "another"})


def test_options_reach_both_libraries_by_the_names_of_delta() -> None:
    given = KEYS | {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "aws_allow_http": "true",
        "timeout": "3s",
        "max_retries": "2",
        "AWS_S3_LOCKING_PROVIDER": "dynamodb",
    }
    store = Store("s3://lake/a", given)
    store.check()
    assert store.options == given
    arguments = store._arguments()
    assert arguments["config"].keys() == {"aws_access_key_id", "aws_secret_access_key", "aws_endpoint_url"}
    assert arguments["client_options"] == {"allow_http": "true", "timeout": "3s", "connect_timeout": "3s"}
    assert arguments["retry_config"] == {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


def test_an_account_in_the_options_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a copy from one Azure account to another would have one account."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "first")
    monkeypatch.setenv("AZURE_PROXY_URL", "http://127.0.0.1:1")
    fast = {"max_retries": "0"}
    for options, account in ({}, "first"), ({"AZURE_STORAGE_ACCOUNT_NAME": "second"}, "second"):
        with pytest.raises(BaseError, match=rf"https://{account}\.blob"):
            Store("az://lake/a", fast | options | {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}).folder(
                "az://lake/a"
            ).read("x")


def test_how_long_requests_are_tried_is_the_same_in_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"max_retries": "7", "retry_timeout": "1m 30s", "backoff_config.max_backoff": "500ms"}
    monkeypatch.setenv("AWS_TIMEOUT", "90s")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = Store("s3://lake/a", given)
    assert store.delta_options == {"connect_timeout": "3s"} | given  # it reads the environment itself
    arguments = store._arguments()
    assert arguments["client_options"] == {"allow_http": "true", "timeout": "90s", "connect_timeout": "3s"}
    retry = {"max_retries": 7, "retry_timeout": timedelta(seconds=90)}
    assert arguments["retry_config"] == retry | {"backoff": {"max_backoff": timedelta(seconds=0.5)}}
    with pytest.raises(InvalidParameterValue, match="retry_timeout"):
        Store("s3://lake/a", {"retry_timeout": "soon"}).check()


def test_handles_with_other_options_are_not_shared() -> None:
    one, other = (LakeQueue("s3://lake/a", storage_options=KEYS | {"AWS_REGION": each}) for each in "ab")
    again = LakeQueue("s3a://lake/a/", storage_options=KEYS | {"AWS_REGION": "a"})
    assert one._runtime.catalog is again._runtime.catalog
    assert one._runtime.catalog is not other._runtime.catalog


def test_handles_that_other_variables_reach_are_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read these variables once, when they are made."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    one, again = LakeQueue("s3://lake/a", storage_options=KEYS), LakeQueue("s3://lake/a", storage_options=KEYS)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    other = LakeQueue("s3://lake/a", storage_options=KEYS)
    assert one._runtime.catalog is again._runtime.catalog
    assert one._runtime.catalog is not other._runtime.catalog
    shared, apart = (LakeQueue("/lake/a") for _ in range(2))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert shared._runtime.catalog is apart._runtime.catalog is LakeQueue("/lake/a")._runtime.catalog


def test_all_tables_of_a_root_share_their_connections() -> None:
    store = Store("s3://lake/a", KEYS)
    one, two = store.folder("s3://lake/a/q/k/0/messages"), store.folder("s3://lake/a/queues") / "_delta_log"
    assert one._client("get") is two._client("get")
    assert (one._at("x"), two._at("x")) == ("q/k/0/messages/x", "queues/_delta_log/x")


def test_what_the_environment_says_of_a_store_travels_but_not_what_is_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/token")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    found = Store("s3://lake/root", {"aws_region": "eu-west-1"}).portable_options
    told = {name: found.get(name) for name in ("aws_access_key_id", "aws_allow_http", "aws_region")}
    assert told == {
        "aws_access_key_id": "anybody",
        "aws_allow_http": "true",
        "aws_region": "eu-west-1",
    }
    assert not found.keys() & {"aws_web_identity_token_file", "aws_profile"}
    assert Store("/lake/root", {}).portable_options == {}


def test_every_scheme_of_a_store_is_known_where_secrets_are_hidden() -> None:
    assert {each for name, provider in PROVIDERS.items() for each in (name, *provider.also)} <= {*STORES}
