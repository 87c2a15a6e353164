"""Detects network file systems, on which two machines can overwrite each other's commits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

from lakequeue.errors import QueueClientError

NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afpfs|afs|webdav|davfs2?|lustre|gpfs|beegfs|ceph|glusterfs|orangefs|pvfs2|ocfs2|gfs2|"
    r"panfs|wekafs|lizardfs|moosefs|ncpfs|coda|vboxsf|vmhgfs|prl_fs|virtiofs|fuse\.(?!(ntfs-?3g|exfat|fuseblk|"
    r"portal|snapfuse|squashfuse|fuse-overlayfs|lxcfs|mergerfs|bindfs)\b).+"
)
"""Pattern for the types of network file systems. FUSE types also match, unless known to be local."""


class Mount(NamedTuple):
    point: str
    type: str


def check_local(path: str, mounts: Iterable[Mount] | None = None) -> None:
    """Raises QueueClientError if a path is on a network file system. Later ``mounts`` hide earlier mounts."""
    mount = mount_of(os.path.realpath(path), mounted() if mounts is None else mounts)
    if mount is not None and NETWORK.fullmatch(mount.type.lower()):
        raise QueueClientError(
            f"{path} is on a network file system ({mount.type} at {mount.point}), where two machines would lose "
            "messages. If only one machine will ever use this root, say so: network_file_system=True, "
            "--network-file-system, or LAKEQUEUE_NETWORK_FILE_SYSTEM=1"
        )


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Returns the mount that holds an absolute path without symbolic links. Returns None if unknown."""
    found = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        above = path == point or path.startswith(f"{point}/")
        # Of two mounts at the same place, the last hides the other.
        if above and (found is None or len(point) >= len(found.point.rstrip("/"))):
            found = mount
    return found


def mounted() -> list[Mount]:
    """Lists the mounted file systems. Returns an empty list if the operating system does not list them."""
    try:
        if sys.platform.startswith("linux"):
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
                return linux_mounts(table.read())
        if sys.platform == "darwin":
            done = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True)
            return macos_mounts(done.stdout)
    except (OSError, subprocess.SubprocessError):
        pass
    return []


def linux_mounts(table: str) -> list[Mount]:
    found = []
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if dash and len(fields) > 4 and kinds:
            point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4])
            found.append(Mount(point, kinds[0]))
    return found


def macos_mounts(table: str) -> list[Mount]:
    """Parses the output of ``mount`` on macOS, as in ``//host/share on /Volumes/share (smbfs, nodev)``."""
    matches = (re.fullmatch(r".+? on (/.*) \((\w+)[,)].*", line) for line in table.splitlines())
    return [Mount(match[1], match[2]) for match in matches if match]
