"""`GET /`: the page that shows the running state, and `GET /stats`, what it shows.

The page is one file without any address in it. It is read when somebody first asks for it. Its content policy allows
its own script and style, by their hashes, and requests to this server; nothing else.
"""

import base64
import functools
import hashlib
import re
from importlib import resources

from starlette.responses import Response

PAGE = "dashboard.html"


@functools.cache
def page() -> Response:
    """The page with its headers."""
    body = resources.files(__package__).joinpath(PAGE).read_bytes()
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(body, b"script"),
        "style-src": _hashes(body, b"style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(body, headers=headers, media_type="text/html")


def _hashes(body: bytes, tag: bytes) -> str:
    """Of what stands between the tags, as a content policy names it."""
    found = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), body, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'" for each in found)
