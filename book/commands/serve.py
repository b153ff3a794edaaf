"""The built site on this machine, with the addresses that it has when it is published: ``make serve``.

GitHub Pages serves it below a folder, and shows 404.html for what does not exist. That page is shown at any depth, so
it names its style and its links from that folder on.
"""

import contextlib
import functools
import http.server
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build" / "html"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
BELOW = CONFIG["notfound_urls_prefix"].rstrip("/")


class Handler(http.server.SimpleHTTPRequestHandler):
    """The same files at ``/`` and below the folder of the published site."""

    def translate_path(self, path):
        return super().translate_path(path.removeprefix(BELOW))

    def send_error(self, code, message=None, explain=None):
        page = Path(self.directory, "404.html")
        if code != http.HTTPStatus.NOT_FOUND or not page.exists():
            return super().send_error(code, message, explain)
        body = page.read_bytes()
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return None


if __name__ == "__main__":
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 8000), functools.partial(Handler, directory=SITE)) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        server.serve_forever()
