"""Look at a report page in a real browser (usage: look_at_report.py PAGE.html [FOLDER [CHROMIUM]]).

Needs ``pip install playwright`` and a Chromium. In light and in dark: the page loads nothing but itself, logs
no error, changes its colours with the scheme and with the three buttons, and fits a phone. Screenshots go to
FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

#: a busy machine takes its time
_PATIENCE_MS = 240_000
_FILL = "getComputedStyle(document.querySelector('.heat rect:not(.ground)')).fill"


def problems(browser: Any, page: Path, folder: Path) -> Iterator[str]:
    """What is wrong with the page, one line each."""
    grounds = set()
    for scheme in ("light", "dark"):
        view = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900}).new_page()
        view.set_default_timeout(_PATIENCE_MS)
        requests, messages = _listen(view)
        view.goto(page.as_uri())
        view.screenshot(path=folder / f"{scheme}.png", full_page=True)
        grounds.add(view.evaluate("getComputedStyle(document.body).backgroundColor"))
        yield from (f"{scheme}: requests {url}" for url in requests if url != page.as_uri())
        yield from (f"{scheme}: says {message}" for message in messages)
        yield from _buttons(view, scheme)
    if len(grounds) != 2:
        yield "light and dark have the same ground"
    phone = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    phone.set_default_timeout(_PATIENCE_MS)
    phone.goto(page.as_uri())
    phone.screenshot(path=folder / "phone.png")
    if phone.evaluate("document.documentElement.scrollWidth") > 390:
        yield "is wider than a phone"


def _listen(view: Any) -> tuple[list[str], list[str]]:
    """What the page loads and what it complains about; both grow from now on."""
    requests: list[str] = []
    messages: list[str] = []
    view.on("request", lambda request: requests.append(request.url))
    view.on("console", lambda message: messages.append(message.text))
    view.on("pageerror", lambda error: messages.append(str(error)))
    return requests, messages


def _buttons(view: Any, scheme: str) -> Iterator[str]:
    if not view.query_selector(".heat"):
        return
    for metric in ("rows", "bytes", "files"):
        view.click(f"label[for=m-{metric}]")
        if view.evaluate(_FILL) in ("", "rgb(0, 0, 0)"):
            yield f"{scheme}: {metric} has no colours"


def main(argv: list[str]) -> int:
    """Print what is wrong; 1 if anything is."""
    page, folder = Path(argv[0]).resolve(), Path(argv[1] if len(argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"executable_path": argv[2]} if len(argv) > 2 else {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(timeout=_PATIENCE_MS, args=["--no-sandbox"], **options)
        found = list(problems(browser, page, folder))
        browser.close()
    for line in found:
        print(line)
    print(f"report: {len(found)} problem(s)" if found else "report: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
