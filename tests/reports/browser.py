"""A page in a real browser: what headless Chromium shows of it, read from the DOM after its scripts ran."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

# Errors are kept from the first line on; what is visible is measured when everything is loaded.
_WATCH = "<script>window.problems = []; addEventListener('error', (event) => problems.push(String(event.message)));"
_WATCH += "const log = console.error;"
_WATCH += "console.error = (...words) => { problems.push(words.join(' ')); log(...words); };</script>"
_PROBE = """<script>addEventListener("load", () => {
  const seen = (element) => {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    return box.width > 0 && box.height > 0 && style.visibility === "visible" && Number(style.opacity) > 0;
  };
  const texts = (selector) => [...document.querySelectorAll(selector)].filter(seen).map((e) => e.textContent.trim());
  STEP
  const found = {
    headings: texts("h1, h2, h3"), paragraphs: texts("p, li, pre"), cells: texts("td, th"),
    banner: texts(".banner"), drawings: [...document.querySelectorAll("svg")].filter(seen).map((svg) => ({
      title: svg.querySelector("title").textContent, texts: [...svg.querySelectorAll("text")].filter(seen).length,
      left: svg.getBoundingClientRect().left, right: svg.getBoundingClientRect().right,
      top: svg.getBoundingClientRect().top, bottom: svg.getBoundingClientRect().bottom,
      colours: new Set([...svg.querySelectorAll("path, use")].map((e) => getComputedStyle(e).fill)).size,
    })),
    width: document.documentElement.scrollWidth, problems,
  };
  const kept = document.createElement("pre");
  kept.id = "probe"; kept.textContent = JSON.stringify(found); document.body.append(kept);
});</script>"""


@dataclass(frozen=True)
class Shown:
    """What a reader can see: texts of visible elements, and the pictures."""

    headings: list[str]
    paragraphs: list[str]
    cells: list[str]
    banner: list[str]
    drawings: list[dict]
    width: int
    problems: list[str]


def show(page: str, folder: Path, *, width: int = 1000, step: str = "") -> Shown:
    """Show a page in Chromium, after a step of JavaScript.

    Args:
        width: of the window, in pixels.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    path = folder / "page.html"
    # What watches comes first and what measures last; the page between them is as it is.
    head, doctype = page.split("\n", 1)[::-1], page.split("\n", 1)[0]
    path.write_text(f"{doctype}\n{_WATCH}{head[0]}{_PROBE.replace('STEP', step)}", encoding="utf-8")
    switches = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    switches += " --disable-component-update --disable-sync --virtual-time-budget=10000 --dump-dom"
    profile = f"--user-data-dir={folder / 'profile'}"
    call = [program, *switches.split(), profile, f"--window-size={width},1200", path.as_uri()]
    dumped = subprocess.run(call, check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r'<pre id="probe">(.*?)</pre>', dumped, re.DOTALL)
    assert found is not None, dumped[-500:]
    return Shown(**json.loads(unescape(found[1])))
