"""The built site as GitHub Pages serves it, for what measures pages: text is compressed."""

import functools
import gzip
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "site"))  # which serves it to its tests

import built_site

PACKED = ("text/", "javascript", "json", "svg", "xml")


@functools.cache
def packed(path):
    """What is sent of a file, and most are sent many times."""
    return gzip.compress(path.read_bytes(), 6)


class Handler(built_site.Handler):
    def do_GET(self):
        path = Path(self.translate_path(self.path))
        kind = self.guess_type(path)
        if not path.is_file() or not any(word in kind for word in PACKED):
            return super().do_GET()
        body = packed(path)
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None


served = functools.partial(built_site.served, Handler)
