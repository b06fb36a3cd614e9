"""Keys in texts that are shown."""

from __future__ import annotations

import pytest

from afarm.storage.text import without_keys


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://h/sk-proj-abcdefghijklmnopqrstuvwxyz123456/v1", "at http://h/[key]/v1"),
        ("key sk-ant-api03-Ab1-cd_EFghIJklMNopQR-x1: wrong", "key [key]: wrong"),
        ("'sk-0123456789abcdef0123456789abcdef'", "'[key]'"),
        ("gsk_" + "a1B2c3" * 8, "[key]"),
        ("https:/u:secret@h/x.json", "https:/[key]@h/x.json"),
        ("https://u:secret@h/x.json?a=b", "https://[key]@h/x.json?[key]"),
        ("at https://h/x?key=secret, or not", "at https://h/x?[key], or not"),
    ],
)
def test_keys_are_hidden(text: str, shown: str) -> None:
    assert without_keys(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "task-2024abcdefghijklmnop",
        "sk-SK",
        "Did you mean 'http://h/v1'?",
        "is it https://h/v1? or http://h/v2#",
        "sk-learn-models/of-2024-and-later.json",
        "http://h/v1/0123456789abcdef0123456789abcdef/gpt-4o-2024-08-06",
        "hf:owner/hf_models_of_2024_and_of_later_years",
    ],
)
def test_other_names_are_shown(text: str) -> None:
    assert without_keys(text) == text
