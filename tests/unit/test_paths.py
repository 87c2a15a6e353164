"""Files below a root are reached through ``folder`` and ``no_links`` alone, by parsed names (DUR-70, DUR-72)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "lakequeue"
ROOMS = ("storage", "runtime", "operations", "shard", "consumer", "model", "spark")
OURS = ("storage/folder.py", "storage/no_links.py", "storage/remote_files.py")
"""They reach files by names that were parsed, through plain ways."""
CALLS = {
    *("open", "mkdir", "makedirs", "rename", "replace", "link", "symlink", "unlink", "remove", "rmdir", "rmtree"),
    *("walk", "fwalk", "scandir", "listdir", "chmod", "chown", "utime", "truncate", "stat", "lstat", "copyfile"),
    *("copytree", "move", "OSFile", "memory_map", "FileIO", "read_table", "write_table", "ParquetFile", "exists"),
    *("copy", "copy2", "mkfifo", "input_stream", "output_stream", "read_schema", "read_metadata", "dataset"),
}
MODULES = {"os", "os.path", "shutil", "pa", "pq", "io", "pads", "ds"}
OTHERS = {"pathlib", "obstore", "deltalake", "glob", "mmap", "pyarrow.dataset", "pyarrow.fs"}
"""Modules that reach files, too."""
EXPECTED = {
    # the root itself, and fixed names in it
    "storage/roots.py": ["os.mkdir", "os.stat", "os.stat", "os.stat", "os.stat"],
    "storage/reserve.py": ["open", "os.mkdir", "os.open", "os.unlink", "os.unlink", "shutil.rmtree"],
    "storage/catalog.py": ["os.chmod", "os.listdir"],
    # locks by fixed names, opened by no_links, and files of the system
    "storage/engines/file_lock.py": ["FileIO", "os.stat", "os.utime"],
    "storage/engines/disk_turn.py": ["os.stat"],
    "storage/engines/watch_lock.py": ["os.stat", "os.stat"],
    "storage/inspection/environment.py": ["open", "open", "os.stat", "os.stat"],
    "storage/mounts.py": ["open"],
    # times of directories, which no_links removes
    "storage/cleaning.py": ["os.stat", "os.walk"],
    # a file of its own, in the system's directory for such
    "storage/bulk/arrow_files.py": ["pa.memory_map"],
    "storage/bulk/sent_files.py": ["pa.memory_map"],
    # what folder has opened
    "storage/parquet_files.py": ["pq.ParquetFile", "pq.write_table"],
    # clients for folder, and their errors
    "storage/stores.py": ["obstore", "obstore"],
    "storage/store_failures.py": ["obstore"],
    # expressions, on files that nobody opens
    "operations/judged_log.py": ["pyarrow.dataset", "pyarrow.fs"],
    "operations/relations.py": ["pyarrow.dataset"],
    # tables of users, outside of roots
    "storage/delivery/frames.py": ["deltalake", "deltalake", "deltalake", "deltalake", "open"],
    "storage/delivery/table.py": ["deltalake", "deltalake", "deltalake"],
    "storage/source_rows.py": ["deltalake"],
    "storage/source_table.py": ["deltalake", "deltalake", "deltalake"],
    # files of the system, and the numbers of directories
    "consumer/stacks.py": ["pathlib"],
    "model/stack_dumps.py": ["open"],
    "operations/consumers.py": ["pathlib"],
    "operations/upgrade.py": ["open", "open", "open", "open", "os.listdir", "os.listdir", "os.stat", "os.walk"],
    # files of pyspark
    "spark/session.py": ["pathlib"],
    "spark/compiled_home.py": ["pathlib"],
}


def reached(path: Path) -> list[str]:
    """Calls of a module that reach files, and modules that it imports for that."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            module, _, function = name.rpartition(".")
            if function in CALLS and (module in MODULES or name in ("open", "FileIO")):
                found.append(name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            own = getattr(node, "module", None)
            names = [f"{own}.{each.name}" if own else each.name for each in node.names]
            found += sorted({other for other in OTHERS for name in names if f"{name}.".startswith(f"{other}.")})
    return sorted(found)


@pytest.mark.spec("DUR-70", "DUR-72")
def test_nothing_else_reaches_files_of_a_root() -> None:
    """What does knows no name that was found there; `folder` refuses those that nobody parsed."""
    found = {
        name: calls
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (calls := reached(path)) and (name := str(path.relative_to(PACKAGE))) not in OURS
    }
    assert found == EXPECTED
