"""Check a report page in a browser (usage: look_at_report.py PAGE.html [FOLDER [CHROMIUM]]).

Needs ``pip install playwright`` and Chromium. In light and dark mode, the page must load no other resources,
log no errors, and change its colours with the three buttons; it must fit the screen of a phone. Screenshots
are written to FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

#: generous, for slow CI machines
_TIMEOUT_MS = 240_000
_FILL = "getComputedStyle(document.querySelector('.heat rect:not(.ground)')).fill"


def problems(browser: Any, page: Path, folder: Path) -> Iterator[str]:
    """Yield the problems of the page, one line each."""
    backgrounds = set()
    for scheme in ("light", "dark"):
        view = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900}).new_page()
        view.set_default_timeout(_TIMEOUT_MS)
        requests, messages = _record_events(view)
        view.goto(page.as_uri())
        view.screenshot(path=folder / f"{scheme}.png", full_page=True)
        backgrounds.add(view.evaluate("getComputedStyle(document.body).backgroundColor"))
        yield from (f"{scheme}: requests {url}" for url in requests if url != page.as_uri())
        yield from (f"{scheme}: logs {message}" for message in messages)
        yield from _check_buttons(view, scheme)
    if len(backgrounds) != 2:
        yield "light and dark mode have the same background"
    phone = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    phone.set_default_timeout(_TIMEOUT_MS)
    phone.goto(page.as_uri())
    phone.screenshot(path=folder / "phone.png")
    if phone.evaluate("document.documentElement.scrollWidth") > 390:
        yield "wider than the screen of a phone"


def _record_events(view: Any) -> tuple[list[str], list[str]]:
    """Return two lists that record requests and log messages of the page from now on."""
    requests: list[str] = []
    messages: list[str] = []
    view.on("request", lambda request: requests.append(request.url))
    view.on("console", lambda message: messages.append(message.text))
    view.on("pageerror", lambda error: messages.append(str(error)))
    return requests, messages


def _check_buttons(view: Any, scheme: str) -> Iterator[str]:
    if not view.query_selector(".heat"):
        return
    for metric in ("rows", "bytes", "files"):
        view.click(f"label[for=m-{metric}]")
        if view.evaluate(_FILL) in ("", "rgb(0, 0, 0)"):
            yield f"{scheme}: {metric} has no colours"


def main(argv: list[str]) -> int:
    """Print the problems; return 1 if there are any."""
    page, folder = Path(argv[0]).resolve(), Path(argv[1] if len(argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"executable_path": argv[2]} if len(argv) > 2 else {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(timeout=_TIMEOUT_MS, args=["--no-sandbox"], **options)
        lines = list(problems(browser, page, folder))
        browser.close()
    for line in lines:
        print(line)
    print(f"report: {len(lines)} problem(s)" if lines else "report: ok")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
