"""A store that two users of one group share: a folder with the setgid bit, both with umask 002."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT

GROUP, ANN, BOB = 40000, 40001, 40002

AS_USER = """
import os, sys
from pathlib import Path
import numpy as np, onnx, portalocker
import ortpipe.graph.files.serial
from ortpipe.artifact import Artifact, Facts
from ortpipe.pipeline.digest import key_of
from ortpipe.pipeline.locks import lock
from ortpipe.pipeline.store import Store
from ortpipe.pipeline.gc import remove

os.umask(0o002)
os.setgroups([])
os.setgid(40000)
os.setuid(int(sys.argv[2]))
store, said = Store(Path(sys.argv[1])), []

def publish(name):
    signature = f"{name} (float[N,1] X) => (float[N,1] Y) <float[1] W = {{1}}>"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {signature} {{Y = Mul(X, W)}}')
    facts = Facts("regression", ("X",), ("Y",), "Y", ("W",), lineage=({"stage": "convert", "version": 1},))
    artifact = Artifact(model, facts, {"losses/step": np.zeros(1)})
    parts = {"input": None, "version": 1, "config": name}
    store.publish("convert", key_of(parts), parts, artifact, 1.0, said.append)
    return key_of(parts)
"""

ANN_DOES = """
key = publish("ann")
os.utime(store.entry_file("convert", key), (0, 0))
with store.lock(key, said.append):
    print(key, os.getpid(), flush=True)
    sys.stdin.read()
    [warning] = said  # of the group, which can write results too
    os._exit(0 if "group" in warning else 1)  # as if killed: the lock's file stays
"""

BOB_DOES = """
key, pid = sys.argv[3:]
holders = []

class Held(Exception):
    pass

def busy(holder):
    holders.append(holder)
    raise Held

try:
    with lock(store.folder / "locks" / key, busy=busy, missing=said.append):
        said.append("two at once")
except Held:
    pass
assert holders[0].startswith(f"process {pid} on "), holders
assert store.take("convert", key, None, said.append)
assert store.entry_file("convert", key).stat().st_mtime > 0, "it is not known when it was last of use"
publish("bob")
"""

BOB_CLEANS = """
assert len(list(store.entries())) == 2
assert len(list((store.folder / "locks").iterdir())) == 1
assert remove(store, store.entries()) > 0
left = [path for path in store.folder.rglob("*") if path.is_file() and path.name != ".lock"]
assert (left, said) == ([], []), (left, said)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a folder of the group."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("needs root, to become other users")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, -1, GROUP)
        os.chmod(folder, 0o2775)
        yield Path(folder)


def test_two_users_of_a_group_share_a_store_its_locks_and_its_garbage_collection(shared: Path) -> None:
    def start(user: int, code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", AS_USER + code, str(shared / "cache"), str(user), *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, text=True)

    def succeeds(process: subprocess.Popen[str]) -> None:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error

    ann = start(ANN, ANN_DOES)
    assert ann.stdout is not None
    key, pid = ann.stdout.readline().split()
    succeeds(start(BOB, BOB_DOES, key, pid))
    succeeds(ann)
    succeeds(start(BOB, BOB_CLEANS))
