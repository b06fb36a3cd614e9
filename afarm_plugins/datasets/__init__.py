"""Data sets: the user's own files, and AlpacaFarm's from the Hub."""

from typing import Literal

from afarm import Config, Register, hookimpl, setting


class FilesConfig(Config):
    """Files of rows with `instruction`, optional `input`, and `output` if the split needs one.

    An instruction may be a transcript, or the row may have a `prompt` (text or messages) with its `completion`, or a
    chat in `messages`.

    Name a file for each split, or one in `path` that is split by hash: each instruction then belongs to one split,
    whatever the order of the rows.
    """

    path: str = setting(
        "", "one file (.json, .jsonl, .csv, .parquet, also .gz), or hf:OWNER/NAME[:SPLIT], that all splits are cut from"
    )
    sft: str = setting("", "demonstrations, as a file of their own")
    preference: str = setting("", "instructions to compare samples on, as a file of their own")
    unlabeled: str = setting("", "instructions for methods to sample on, as a file of their own")
    validation: str = setting("", "instructions to choose checkpoints on, as a file of their own")
    evaluation: str = setting("", "instructions and reference outputs to evaluate on, as a file of their own")
    shares: dict[str, float] = setting(
        {"sft": 0.0, "preference": 0.4, "unlabeled": 0.35, "validation": 0.05, "evaluation": 0.2},
        "the share of `path` that each split gets; they add up to at most 1",
    )
    drop_empty: bool = setting(True, "leave out rows whose output is empty where it is needed (sft, evaluation)")


class PromptsConfig(Config):
    """The prompts of preferences, each in one split by its hash, with its chosen answer as output."""

    path: str = setting("", "the file of preferences, or hf:OWNER/NAME[:SPLIT]; every form of --preferences")
    labels: str = setting("", "the labels in it of the first output, the second and a draw, as `labels` has them")
    shares: dict[str, float] = setting(
        {"sft": 0.0, "unlabeled": 0.75, "validation": 0.05, "evaluation": 0.2},
        "the share of the prompts that each split gets; pairs of the evaluation's are not trained on",
    )


SHARES = {"sft": 0.2, "preference": 0.3, "unlabeled": 0.25, "validation": 0.05, "evaluation": 0.2}


class DialoguesConfig(Config):
    """Conversations: transcripts, chats, or preferences between whole dialogues as HH-RLHF has them."""

    path: str = setting("", "the file of conversations, or hf:OWNER/NAME[:SPLIT]; chats, transcripts or preferences")
    labels: str = setting("", "for preferences: the labels of the first output, the second and a draw, as 1,2,0")
    turns: Literal["last", "all"] = setting(
        "last", "the prompts of a conversation: what led to its last answer, or what led to each"
    )
    shares: dict[str, float] = setting(SHARES, "the share of the conversations that each split gets")


class SummariesConfig(Config):
    """Texts to summarise, with summaries if there are some."""

    path: str = setting("", "the file of texts, or hf:OWNER/NAME[:SPLIT]")
    text: str = setting("", "the field of the text, if it is not called post, article, document, text …")
    summary: str = setting("", "the field of the summary, if it is not called summary, highlights, tldr …")
    instruction: str = setting("Summarise the text in one or two sentences.", "the task that each text is the input of")
    shares: dict[str, float] = setting(SHARES, "the share of the texts that each split gets")


class HubConfig(Config):
    """AlpacaFarm's own data, from the Hub through the `datasets` library (licence: CC BY-NC 4.0)."""

    repository: str = setting("tatsu-lab/alpaca_farm", "the data set's Hub id, or a local copy of it")
    revision: str = setting("main", "branch, tag or commit; name a commit for a run that can be repeated")
    evaluation_repository: str = setting("tatsu-lab/alpaca_farm", "where the evaluation instructions come from")


@hookimpl
def register_datasets(register: Register) -> None:
    """Register the user's own files, as instructions, conversations and texts, and the paper's data set."""
    register(
        "files",
        "afarm_plugins.datasets.files:Files",
        config=FilesConfig,
        summary="your own JSON, JSON lines, CSV or Parquet files, or data sets of the Hub",
    )
    register(
        "prompts",
        "afarm_plugins.datasets.prompts:Prompts",
        config=PromptsConfig,
        summary="the prompts of your own preferences, a part of them held out to evaluate on",
    )
    register(
        "dialogues",
        "afarm_plugins.datasets.dialogues:Dialogues",
        config=DialoguesConfig,
        summary="conversations of several turns: what was said so far is the prompt",
    )
    register(
        "summaries",
        "afarm_plugins.datasets.summaries:Summaries",
        config=SummariesConfig,
        summary="texts to summarise, such as posts with their TL;DR",
    )
    register(
        "alpaca_farm",
        "afarm_plugins.datasets.hub:AlpacaFarm",
        config=HubConfig,
        summary="AlpacaFarm's splits and its 805 evaluation instructions, from the Hub",
    )
