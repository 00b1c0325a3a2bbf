"""What an AppTest page says, and that nothing on it failed."""

import re

from streamlit.testing.v1 import AppTest


def words(page: AppTest) -> str:
    """All that the page says as text."""
    parts = [*page.text, *page.markdown, *page.caption, *page.title, *page.header, *page.subheader, *page.code]
    return "\n".join(str(part.value) for part in parts)


def fine(page: AppTest) -> AppTest:
    """The page, on which nothing failed."""
    assert not page.exception
    said = words(page)
    assert not re.search("cannot be|do not align|this should not happen", said), said
    return page
