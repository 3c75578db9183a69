"""Secrets are written nowhere: planted everywhere at once, then looked for in every file, table and stream."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command import ROOT, ortpipe
from omegaconf import OmegaConf

from ortpipe.app import redact
from ortpipe.app.consent import completed
from ortpipe.errors import ConfigError

MINE = """
import logging, os, sys, warnings

import numpy as np


def rows(token, address, nested, text, home, fail=False):
    true = ("LITERAL-7f3a9", "ENVIRON-51c0d", "ADDRESS-e4b2", "NESTED-9d1e7", "JSONTEXT-c83f")
    assert (token, nested["deep"][0]["api_key"]) == (true[0], true[3])
    assert home == true[1]
    assert true[2] in address
    assert true[4] in text
    print("printed", token, home)
    print("printed", address, file=sys.stderr)
    logging.getLogger("mine").warning("logged %s %s", token, home)
    warnings.warn(f"warned {token} {nested}")
    if fail or nested.get("token") == "SWEPT-two-55":
        raise ValueError(f"cannot read {address} with {token}, {home} or {nested}: {text}")
    draw = np.random.default_rng(0).normal(size=(40, 3))
    return draw, draw.sum(axis=1)
"""
SECRETS = (
    *("LITERAL-7f3a9", "ENVIRON-51c0d", "ADDRESS-e4b2", "NESTED-9d1e7", "JSONTEXT-c83f"),
    *("SWEPT-one-44", "SWEPT-two-55", "TRACKING-a71b", "STORE-KEY-6622", "VARIABLE-88aa"),
)
COMMAND = (
    *("~experiment", "data=function", "data.source.function=mine:rows", "data.split.test=0.25", "convert=sklearn"),
    *("convert.source.estimator=sklearn.linear_model.LinearRegression", "add_loss=l2", "train.epochs=2"),
    *("+data.source.params.token=LITERAL-7f3a9", "+data.source.params.home=${oc.env:MYVARIABLE}"),
    "+data.source.params.address='postgresql://me:ADDRESS-e4b2@db/x?sslmode=no'",
    "+data.source.params.nested={deep: [{api_key: NESTED-9d1e7, rows: 3}]}",
    """+data.source.params.text='{"password": "JSONTEXT-c83f", "rows": 3}'""",
)
Perform = Callable[..., CompletedProcess[str]]


RECORDED = "recorder.tracking_uri=sqlite:///outputs/mlflow.db"
asked: list[str] = []  # what a server was told of who asks


class Server(http.server.BaseHTTPRequestHandler):
    """Answers nothing, as a server of MLflow's would do to a wrong password."""

    def do_GET(self) -> None:
        asked.append(self.headers.get("Authorization", ""))
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def perform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Perform]:
    modules = tmp_path_factory.mktemp("modules")  # the secrets that it asserts are not to be found
    (modules / "mine.py").write_text(MINE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {
            "MYVARIABLE": "ENVIRON-51c0d",
            "ORTPIPE_STORE_KEY": "STORE-KEY-6622",
            "OTHER_API_TOKEN": "VARIABLE-88aa",
            "MLFLOW_TRACKING_URI": f"http://me:TRACKING-a71b@127.0.0.1:{server.server_port}",
        }

        def run(folder: Path, *arguments: str, **more: str) -> CompletedProcess[str]:
            path = os.pathsep.join([str(modules), str(ROOT)])
            return ortpipe(*arguments, cwd=folder, **{**options, **more}, PYTHONPATH=path)

        yield run
        server.shutdown()


def leaks(folder: Path, *done: CompletedProcess[str]) -> list[str]:
    """Return where a secret stands, in bytes of any file, in a name, or in what was printed."""
    found = []
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() and path.suffix != ".pyc" else b""
        found += [f"{path}: {s}" for s in SECRETS if s.encode() in content or s in path.name]
    for process in done:
        found += [f"{process.args}: {s}" for s in SECRETS if s in process.stdout + process.stderr]
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, perform: Perform) -> tuple[Path, CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("ran")
    return folder, perform(folder, *COMMAND, RECORDED, "hydra.verbose=[mine]")


def test_a_run_uses_its_secrets_and_keeps_none(ran: tuple[Path, CompletedProcess[str]]) -> None:
    folder, done = ran
    assert done.returncode == 0, done.stderr
    assert "printed *** ***" in done.stdout
    assert leaks(folder, done) == []
    [config] = folder.glob("outputs/runs/*/*/config.yaml")
    shown = config.read_text()
    assert "home: ${oc.env:MYVARIABLE}" in shown
    assert "token: '***'" in shown
    assert "address: postgresql://me:***@db/x?sslmode=no" in shown
    assert "rows: 3" in shown
    with contextlib.closing(sqlite3.connect(folder / "outputs" / "mlflow.db")) as database:
        params = dict(database.execute("select key, value from params"))
    assert params["data.source.params.home"] == "${oc.env:MYVARIABLE}"


def test_a_server_gets_the_password_that_is_printed_nowhere(perform: Perform, tmp_path: Path) -> None:
    asked.clear()
    done = perform(tmp_path, *COMMAND)
    assert (done.returncode, "must be reachable" in done.stderr) == (1, True)
    assert base64.b64encode(b"me:TRACKING-a71b").decode() in asked[0]
    assert leaks(tmp_path, done) == []


def test_what_fails_and_what_sweeps_keep_none(perform: Perform, tmp_path: Path) -> None:
    failed = perform(tmp_path, *COMMAND, RECORDED, "+data.source.params.fail=true")
    assert (failed.returncode, "cannot read" in failed.stderr) == (1, True)
    swept = "+data.source.params.nested.token=SWEPT-one-44,SWEPT-two-55"  # the second fails
    sweep = perform(tmp_path, "-m", *COMMAND, RECORDED, swept)
    assert (sweep.returncode, "1 of 2 jobs" in sweep.stderr) == (1, True), sweep.stderr
    [multirun] = tmp_path.glob("outputs/multiruns/*/*/multirun.yaml")
    assert "+data.source.params.nested.token=***" in multirun.read_text()
    forgotten = perform(
        tmp_path, "-m", *COMMAND, RECORDED, swept.lstrip("+").replace("nested", "other")
    )  # no job begins
    assert (forgotten.returncode, len([*tmp_path.glob("outputs/multiruns/*/*/multirun.yaml")])) == (1, 2)
    typo = perform(tmp_path, "validate", *COMMAND, "train.epoch=1", "data.sourc.token=SWEPT-one-44")
    assert typo.returncode == 1
    token, place = "+data.source.params.token=LITERAL-7f3a9", "hydra.run.dir=runs/${hydra.job.override_dirname}"
    named = perform(tmp_path, "recorder=none", token, place)
    assert (named.returncode, "must hold no secret" in named.stderr) == (1, True)
    assert leaks(tmp_path, failed, sweep, forgotten, typo, named) == []


def test_names_of_inputs_and_parameters_are_no_secrets() -> None:
    source = {"inputs": {"tokens": ["word", "place"], "token": "all"}}
    tokens = {"path": "folder", "column": "text", "inputs": ["input_ids"]}
    config = {"data": {"source": source, "tokens": tokens}, "penalty": {"terms": {"api_key": {"l2": 0.5}}}}
    assert redact.recordable(OmegaConf.create(config)) == config
    redact.know_command(["data.source.inputs={tokens: [word, place]}"])
    redact.know_command(["+data.tokens={path: folder, column: text}"])
    assert redact.redacted("+data.tokens={path: folder}: a text") == "+data.tokens={path: folder}: a text"
    assert redact.redacted("a word, a place, all by index") == "a word, a place, all by index"
    source["params"] = {"inputs": {"token": "PLANTED-1"}}
    assert redact.recordable(OmegaConf.create(config))["data"]["source"]["params"] == {"inputs": {"token": "***"}}


def test_keys_and_tokens_that_say_themselves_what_they_are_are_hidden_under_any_name() -> None:
    pem = "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----"
    assert "abc" not in redact.redacted(f"where: {pem} end")
    assert redact.redacted(f"gh ghp_{'a1' * 18} it") == "gh *** it"
    assert redact.redacted("hf_model_embeddings_weight_of_the_first_layer") == (
        "hf_model_embeddings_weight_of_the_first_layer"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Basic b3duZXI6czNjcjN0", "Basic ***"),
        (f"github_pat_{'s3cr3t' * 6}", "***"),
        ("/callback?code=s3cr3t", "/callback?code=***"),
        ("/blob?x-sig=s3cr3t", "/blob?x-sig=***"),
        ("host%3A%2F%2Fowner%3As3cr3t%40host", "host%3A%2F%2Fowner%3A***%40host"),
    ],
)
def test_what_says_itself_that_it_is_a_secret_needs_no_other_word_beside_it(text: str, shown: str) -> None:
    assert redact.redacted(text) == shown
    assert redact.hidden({"note": text}) == {"note": shown}


def test_our_own_words_are_not_taken_for_secrets() -> None:
    with pytest.raises(ConfigError) as raised:
        completed({"data": {"source": {"params": {"token": "***"}}}}, {})
    assert redact.redacted(str(raised.value)) == str(raised.value)
