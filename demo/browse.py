"""A person at the console, without a browser: signs in, reads pages, sends the forms that stand on them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx2


class _Forms(HTMLParser):
    """Collects every form of a page: its action and its hidden fields."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append((values.get("action", ""), {}))
        elif tag == "input" and self.forms and values.get("type") == "hidden":
            self.forms[-1][1][values.get("name", "")] = values.get("value", "")


class Browser:
    """One signed-in person."""

    def __init__(self, origin: str, username: str, password: str) -> None:
        self.origin = origin
        self._http = httpx2.Client(base_url=origin, follow_redirects=True, timeout=30.0)
        page = self._http.post("/login", data={"username": username, "password": password} | self._hidden("/login"))
        if 'name="password"' in page.text:
            raise AssertionError(f"{username} could not sign in: HTTP {page.status_code}")

    def read(self, path: str) -> str:
        """Return a page's text without tags; raises AssertionError unless it is there."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", self.html(path)))

    def html(self, path: str) -> str:
        """Return a page's HTML."""
        answer = self._http.get(path)
        if answer.status_code != 200:
            raise AssertionError(f"GET {path}: HTTP {answer.status_code}")
        return answer.text

    def submit(self, path: str, action: str, **fields: str) -> httpx2.Response:
        """Fill in and send the form of page `path` whose address ends with `action`."""
        for address, hidden in self._forms(path):
            if address.rstrip("/").endswith(action):
                return self._http.post(address or path, data=hidden | fields, headers={"Referer": self.origin + path})
        raise AssertionError(f"{path} has no form that ends with {action}")

    def _hidden(self, path: str) -> dict[str, str]:
        return next(hidden for _, hidden in self._forms(path) if "csrfmiddlewaretoken" in hidden)

    def _forms(self, path: str) -> list[tuple[str, dict[str, str]]]:
        parser = _Forms()
        parser.feed(self.html(path))
        return parser.forms
