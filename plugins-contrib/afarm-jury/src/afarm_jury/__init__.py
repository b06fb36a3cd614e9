"""A jury for afarm: `--annotator jury:FILE.yaml`, in which different judges vote on each pair."""

from typing import Any

from afarm import Register, hookimpl


@hookimpl
def register_annotators(register: Register) -> None:
    register(
        "jury",
        "afarm_jury.jury:Jury",
        summary="different annotators and judges vote, the cheapest first, until the majority is fixed: jury:FILE.yaml",
        spec="FILE",
    )


@hookimpl
def register_sections(sections: dict[str, Any]) -> None:
    from afarm_jury.section import write_section

    sections["The jury"] = write_section
