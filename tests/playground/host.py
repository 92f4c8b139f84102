"""A host of files on the loopback, some of which a test may keep back."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE = 60.0  # seconds


class Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        assert isinstance(self.server, Host)
        if self.path == self.server.late:
            assert self.server.go_on.wait(PATIENCE)
        with suppress(ConnectionError):  # whoever asked is gone
            super().copyfile(source, outputfile)

    def send_head(self) -> Any:
        assert isinstance(self.server, Host)
        if self.path == self.server.missing:
            return self.send_error(404)
        return super().send_head()


class Host(ThreadingHTTPServer):
    """Serves a folder for as long as its `with` block lasts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Files, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.late = self.missing = ""  # a path that waits for `go_on`, a path that is not there
        self.go_on = threading.Event()

    def __enter__(self) -> Host:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Nobody gets an answer any more."""
        self.shutdown()
        self.server_close()
