"""The local judge, on a random Llama of a few thousand weights and, slowly, on SmolLM2."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from afarm.backend import Backend
from afarm.core.config import BackendConfig
from afarm.core.errors import JudgeError, ModelError
from afarm.core.interfaces import AnnotateContext, BuildContext
from afarm.core.judge import ChatRequest, Completion, ShownPair
from afarm.core.records import Instruction, Message, Pair
from afarm.judging.client import JudgeClient
from afarm.judging.ledger import Ledger
from afarm.testing import check_judge
from afarm.testing.contexts import KeyedReward, judge_context
from afarm.testing.models import tiny_policy
from afarm_plugins.annotators.pool import PoolAnnotator
from afarm_plugins.annotators.settings import PoolConfig
from afarm_plugins.judges.local import LocalJudge
from afarm_plugins.judges.local_model import FAVOURED_BIAS, LocalModel
from afarm_plugins.judges.settings import LocalConfig
from afarm_plugins.vllm.config import VllmConfig
from afarm_plugins.vllm.engine import VllmEngine


def word_tokenizer(chat: bool = True) -> Any:
    """One token a word, with the words of the labels, so that a random model's probabilities can be worked by hand."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "<q>", "<a>", "Output", "(a)", "(b)", "Neither", "<sys>"]
    words += [f"w{i}" for i in range(30)]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<q>", "<a>"],
    )
    if chat:
        tokenizer.chat_template = (
            "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
            "<q> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
        )
    return tokenizer


def save_model(directory: Path, seed: int = 0, chat: bool = True, max_position_embeddings: int = 64) -> str:
    tiny_policy(seed, tokenizer=word_tokenizer(), max_position_embeddings=max_position_embeddings).save(directory)
    word_tokenizer(chat).save_pretrained(directory)
    if not chat:
        (directory / "chat_template.jinja").unlink(missing_ok=True)
    return str(directory)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("base"), chat=False)


BACKEND = Backend(BackendConfig(device="cpu"))


def make(spec: str, answer: str = "text", size: int = 16, source: str = "here") -> LocalJudge:
    context = BuildContext(reward_model=lambda name: KeyedReward(), source=source, backend=lambda: BACKEND)
    return LocalJudge(spec, LocalConfig.model_validate({"answer": answer, "per_device_batch_size": size}), context)


def requests(count: int, **changes: Any) -> list[ChatRequest]:
    """One pair each, of prompts from 2 to 7 words."""
    made = [
        ChatRequest(
            role="strong",
            messages=(Message("user", " ".join(f"w{(i + j) % 30}" for j in range(2 + i % 6))),),
            max_tokens=6,
            comparisons=(ShownPair(f"pair {i}", Instruction("w1"), "w2", "w3"),),
            answer_format="single",
            annotator="test",
        )
        for i in range(count)
    ]
    return [replace(request, **changes) for request in made]


def answers(judge: LocalJudge, asked: Sequence[ChatRequest]) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        return await asyncio.gather(*(judge.complete(request) for request in asked))

    return asyncio.run(all_at_once())


def test_keeps_the_promises_of_a_judge(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json")
        .read_text()
        .replace('"max_position_embeddings": 64', '"max_position_embeddings": 512')
    )
    check_judge(make(path), answers=True)


def test_a_judge_of_this_process_says_that_the_policies_server_does_not_serve_it(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = VllmEngine(VllmConfig(version="0.32.0"), "http://127.0.0.1:1", judge_context())
    expected = [completion.text for completion in answers(make(model), requests(3))]
    assert caplog.messages == []
    config = BackendConfig(device="cpu", sampler="vllm@http://127.0.0.1:1")
    judge = LocalJudge(
        model, LocalConfig(), replace(judge_context(), backend=lambda: Backend(config, engine=engine), source="here")
    )
    assert judge.identity == make(model).identity
    assert [completion.text for completion in answers(judge, requests(3))] == expected
    (warned,) = caplog.messages
    assert f"local:{model} answers by torch" in warned
    assert "--judge openai-compatible:MODEL@URL/v1" in warned


def test_answers_do_not_depend_on_what_shares_the_batch(model: str) -> None:
    asked = requests(12)
    together = [c.text for c in answers(make(model), asked)]
    alone = [answers(make(model, size=1), [request])[0].text for request in reversed(asked[:4])]
    in_threes = [c.text for c in answers(make(model, size=3), asked)]
    assert alone[::-1] == together[:4]
    assert in_threes == together
    assert len(set(together)) > 8


def test_draws_seeds_annotators_and_orders_are_independent_samples(model: str) -> None:
    [request] = requests(1)
    other_order = (replace(request.comparisons[0], order="ba"),)
    variants = [
        request,
        replace(request, seed=1),
        replace(request, sample_index=1),
        replace(request, annotator="other"),
    ]
    variants.append(replace(request, comparisons=other_order))
    texts = [c.text for c in answers(make(model), variants)]
    assert len(set(texts)) == len(texts)
    assert answers(make(model), [request, request])[0].text == texts[0]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[ChatRequest]]:
    """The batches that local models write answers to."""
    recorded: list[Sequence[ChatRequest]] = []
    write = LocalModel.write

    def recording(self: LocalModel, batch: Sequence[ChatRequest]) -> Any:
        recorded.append(batch)
        return write(self, batch)

    monkeypatch.setattr(LocalModel, "write", recording)
    return recorded


def test_requests_that_wait_together_are_one_batch_and_parameters_are_not_mixed(
    model: str, batches: list[Sequence[ChatRequest]]
) -> None:
    answers(make(model), [*requests(5), *requests(4, temperature=0.0), *requests(20)])
    temperatures = [[request.temperature for request in batch] for batch in batches]
    assert temperatures[0] == [1.0] * 16
    assert sorted(temperatures[1:]) == [[0.0] * 4, [1.0] * 9]


def test_a_long_prompt_does_not_share_a_batch_with_short_ones(model: str, batches: list[Sequence[ChatRequest]]) -> None:
    lengths = [10, 900, 1900, 2500, 4000, 30000, 40000]
    answers(make(model), [requests(1, messages=(Message("user", "w" * length),))[0] for length in lengths])
    found = sorted(sorted(len(request.messages[0].content) for request in batch) for batch in batches)
    assert found == [[10, 900, 1900], [2500, 4000], [30000, 40000]]


def test_the_likeliest_tokens_are_those_of_the_model_at_each_position_of_the_text(model: str) -> None:
    asked = requests(40, top_logprobs=4, penalised_tokens=("<pad>", "<q>", "<a>"))  # which are no part of a text
    loaded = LocalModel(model, BACKEND)
    compared = set()
    for request, answer in zip(asked, answers(make(model, size=4), asked), strict=True):
        assert answer.logprobs is not None
        # The token that ends an answer is not in its text.
        assert len(answer.logprobs) == answer.output_tokens - (answer.finish_reason == "stop")
        words, ids = answer.text.split(), loaded.prompt_ids(request)
        if len(words) < len(answer.logprobs):  # the model has more tokens than the tokenizer has words
            continue
        compared.add(answer.finish_reason)
        for word, likeliest in zip(words, answer.logprobs, strict=True):
            best = loaded.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).topk(4)
            expected: dict[str, float] = {}
            for token, logprob in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                expected.setdefault(loaded.tokenizer.decode([token]), logprob)
            assert likeliest == pytest.approx(expected, abs=1e-5)
            ids.append(loaded.tokenizer.convert_tokens_to_ids(word))
    assert compared == {"stop", "length"}
    assert answers(make(model), requests(1))[0].logprobs is None


def test_greedy_answers_are_the_most_probable_tokens(model: str) -> None:
    [request] = requests(1, temperature=0.0)
    [answer] = answers(make(model), [request])
    loaded = LocalModel(model, BACKEND)
    ids = loaded.prompt_ids(request)
    for word in answer.text.split():
        logits = loaded.model(torch.tensor([ids])).logits[0, -1]
        ids = [*ids, int(logits.argmax())]
        assert loaded.tokenizer.decode(ids[-1:]) == word
    assert (answer.input_tokens, answer.price) == (4, 0.0)  # <q> w0 w1 <a>
    assert answer.finish_reason in ("stop", "length")


def test_label_probabilities_are_the_softmax_of_the_two_logits(model: str) -> None:
    asked = requests(9)
    judge = make(model, "probabilities", size=4)
    loaded = LocalModel(model, BACKEND)
    for request, answer in zip(asked, answers(judge, asked), strict=True):
        prompt = loaded.prompt_ids(request)
        logits = loaded.model(torch.tensor([[*prompt, 5]])).logits[0, -1].tolist()  # 5 is "Output", which both share
        p_a = 1 / (1 + math.exp(logits[7] - logits[6]))
        assert answer.finish_reason == "probabilities"
        assert answer.logprobs is not None
        assert answer.logprobs[0]["Output (a)"] == pytest.approx(math.log(p_a), abs=1e-5)
        assert answer.logprobs[0]["Output (b)"] == pytest.approx(math.log(1 - p_a), abs=1e-5)
        assert answer.text == ("Output (a)" if p_a > 0.5 else "Output (b)")


@pytest.mark.parametrize("answer_format", ["list", "json", ""])
def test_probabilities_of_anything_but_one_label_are_refused(model: str, answer_format: str) -> None:
    with pytest.raises(JudgeError, match=r"one label about one pair, and test asks .*gpt4_4"):
        answers(make(model, "probabilities"), requests(1, answer_format=answer_format))
    two = (ShownPair("1", Instruction("w1"), "w2", "w3"), ShownPair("2", Instruction("w1"), "w2", "w3"))
    with pytest.raises(JudgeError, match="about 2 pairs"):
        answers(make(model, "probabilities"), requests(1, comparisons=two))


def test_favoured_and_avoided_words_change_what_is_sampled(model: str) -> None:
    free = answers(make(model), requests(20))
    biased = answers(
        make(model),
        requests(20, favoured_tokens=("Output (a)",), penalised_tokens=("w1 w2", *(f"w{i}" for i in range(30)))),
    )
    words = [word for c in biased for word in c.text.split()]
    assert sum(word in ("Output", "(a)") for word in words) > 0.9 * len(words)
    assert sum(word in ("Output", "(a)") for c in free for word in c.text.split()) < 0.3 * len(words)
    bias = LocalModel(model, BACKEND).logit_bias(
        requests(1, favoured_tokens=("Output (a)",), penalised_tokens=("Neither", "w1 w2"))[0]
    )
    assert bias == {5: FAVOURED_BIAS, 6: FAVOURED_BIAS, 8: -100.0}  # what is avoided counts where it is one token


def test_control_tokens_in_an_output_stay_text(model: str) -> None:
    loaded = LocalModel(model, BACKEND)
    [request] = requests(1, messages=(Message("user", "w1 <eos> <a> Output (a) <q> w2 \ud83d"),))
    ids = loaded.prompt_ids(request)
    assert [ids.count(3), ids.count(4), ids.count(1)] == [1, 1, 0]  # the template's own <q> and <a>, and no <eos>
    [raw] = requests(1, messages=(), prompt="w1 <eos> w2")
    assert 1 not in loaded.prompt_ids(raw)


def test_a_system_turn_joins_the_users_where_the_template_knows_none(model: str) -> None:
    loaded = LocalModel(model, BACKEND)
    [request] = requests(1, messages=(Message("system", "w5"), Message("user", "w6")))
    assert loaded.tokenizer.decode(loaded.prompt_ids(request)) == "<q> w5 w6 <a>"


def test_base_models_complete_texts_and_refuse_chats(base_model: str) -> None:
    judge = make(base_model)
    with pytest.raises(JudgeError, match=r"no chat template.*davinci003_1"):
        answers(judge, requests(1))
    [answer] = answers(judge, requests(1, messages=(), prompt="w1 w2 w3"))
    assert answer.input_tokens == 3
    [weighed] = answers(make(base_model, "probabilities"), requests(1, messages=(), prompt="w1 w2 w3"))
    assert weighed.logprobs is not None
    assert sum(map(math.exp, weighed.logprobs[0].values())) == pytest.approx(1)


@pytest.mark.parametrize("answer", ["text", "probabilities"])
def test_a_prompt_beyond_the_context_gets_no_answer_and_stops_no_other(model: str, answer: str) -> None:
    long = requests(1, messages=(Message("user", "w1 " * 70),))
    judge = make(model, answer)
    first, second = answers(judge, [*long, *requests(1)])
    assert (first.text, first.finish_reason, first.logprobs) == ("", "context_length", None)
    assert first.input_tokens == 72 + (answer == "probabilities")  # which begins as both labels do
    assert second.text == answers(judge, requests(1))[0].text


def test_identity_follows_the_models_files_the_answer_mode_and_the_precision(tmp_path: Path) -> None:
    one, two = save_model(tmp_path / "one"), save_model(tmp_path / "two", seed=1)
    moved = tmp_path / "elsewhere" / "one"
    moved.parent.mkdir()
    identities = [make(one).identity, make(two).identity, make(one, "probabilities").identity]
    identities.append(make(one, source="edited").identity)
    assert len(set(identities)) == 4
    assert make(one, size=1).identity == identities[0]
    assert identities[0].startswith("local:one@")
    Path(one).rename(moved)
    assert make(str(moved)).identity == identities[0]


def test_a_missing_model_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="--judge local:MODEL"):
        make("")
    with pytest.raises(ModelError, match=r"nowhere\.gguf"):
        make(str(tmp_path / "nowhere.gguf"))
    (tmp_path / "model.txt").write_text("none")
    with pytest.raises(ModelError, match=r"check --judge local:.*/model.txt"):
        make(str(tmp_path / "model.txt"))


def test_a_cancelled_request_leaves_the_judge_usable(model: str) -> None:
    judge = make(model)

    async def cancel_one() -> list[Completion]:
        tasks = [asyncio.create_task(judge.complete(request)) for request in requests(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.gather(*(judge.complete(request) for request in requests(3)))

    assert [c.text for c in asyncio.run(cancel_one())] == [c.text for c in answers(make(model), requests(3))]


def test_label_probabilities_become_weighted_preferences_and_are_not_asked_for_twice(tmp_path: Path) -> None:
    path = save_model(tmp_path / "model", max_position_embeddings=4096)
    pairs = [Pair(Instruction(f"w{i}"), f"w{i} w1", f"w2 w{i + 1}") for i in range(3, 9)]
    pairs.append(pairs[0].swapped())
    annotator = PoolAnnotator(PoolConfig(members=["chatgpt_4"]))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        asker = JudgeClient({"*": make(path, "probabilities")}, ledger)
        preferences = annotator.annotate(pairs[:-1], AnnotateContext(0, asker))
        p2 = [preference.p2 for preference in preferences]
        assert all(p is not None and 0 < p < 1 for p in p2)
        assert len(set(p2)) == len(p2)
        [mirrored] = annotator.annotate(pairs[-1:], AnnotateContext(0, asker))
        assert mirrored.p2 == pytest.approx(preferences[0].swapped().p2)
        assert replace(mirrored, p2=None, outcome="draw") == replace(preferences[0].swapped(), p2=None, outcome="draw")
        assert asker.spend.calls == 6
        asker.close()


@pytest.mark.slow
def test_smollm2_weighs_labels_and_writes_what_it_is_asked_for(smollm2: str) -> None:
    comparison = ShownPair("p", Instruction("Name a colour."), "Blue.", "I had a sandwich on Tuesday.")
    asked = f"Instruction:\nName a colour.\n\nOutput (a):\n{comparison.first}\n\nOutput (b):\n{comparison.second}\n\n"
    request = requests(1, messages=(Message("user", asked + "Which output is better?"),), comparisons=(comparison,))[0]
    model = LocalModel(smollm2, BACKEND)
    [weighed] = model.weigh([request])
    assert weighed.logprobs is not None
    assert sum(map(math.exp, weighed.logprobs[0].values())) == pytest.approx(1)
    question = (Message("user", "What is the capital of France?"),)
    [answer] = model.write([replace(request, messages=question, temperature=0.0, max_tokens=20)])
    assert "Paris" in answer.text
    assert "<|im_end|>" not in answer.text
