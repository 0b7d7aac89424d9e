from __future__ import annotations

from lb.domain.access import Role


def test_roles_are_the_words_of_the_configuration() -> None:
    assert [role.value for role in Role] == ["infer", "control", "read", "operate"]
