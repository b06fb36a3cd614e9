"""The fingerprint of the toy world, written into the base model's card when the world was frozen.

It digests the behaviour of the world, its authors and its crowd, besides their constants, but not their source: a
better comment changes nothing, another rule does.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple
from functools import lru_cache
from random import Random

from afarm_plugins.toy import authors, crowd, world

CASES = 1000


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Digest the world's constants and behaviour by sha256, in hexadecimal."""
    constants = [
        [world.CATEGORIES, world.OPPOSITES, world.TRUE_OF, world.COUNTS, world.FAMILIES],
        [world.GOLD, world.CORE_RANGE, world.ENOUGH_DETAILS, world.MANY_DETAILS],
        [astuple(author) for author in (authors.CAREFUL, authors.CARELESS, authors.EDITOR)],
        [crowd.SIZE, crowd.TASTE_SPREAD, crowd.LENGTH_TASTE, crowd.SHARED_TASTE, crowd.NOISE],
    ]
    random = Random("fingerprint")
    behaviour = [_case(random) for _ in range(CASES)]
    return hashlib.sha256(json.dumps([constants, behaviour], sort_keys=True).encode()).hexdigest()


def _case(random: Random) -> list[object]:
    """List an instruction, a written and a garbled answer, their gold rewards and one person's preference."""
    instruction = world.draw_instruction(random)
    task = world.read_task(instruction.instruction, instruction.input)
    written = authors.write_answer(task, authors.draw_author(random), random)
    words = written.split()
    garbled = " ".join(random.choice((*words, "it is", "they look", ".")) for _ in range(random.randrange(14)))
    chance = random.choice(crowd.members()).prefers_second(instruction, written, garbled)
    rewards = [round(world.gold(instruction, answer), 6) for answer in (written, garbled)]
    return [instruction.instruction, instruction.input, written, garbled, rewards, round(chance, 6)]
