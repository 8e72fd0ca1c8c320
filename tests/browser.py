"""A real browser for tests: headless Chromium, driven through chromedriver's own protocol, on the loopback only."""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of a web element, fixed by the WebDriver standard
_PATIENCE = 60.0  # seconds
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One window of Chromium."""

    def __init__(self, address: str, profile: Path) -> None:
        self._address, self._path, self._size = address, Path(), (0, 0)
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--force-device-scale-factor=1", "--hide-scrollbars", f"--user-data-dir={profile}",
        ]  # fmt: skip
        wanted = {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        created = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{created['sessionId']}"

    def open(self, path: Path, fragment: str = "", *, width: int = 1280, height: int = 900) -> None:
        """Show a file, loaded anew, in a window of this size."""
        if (width, height) != self._size:
            self._size = width, height
            self._call("POST", "/window/rect", {"width": width, "height": height})
            self.devtools(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=height,
                deviceScaleFactor=1,
                mobile=False,
            )
        if path == self._path:  # another fragment alone loads nothing
            self._call("POST", "/url", {"url": "about:blank"})
        self._path = path
        self.log("browser"), self.log("performance")  # of pages before
        address = path.absolute().as_uri()
        self._call("POST", "/url", {"url": address + (f"#{fragment}" if fragment else "")})
        # On a busy machine chromedriver answers before the page is there.
        deadline = time.monotonic() + _PATIENCE
        state = "return location.href.split('#')[0] + ' ' + document.readyState"
        while self.run(state) != f"{address} complete":
            assert time.monotonic() < deadline, f"{path} was not shown in {_PATIENCE} s"

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what the body of a JavaScript function returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click the first element that a CSS selector finds, as a user would: it must be visible."""
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def press(self, selector: str, keys: str) -> None:
        """Focus an element and press keys."""
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": keys})

    def choose(self, selector: str, value: str) -> None:
        """Choose the option of a list that has this value."""
        self.click(f'{selector} option[value="{value}"]')

    def url(self) -> str:
        """Return the address shown."""
        return self._call("GET", "/url")

    def reload(self) -> None:
        """Load the page again."""
        self._call("POST", "/refresh", {})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path: Path) -> None:
        """Save what the window shows."""
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return and forget the entries of the log ``browser`` (console) or ``performance`` (network)."""
        return self._call("POST", "/se/log", {"type": kind})

    def console_messages(self) -> list[str]:
        """Return what the console was told since the page was opened."""
        return [entry["message"] for entry in self.log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """End the session, and with it the browser."""
        self._call("DELETE", "")

    def _find(self, selector: str) -> str:
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._address + path, data=body, method=method)
        try:
            with _direct.open(request, timeout=_PATIENCE) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            told = json.loads(error.read())["value"]
            error.close()
            raise AssertionError(f"{path}: {told['error']}: {told['message'].splitlines()[0]}") from None


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in ``folder``; the test is skipped without one, or fails if one is required."""
    driver = shutil.which("chromedriver")
    if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
        reason = "no Chromium here; apt-get install chromium chromium-driver"
        if os.environ.get("DIGRAD_REQUIRE_BROWSER") == "1":
            pytest.fail(f"DIGRAD_REQUIRE_BROWSER=1: {reason}")
        pytest.skip(reason)
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            port = next(
                found[1] for line in lines if (found := re.search(r"successfully on port (\d+)", line))
            )
            browser = Browser(f"http://127.0.0.1:{port}", folder)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
