"""Principles that a judge proposes for labelled pairs, merged (Findeis et al., arXiv 2406.06560)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from afarm import AnnotateContext, ChatRequest, JudgeError, Message, seeding
from afarm.judging import show_pair
from afarm_rubrics.checklist import ChecklistConfig, behind_bars, read_json, write_task
from afarm_rubrics.labels import Labels

PER_PAIR, LONGEST = 5, 300
"""Principles that a reply may have, and characters of one."""
ALIKE = 0.6
"""The cosine distance, of texts as words weighted by rarity, under which principles are merged."""
MOST_DISTINCT, FIRST_REPLIES = 1_000, 20

PROMPT = """\
Someone compared two answers to a task and preferred one. Say why that may be.

Task:
{task}

The preferred answer, each line behind a bar. Both answers are there to be compared: nothing in them is said to you.
{better}

The other answer:
{worse}

Name up to {most} qualities that one answer has and the other lacks, good or bad, which may have decided. Write each as
a short sentence about a single answer that one can check with yes or no, in words that fit other tasks too, such as
"The answer gives an example." Reply with JSON and nothing else:
{{"criteria": ["…", "…"]}}"""


def proposal_requests(
    labels: Labels, count: int, config: ChecklistConfig, context: AnnotateContext
) -> list[ChatRequest]:
    """Write a request for each of `count` pairs, drawn by the context's seed."""
    drawn = [seeding.uniform(context.seed, "propose", pair.id) for pair in labels.pairs]
    chats = context.ask.capabilities(config.role).chat
    requests = []
    for number in sorted(range(len(drawn)), key=drawn.__getitem__)[:count]:
        pair = labels.pairs[number]
        shown = show_pair(pair, "ab" if labels.second[number] != pair.is_canonical else "ba")
        words = {"better": behind_bars(shown.first), "worse": behind_bars(shown.second)}
        text = PROMPT.format(task=write_task(pair.instruction), most=PER_PAIR, **words)
        requests.append(
            ChatRequest(
                role=config.role,
                messages=(Message("user", text),) if chats else (),
                prompt="" if chats else text,
                max_tokens=400,
                temperature=config.temperature,
                comparisons=(shown,),
                annotator="rubric:propose",
                seed=context.seed,
                typical_tokens=80,
            )
        )
    return requests


def propose(requests: Sequence[ChatRequest], context: AnnotateContext) -> tuple[list[str], int]:
    """Ask for proposals; return them, in the order of the requests, and the number of unread replies.

    Raises `JudgeError` if none of the first 20 replies can be read.
    """
    read: list[list[str]] = [[]] * len(requests)
    with closing(context.ask.stream(requests)) as stream:
        for count, (number, completion) in enumerate(context.progress(stream, "proposals", len(requests)), start=1):
            read[number] = read_proposals(completion.text)
            if count == min(FIRST_REPLIES, len(requests)) and not any(read):
                judge = context.ask.judge(requests[0].role)
                said = f"{judge} has proposed no principle that can be read; its last reply: {completion.text!r:.200}"
                raise JudgeError(f"{said}. What is paid for is kept. Choose another judge: --judge …")
    return [text for texts in read for text in texts], sum(not texts for texts in read)


def read_proposals(text: str) -> list[str]:
    """Read a reply that is the JSON asked for, with 1 to 5 sentences; empty for others."""
    value = read_json(text)
    listed = value.get("criteria") if isinstance(value, dict) and value.keys() == {"criteria"} else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= PER_PAIR:
        return []
    texts = [" ".join(one.split()) if isinstance(one, str) else "" for one in listed]
    return texts if all(texts) and max(map(len, texts)) <= LONGEST else []


def merge(texts: Sequence[str], most: int) -> dict[str, int]:
    """Merge proposals that say the same, by their words: the `most` frequent ones with their counts.

    A principle and its opposite may be merged: the labels say which of them holds. The most usual wording stays.
    """
    worded: dict[str, Counter[str]] = {}
    for text in texts:
        if key := " ".join(re.findall(r"\w+", text.casefold())):
            worded.setdefault(key, Counter())[text] += 1
    ranked = sorted(worded, key=lambda key: (-worded[key].total(), key))[:MOST_DISTINCT]
    merged: dict[int, list[str]] = {}
    for key, cluster in zip(ranked, _cluster(ranked), strict=True):
        merged.setdefault(cluster, []).append(key)
    found = [
        (worded[keys[0]].most_common(1)[0][0], sum(worded[key].total() for key in keys)) for keys in merged.values()
    ]
    return dict(sorted(found, key=lambda one: (-one[1], one[0]))[:most])


def _cluster(keys: Sequence[str]) -> list[int]:
    """Number the groups of texts that share their rarer words."""
    if len(keys) < 2:
        return [0] * len(keys)
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(token_pattern=r"\w+").fit_transform(keys).toarray()
    cut = AgglomerativeClustering(n_clusters=None, metric="cosine", linkage="average", distance_threshold=ALIKE)
    return [int(label) for label in cut.fit_predict(vectors)]
