"""A page in headless Chromium, behind a server that sees every request, to other hosts too."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "google-chrome", "chrome")
OWN = ("google.com", "googleapis.com")  # hosts of Chromium's own requests
FLAGS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves a folder as `python -m http.server` does, silently."""

    def log_message(self, *arguments: Any) -> None:
        pass


class Proxy(Files):
    """Gets all requests to other hosts, and notes them."""

    others: list[str] = []  # noqa: RUF012

    def do_CONNECT(self) -> None:
        host = self.path.removeprefix("http://").partition("/")[0].partition(":")[0]
        if not host.endswith(OWN):
            self.others.append(self.path)
        self.send_error(502)

    do_GET = do_POST = do_CONNECT


@contextlib.contextmanager
def chromium() -> Iterator[Callable[..., Any]]:
    """Yield a function that opens the page of a folder in a fresh profile, with options of it; or skip the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if (program := next(filter(None, map(shutil.which, PROGRAMS)), None)) is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with contextlib.ExitStack() as stack:

        def serve(handler: Any) -> str:
            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}"

        def opened(folder: Path, **options: Any) -> Any:
            page = browser.new_context(**options).new_page()
            page.logged = []
            page.on("console", lambda message: page.logged.append(message.text))
            page.on("pageerror", lambda error: page.logged.append(str(error)))
            page.goto(serve(functools.partial(Files, directory=str(folder))))
            page.locator("body[data-ready], #problem:not([hidden])").first.wait_for()
            problem = page.locator("#problem").text_content()
            assert problem == ""
            return page

        Proxy.others.clear()
        started = stack.enter_context(playwright.sync_playwright())
        proxy = {"server": serve(Proxy), "bypass": "127.0.0.1"}
        browser = started.chromium.launch(executable_path=program, proxy=proxy, args=FLAGS)
        stack.callback(browser.close)
        yield opened


def unnamed(page: Any) -> list[str]:
    """Return the roles of controls and pictures without a name for screen readers."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "spinbutton", "application", "image", "Date", "DateTime", "list"}
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    return [node["role"]["value"] for node in shown if not node.get("name", {}).get("value")]
