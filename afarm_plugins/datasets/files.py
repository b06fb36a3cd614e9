"""Instructions from the user's own files."""

from __future__ import annotations

from afarm.errors import ConfigError, DataError
from afarm.files import read_outputs
from afarm.interfaces import Dataset
from afarm.keyed import uniform
from afarm.records import Output
from afarm_plugins.datasets import FilesConfig

NEED_OUTPUTS = {"sft", "evaluation"}


class Files(Dataset):
    """One file a split, or one file cut into disjoint splits by a hash of each instruction."""

    def __init__(self, config: FilesConfig):
        self.config = config
        shares = config.shares
        problems = []
        if any(share < 0 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
            problems.append("files.shares: each must be at least 0, and together they may not exceed 1")
        if not config.path and not any([config.sft, config.preference, config.unlabeled, config.evaluation]):
            problems.append("files.path: name the file with the instructions: --data FILE")
        if problems:
            raise ConfigError(problems)

    def load(self, split: str) -> list[Output]:
        """See `Dataset.load`. Rows without an output are left out where the split needs one."""
        own = getattr(self.config, split, "")
        if own:
            rows = read_outputs(own)
        elif self.config.path:
            rows = [row for row in read_outputs(self.config.path) if self._split_of(row) == split]
        else:
            raise DataError(f"split {split!r} has no file: --set files.{split}=FILE, or --data FILE for all splits")
        if split in NEED_OUTPUTS and self.config.drop_empty:
            rows = [row for row in rows if row.output.strip()]
        if not rows:
            share = self.config.shares.get(split, 0)
            raise DataError(
                f"{own or self.config.path}: split {split!r} is empty"
                + ("" if own else f" (its share is {share:g}: --set files.shares.{split}=0.2)")
            )
        return rows

    def _split_of(self, row: Output) -> str:
        at = uniform("split", row.instruction.id)
        for split, share in self.config.shares.items():
            if at < share:
                return split
            at -= share
        return ""

