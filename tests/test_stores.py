"""What the stores do without one: who gets which credentials, and what is told of them."""

import gc
import sys
from pathlib import Path

import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore
from pyarrow import PythonFile

from stores.azure import AzureAccount, _told, _Upload
from stores.file_io import LocationFileIO

HOST = "acc.dfs.core.windows.net"
UNNAMED = {"adls.sas-token": "?MARK-token", "adls.account-key": "MARK-key"}
OWN = {"warehouse": "abfss://c@acc.store.example/w"}


@pytest.mark.parametrize(
    ("netloc", "properties"),
    [
        (f"c@{HOST}", UNNAMED | {"adls.account-name": "acc"}),
        ("c", UNNAMED | {"adls.account-name": "acc"}),
        ("c@acc.store.example", UNNAMED | OWN),
        ("c@acc.dfs.core.usgovcloudapi.net", UNNAMED | {"adls.account-name": "acc"}),
        (f"c@{HOST}", UNNAMED | {"warehouse": f"abfss://c@{HOST}/w"}),
    ],
)
def test_credentials_go_to_azure_and_to_the_catalogs_own_host(
    netloc: str, properties: dict[str, str]
) -> None:
    account = AzureAccount.of(netloc, properties)
    assert (account.name, account.sas_token, account.key) == ("acc", "MARK-token", "MARK-key")
    assert "MARK" not in repr(account)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "acc.evil.example",
        f"evil.example\\.{HOST}",
        f"evil.example?.{HOST}",
        f"evil.example:80.{HOST}",
        "acc.dfs.core.windows.net.evil.example",
    ],
)
def test_another_host_gets_nothing(host: str) -> None:
    useless = {f"adls.sas-token-expires-at-ms.{host}": "1", f"adls.sas-token.{host}": ""}  # of a catalog
    for properties in (UNNAMED, UNNAMED | {"adls.account-name": "acc"}, UNNAMED | OWN, {}, useless):
        with pytest.raises(PermissionError, match=r"adls\.sas-token\.HOST"):
            AzureAccount.of(f"c@{host}", properties | {"adls.sas-token.acc": "MARK-token"})


def test_a_property_for_a_host_goes_there_and_what_is_for_another_account_does_not() -> None:
    for_x = UNNAMED | {"adls.account-name": "x", "adls.sas-token.x.example": "for x"}
    account = AzureAccount.of("c@x.example", for_x)
    assert (account.sas_token, account.key, account.endpoint) == ("for x", None, "https://x.example")
    named = AzureAccount.of("c@x.example", for_x | {"adls.connection-string.x.example": "https://x.example"})
    assert named.key == "MARK-key"
    other = AzureAccount.of(f"c@other.{HOST[4:]}", UNNAMED | {"adls.account-name": "acc"})
    assert (other.sas_token, other.key) == (None, None)


def test_what_is_for_an_account_that_nobody_names_is_sent_to_nobody() -> None:
    for given in ({"adls.sas-token": "MARK"}, {"adls.account-key": "MARK"}):
        with pytest.raises(PermissionError, match=r"adls\.account-name"):
            AzureAccount.of(f"c@{HOST}", given)


@pytest.mark.parametrize(
    "value",
    ["DefaultEndpointsProtocol=https;AccountKey=MARK", "https://x.example/?sig=MARK", "https://MARK@x"],
)
def test_what_is_no_endpoint_is_not_quoted(value: str) -> None:
    with pytest.raises(OSError, match=r"adls\.account-key") as caught:
        AzureAccount.of(f"c@{HOST}", {"adls.account-name": "acc", "adls.connection-string": value})
    assert "MARK" not in str(caught.value)


def test_what_azure_says_is_told_without_the_signature() -> None:
    with pytest.raises(OSError, match=r"f: .*sv=1&sig=\.\.\.&se=2") as caught, _told("f"):
        raise GenericError("error sending request for url (https://acc/c/f?sv=1&sig=MARK%2B%3D&se=2)")
    assert "MARK" not in str(caught.value)


def test_only_a_file_that_is_closed_is_there() -> None:
    store = MemoryStore()
    for name, is_finished in (("whole", True), ("aborted", False)):
        file = PythonFile(_Upload(store, name), mode="w")  # type: ignore[arg-type]
        file.write(b"x")
        if is_finished:
            file.close()
        del file
    gc.collect()
    assert [one["path"] for chunk in store.list() for one in chunk] == ["whole"]


def test_no_property_of_files_names_what_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strategy_trap.py").write_text("class Strategy: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    keys = {"s3.access-key-id": "k", "s3.secret-access-key": "k"}
    trap = {"s3.region": "eu-1", "s3.retry-strategy-impl": "strategy_trap.Strategy", **keys}
    LocationFileIO(trap).fs_by_scheme("s3", "bucket")
    assert "strategy_trap" not in sys.modules
