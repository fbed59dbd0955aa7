"""A headless Chromium, driven through pipes by the DevTools protocol; it needs no package.

`python tests/reporting/browser.py PAGE PICTURE [WIDTH HEIGHT]` photographs a page, in a report all of its charts.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
"""The browser's path, or None if there is none."""


MOVE_PIPES = """
import os, sys
pipes = [os.dup(int(number)) for number in sys.argv[1:3]]
for place, pipe in zip((3, 4), pipes):
    os.dup2(pipe, place)
    os.set_inheritable(place, True)  # dup2 onto itself would leave it closed
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Moves the pipes to the descriptors that the browser reads and writes, and becomes the browser."""


class Browser:
    """One page of a headless browser. Messages are JSON documents that end in a NUL byte, on descriptors 3 and 4."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (inner_read, self._write), (self._read, inner_write) = os.pipe(), os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._folder.name}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", MOVE_PIPES, str(inner_read), str(inner_write), PROGRAM, *options],
            pass_fds=(inner_read, inner_write),
            stderr=subprocess.DEVNULL,
        )
        os.close(inner_read)
        os.close(inner_write)
        self._received, self._number, self._session, self._is_loaded = b"", 0, None, False
        self.console = []
        """Errors and warnings of the console, exceptions, and failed or refused requests."""

    def __enter__(self):
        try:
            # the first of all targets need not be a page: newer versions list those of their own interface
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        os.close(self._write)
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        self._folder.cleanup()

    def call(self, method, **params):
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, url, width, height=900):
        """Load a page in a window of this size, and wait until it is loaded."""
        self.console.clear()
        self._is_loaded = False
        self.resize(width, height)
        self.call("Page.navigate", url=url)
        while not self._is_loaded:
            self._next()

    def resize(self, width, height=900):
        """Change the size of the window; a narrow one is a telephone's."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page, or that which its promise brings."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, width, height):
        """Return the upper part of the page as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(taken["data"])

    def _next(self):
        while b"\0" not in self._received:
            more = os.read(self._read, 1 << 16)
            assert more, "the browser has ended"
            self._received += more
        text, _, self._received = self._received.partition(b"\0")
        answer = json.loads(text)
        method, params = answer.get("method"), answer.get("params", {})
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(str(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(params["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.console.append(f"request of {url}")
        return answer


if __name__ == "__main__":
    width, height = (int(text) for text in sys.argv[3:5] or ("1220", "680"))
    with Browser() as browser:
        browser.open(Path(sys.argv[1]).resolve().as_uri(), width)
        browser.evaluate("window.drawAll && drawAll().then(views => views.length)")
        Path(sys.argv[2]).write_bytes(browser.picture(width, height))
