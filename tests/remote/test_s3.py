"""A store in S3, on a server of this machine that is killed and started again."""

from __future__ import annotations

import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import fsspec
import pytest
from command import ROOT
from pipeline.test_store import NAMES, perform, plan
from servers import free_port

import ortpipe
from ortpipe.app.command_list import command
from ortpipe.remote import bucket as buckets
from ortpipe.remote import upkeep
from ortpipe.remote.shared import SharedStore

URL = "s3://my-bucket/team"


class Server:
    """moto's server of S3, whose objects are lost when it ends."""

    def __init__(self) -> None:
        self.port = free_port()

    def start(self) -> None:
        """Start the server, and create the bucket."""
        command = [sys.executable, "-c", "from moto.server import main; main()", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        files, _ = fsspec.url_to_fs(URL, **buckets.S3, use_listings_cache=False)
        files.mkdir("my-bucket")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "name",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.port}",
        }.items():
            patch.setenv(name, value)
        server.start()
        yield server
        server.kill()


def test_a_server_that_is_killed_and_started_again_on_the_way(server, tmp_path) -> None:
    """Machine a shares with b; the server dies in a run of c, which goes on; the next run of c sends its results."""
    first, hits, said = perform(plan(), SharedStore(URL, tmp_path / "a"))
    assert (hits, said) == ([], [])
    second, hits, said = perform(plan(), SharedStore(URL, tmp_path / "b"))
    assert (second.digest(), hits, said) == (first.digest(), NAMES, [])

    class Kills(SharedStore):
        """Kill the server when the third stage begins."""

        def take(self, stage, *rest):
            if stage == NAMES[2] and server.process.poll() is None:
                server.kill()
            return super().take(stage, *rest)

    third, hits, said = perform(plan(), Kills(URL, tmp_path / "c"))
    assert (third.digest(), hits) == (first.digest(), NAMES[:2])
    [line] = said
    assert line.startswith(f"{URL} cannot be used (EndpointConnectionError: Could not connect")
    again, hits, said = perform(plan(), SharedStore(URL, tmp_path / "new"))  # away at the start
    assert (again.digest(), hits, len(said)) == (first.digest(), [], 1)

    server.start()
    buckets._paused.clear()  # as after a minute
    assert perform(plan(), SharedStore(URL, tmp_path / "c"))[1:] == (NAMES, [])
    store = SharedStore(URL, tmp_path / "d")
    assert perform(plan(), store)[1:] == (NAMES, [])
    assert upkeep.verify(store, print) == {"intact": 6}
    assert upkeep.remove(store, [usage.entry for usage in upkeep.usage(store, print)]) > 1000
    assert upkeep.usage(store, print) == []


def test_the_commands_of_the_page_share_results(server, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    block = (ROOT / "docs" / "howto" / "cache.md").read_text(encoding="utf-8").partition("```text\n")[2]
    lines = [shlex.split(line)[1:] for line in block.partition("```")[0].splitlines() if line.startswith("ortpipe")]
    printed = []
    for name, *words in lines:
        capsys.readouterr()
        if name in ("cache", "plan"):
            command(name)(words)
        else:
            ortpipe.run(name, *words, "recorder=none", "figures=false")
            shutil.rmtree("outputs/cache")
        printed.append(capsys.readouterr().out)
    _, plan_of_run, listing, verified, cleaned = printed
    assert plan_of_run.count(" hit ") == 6
    assert "6 entries, 5 artifacts, " in listing
    assert f" in {URL}\n" in listing
    assert verified == "6 entries are intact, 0 were damaged\n0 entries are intact, 0 were damaged\n"
    assert cleaned == "0 entries removed, 0 Bytes freed\n" * 2
