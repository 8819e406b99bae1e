"""HTTP to addresses that users name: resolved once, every address judged, the judged one dialled. No redirects."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2
from django.conf import settings

from apps.lib.errors import DomainError, Temporary

TIMEOUT_S = 10.0
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def allowed_networks() -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Return the networks that FARRIER_WEBHOOK_NETWORKS opens beside the public internet, such as 127.0.0.0/8."""
    names = settings.FARRIER.webhook_networks.split(",")
    return [ipaddress.ip_network(name.strip()) for name in names if name.strip()]


def may_dial(address: Address) -> bool:
    """Tell whether an address is public, or in a network that the operator opened."""
    plain = _embedded(address)
    if any(plain in network for network in allowed_networks() if network.version == plain.version):
        return True
    return plain.is_global and not (plain.is_multicast or plain.is_reserved or plain.is_unspecified)


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one leads to, if it does: mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def check_url(url: str) -> tuple[str, str, int]:
    """Return (scheme, host, port) of a destination. Raises DomainError for one that can't be meant.

    Plain http is for opened networks only: over the internet the payload would travel in the clear.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise DomainError(
            "bad_url", f"«{url[:100]}» is no address; write one such as https://example.org/hook."
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise DomainError("bad_url", "A webhook's address must be https://host/… without a user name in it.")
    if parts.scheme == "http" and not allowed_networks():
        raise DomainError("bad_url", "A webhook's address must begin with https://.")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def resolve(host: str, port: int) -> Address:
    """Look a host up once and return an address to dial; all of its addresses must be allowed.

    Raises DomainError `forbidden_address`, Temporary when the name can't be resolved now.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as away:
        raise Temporary(f"The name {host} can't be resolved ({away}).") from away
    addresses = [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
    for address in addresses:
        if not may_dial(address):
            raise DomainError(
                "forbidden_address",
                f"{host} leads to {address}, which is not public; the operator opens networks by "
                "FARRIER_WEBHOOK_NETWORKS.",
            )
    return addresses[0]


def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
    """POST to a destination and return the status; redirects are not followed, the answer's body is not read.

    Raises DomainError for a destination that must not be dialled, Temporary for one that can't be reached now.
    """
    scheme, host, port = check_url(url)
    address = resolve(host, port)
    # dial what was judged, under the name that was asked for: a second look-up could give another address
    parts = urlsplit(url)
    literal = f"[{address}]" if address.version == 6 else str(address)
    target = parts._replace(netloc=f"{literal}:{port}", fragment="").geturl()
    sent = {**headers, "Host": parts.netloc}
    extensions = {"sni_hostname": host} if scheme == "https" else {}
    with httpx2.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
        try:
            with client.stream("POST", target, content=body, headers=sent, extensions=extensions) as answer:
                return answer.status_code
        except httpx2.TransportError as away:
            raise Temporary(f"{host} does not answer ({type(away).__name__}).") from away
