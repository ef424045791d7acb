"""Who may ask, and how much: the outermost layer of the app, around every answer and every error.

A page on another site can make a browser send requests to this server, and its owner can let its name resolve to this machine
(DNS rebinding). So the Host header must name this server, a change must come from its own page as JSON, and the headers of
every answer forbid other sites to use it. A server that other machines can reach needs a token: a browser sends it once in the
address and keeps it as a cookie.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import UsageError
from .answers import Refused

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
LARGEST_BODY = 1 << 20
SLOWEST_BODY = 30.0
"""Seconds in which the body of a request must arrive."""
SHORTEST_TOKEN = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?", re.IGNORECASE | re.ASCII)


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_everywhere(host: str) -> bool:
    """Whether a server bound to this host answers on every address of the machine."""
    return host.strip("[]") in ("", "0.0.0.0", "::")


def token_for(host: str, given: str | None) -> str | None:
    """The token of a server on this host: the one given; else none on this machine's own address, and a random one elsewhere."""
    if given is None:
        return None if is_loopback(host) else secrets.token_urlsafe(32)
    if len(given) < SHORTEST_TOKEN or not _TOKEN.fullmatch(given):
        raise UsageError(
            f"The token has {len(given)} characters; it needs at least {SHORTEST_TOKEN}, of letters, digits and . _ ~ + / = -. "
            "Leave --token out and one is made up."
        )
    return given


class Guard:
    """ASGI middleware: refuses what may not pass, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", token: str | None = None) -> None:
        if token is None and not is_loopback(host):
            raise UsageError(f"A server on {host} can be reached from other machines and needs a token.")
        self.app, self.token = app, token
        self.any_name = is_everywhere(
            host
        )  # safe, because there is a token: a browser sends no cookie to a foreign name
        self.names = {host.lower().strip("[]")}
        # the cookie's name is unique to this server, because all ports of a machine share their cookies
        self.cookie = "keyhole-" + hashlib.sha256((token or "").encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            answer = self._check_token(scope, headers)
            if answer is None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
                _check_origin(headers)
                receive = await _whole(headers, receive)
        except Refused as refused:
            answer = refused.response()
        except _Left:
            return
        await (answer or self.app)(scope, receive, sealed)

    def _check_host(self, headers: Headers) -> None:
        """Refuse names that are not this server's, against DNS rebinding. The port may differ: a tunnel has its own."""
        match = _HOST.fullmatch(headers.get("host", ""))
        if match is None:
            raise Refused(400, "bad_host", "The request has no Host header that can be read.")
        name = match["name"].lower().strip("[]")
        if not (self.any_name or name in self.names or is_loopback(name)):
            raise Refused(421, "wrong_host", f"This server does not answer for {name:.80}. Ask it by its own address.")

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """None if the token is right. If it is in the address, a redirect that sets it as a cookie."""
        if self.token is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._same(given.strip()):
            return None
        if any(self._same(value) for value in _cookies(headers, self.cookie)):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and any(name == "token" and self._same(value) for name, value in query):
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            # only the last part of the path, relative: it cannot lead to another host, and has no line end
            place = "./" + quote(scope["path"].rpartition("/")[2], errors="replace") + (f"?{rest}" if rest else "")
            kept = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return Response(None, 303, {"Location": place, "Set-Cookie": kept, "Cache-Control": "no-store"})
        raise Refused(
            401,
            "no_token",
            "This server needs its token: open the address it printed, or send 'Authorization: Bearer TOKEN'.",
            WWW_Authenticate="Bearer",
        )

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


def _cookies(headers: Headers, name: str) -> list[str]:
    """The values of the cookie of this name. The header holds the cookies of other servers on this machine too, in any form."""
    pairs = [each.strip().partition("=") for header in headers.getlist("cookie") for each in header.split(";")]
    return [value for found, _, value in pairs if found == name]


def _check_origin(headers: Headers) -> None:
    """A change must be JSON, sent by this server's page or by a program: forms and scripts of other sites cannot send it."""
    origin = headers.get("origin")
    host = headers.get("host", "").lower()
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise Refused(403, "wrong_origin", f"Requests from {origin:.80} are not taken.")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refused(403, "wrong_origin", "Requests from other sites are not taken.")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "not_json", "Send JSON, with 'Content-Type: application/json'.")


class _Left(Exception):
    """The client left before its request was complete: there is nobody to answer."""


async def _whole(headers: Headers, receive: Receive) -> Receive:
    """Read the body within its bounds. The result gives it to the app as one message."""
    too_large = Refused(
        413, "too_large", f"A request holds at most {LARGEST_BODY:,} bytes.", detail={"bytes": LARGEST_BODY}
    )
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > LARGEST_BODY:
        raise too_large
    body, more = bytearray(), True
    try:
        async with asyncio.timeout(SLOWEST_BODY):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Left
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > LARGEST_BODY:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "too_slow", f"The request did not arrive within {SLOWEST_BODY:.0f} seconds.") from None
    pieces: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def again() -> Message:
        return pieces.pop() if pieces else await receive()

    return again
