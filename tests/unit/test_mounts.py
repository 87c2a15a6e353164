"""A root on a network file system is refused unless the user asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakequeue import LakeQueue, QueueClientError
from lakequeue.cli.app import app
from lakequeue.storage import mounts
from lakequeue.storage.mounts import Mount, check_local, linux_mounts, macos_mounts, mount_of

LINUX = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 22 0:26 / /mnt/team\040files rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
32 31 8:2 / /mnt/team\040files/disk rw - xfs /dev/sdb1 rw
33 22 0:27 / /home rw - autofs systemd-1 rw
34 33 0:28 / /home rw - fuse.sshfs me@host:/home rw
35 22 0:29 / /snap rw - fuse.snapfuse snapfuse ro
a line that is none
"""
MACOS = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@server/share on /Volumes/share (1) (smbfs, nodev, nosuid, mounted by me)
map auto_home on /System/Volumes/Data/home (autofs, automounted, nobrowse)
"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/queues", Mount("/", "ext4")),
        ("/mnt/team files/queues", Mount("/mnt/team files", "nfs4")),
        ("/mnt/team filesystem", Mount("/", "ext4")),
        ("/mnt/team files/disk/queues", Mount("/mnt/team files/disk", "xfs")),
        ("/home/me", Mount("/home", "fuse.sshfs")),
    ],
)
def test_a_path_is_on_the_innermost_and_last_mount(path: str, found: Mount) -> None:
    assert mount_of(path, linux_mounts(LINUX)) == found


def test_the_table_of_macos_is_read() -> None:
    assert macos_mounts(MACOS)[:2] == [Mount("/", "apfs"), Mount("/Volumes/share (1)", "smbfs")]


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "lustre", "ceph", "fuse.s3fs", "virtiofs"]
)
def test_network_file_systems_are_refused_with_what_to_set(kind: str) -> None:
    with pytest.raises(QueueClientError) as caught:
        check_local("/mnt/share/queues", [Mount("/", "ext4"), Mount("/mnt/share", kind)])
    text = str(caught.value)
    assert all(part in text for part in (kind, "/mnt/share", "only one machine", "network_file_system=True"))
    assert "\n" not in text


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "ntfs3", "fuseblk", "fuse.ntfs-3g"]
)
def test_file_systems_of_this_machine_are_taken(kind: str) -> None:
    check_local("/mnt/share/queues", [Mount("/", "nfs"), Mount("/mnt/share", kind)])


def test_a_system_without_information_is_trusted() -> None:
    check_local("/mnt/share", [])


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose directory is on NFS, as the system says."""
    table = [Mount("/", "ext4"), Mount(str(tmp_path.resolve()), "nfs4")]
    monkeypatch.setattr(mounts, "mounted", lambda: table)
    monkeypatch.delenv("LAKEQUEUE_NETWORK_FILE_SYSTEM", raising=False)
    return tmp_path / "new" / "root"


def test_a_root_there_is_refused_before_anything_is_made(network: Path) -> None:
    with pytest.raises(QueueClientError, match="nfs4"):
        LakeQueue(str(network))
    assert not network.parent.exists()
    refused = CliRunner().invoke(app, ["--root", str(network), "create", "orders"])
    assert refused.exit_code == 3 and "network file system" in refused.output


def test_a_link_to_such_a_directory_is_seen_through(
    network: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    link = tmp_path_factory.mktemp("local") / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(QueueClientError, match="nfs4"):
        LakeQueue(str(link / "root"))


@pytest.mark.parametrize("way", ["argument", "environment", "option"])
def test_a_network_file_system_is_used_if_the_user_allows_it(
    network: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "argument":
        LakeQueue(str(network), network_file_system=True).create_queue("orders")
        return
    if way == "environment":
        monkeypatch.setenv("LAKEQUEUE_NETWORK_FILE_SYSTEM", "1")
        LakeQueue(str(network)).create_queue("other")
    options = ["--network-file-system"] if way == "option" else []
    done = CliRunner().invoke(app, ["--root", str(network), *options, "create", "orders"])
    assert done.exit_code == 0, done.output
