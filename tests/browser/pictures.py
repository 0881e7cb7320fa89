"""The pictures of docs/images, and the words on them.

By its words a picture is told from one of pages and commands as they are now. Pixels differ with the machine
that draws them, and figures from one run to the next.
"""

import html
import re
import zlib
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.conftest import sign_in
from tests.browser.running_service import RunningService
from tests.browser.terminal import draw

DOCUMENTS = Path(__file__).parents[2] / "docs" / "images"
_COMMANDS = ("status", "tables list --sort=-status")
_CHUNK = b"iTXtDescription\0\0\0\0\0"
_IN_WINDOW = """() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const words = [];
    const range = document.createRange();
    while (texts.nextNode()) {
        range.selectNode(texts.currentNode);
        const { top, width } = range.getBoundingClientRect();
        if (width && top < innerHeight) words.push(texts.currentNode.data);
    }
    return words.join(" ");
}"""
_FIGURE = re.compile(r"[+-]?\d[\d.,:]*(\s?(ms|s|min|m|h|d|kB|[KMGT]?B|k|M|x|%))?(?!\w)")
_OF_ONE_RUN = re.compile(r"\(file:.*?\)|\S+:#", re.S)
"""Places of files, and addresses."""
_CUT_OFF = re.compile(r"#[^#\n]*…$|\S*…", re.M)
"""Where a column ends lies with the figures beside it."""


def take_for_documents(browser: Browser, service: RunningService, table: str, directory: Path) -> None:
    """table: the path of its page."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    sign_in(context, service)
    page = context.new_page()
    page.goto(service.url + table)
    page.get_by_text("Live", exact=True).wait_for()  # else whether it is there is chance
    picture, words = page.screenshot(), page.evaluate(_IN_WINDOW)
    context.close()
    chunk = _CHUNK + words.encode()
    # Before the last chunk, which is empty.
    parts = (len(chunk) - 4).to_bytes(4), chunk, zlib.crc32(chunk).to_bytes(4), picture[-12:]
    (directory / "table.png").write_bytes(picture[:-12] + b"".join(parts))
    draw(_COMMANDS, service.url, service.admin_key, directory / "terminal.svg")


def words_of(picture: Path) -> list[str]:
    """Those of a picture of documents, without figures. Sorted: of tables that are alike, any comes first."""
    text = _of_terminal(picture) if picture.suffix == ".svg" else _of_page(picture)
    text = _OF_ONE_RUN.sub("#", _FIGURE.sub("#", text))
    # A time may be of one figure, or of two.
    return sorted(word for word in _CUT_OFF.sub("…", text).split() if word.strip("#"))


def _of_page(picture: Path) -> str:
    _, _, rest = picture.read_bytes().partition(_CHUNK)
    return rest[:-16].decode()


def _of_terminal(picture: Path) -> str:
    lines: dict[str, str] = {}
    for y, text in re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>(.*?)</text>', picture.read_text()):
        # Nothing is drawn for spaces between two of them.
        lines[y] = f"{lines.get(y, '')} {html.unescape(text)}".replace("\xa0", " ")
    return "\n".join(line.rstrip() for line in lines.values())
