"""What pages and commands ask about before they do it is one list."""

import re
from pathlib import Path

import service.ui
from service.command.operations import load_document, operations
from service.confirmations import may_ask, words_before

TEMPLATES = Path(service.ui.__file__).with_name("templates")
FORMS_OF_THEIR_OWN = {"attach_policy", "create_erasure", "delete_rows"}
"""Forms that ask in another way."""


def test_what_pages_ask_about_is_what_commands_ask_about() -> None:
    known = {one.id: one for one in operations(load_document())}
    asking = {name for name in known if words_before(name)}
    assert asking >= {name for name, one in known.items() if one.method == "DELETE"}
    pages = [path.read_text() for path in TEMPLATES.rglob("*.html")]
    confirmed = [call for page in pages for call in re.findall(r"call parts\.confirm\(([^,]*)", page)]
    by_name = [re.fullmatch(r'words_before\("(\w+)"\)?', words) for words in confirmed]
    assert all(by_name), confirmed
    named = {match[1] for match in by_name if match}
    assert named - {"request_job", "retry_job"} == asking - FORMS_OF_THEIR_OWN
    buttons = [words for page in pages for words in re.findall(r'"kind": "(\w+)"\}, "', page)]
    assert not any(words_before("request_job", {"kind": kind}) for kind in buttons), "without a question"


def test_of_jobs_those_are_asked_about_that_take_something_away() -> None:
    assert may_ask("request_job")
    assert not may_ask("list_jobs")
    assert words_before("request_job", {"kind": "convert"}) is None
    assert words_before("request_job", {"kind": "publish", "parameters": {"renew": True}}) is None
    skipping = {"kind": "publish", "parameters": {"skip": 17}}
    assert "can't be made up for" in (words_before("request_job", skipping) or "")
    assert words_before("request_job", {**skipping, "dry_run": True}) is None
