from __future__ import annotations

from lb.domain.names import readable


def test_names_that_are_no_text_are_shown_all_the_same() -> None:
    assert readable(b"\xffx") == "\\xffx"
