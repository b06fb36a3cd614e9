"""A reward function that tests name on the command line."""


def terse(prompts: list[str], completions: list[str], **columns: object) -> list[float | None]:
    """Return minus a hundredth of the characters, and no reward for nothing."""
    return [-len(text) / 100 if text else None for text in completions]
