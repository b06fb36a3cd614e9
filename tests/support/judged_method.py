"""A method with a judge in the loop, as a stranger writes it: it rates, ranks and criticises its own responses."""

import torch

from afarm import Config, Decoding, Method, hookimpl, setting
from afarm.backend import join_and_pad, response_logprobs


class JudgedConfig(Config):
    """How long, and on how many responses."""

    max_steps: int = setting(3, "steps", ge=1)
    prompts: int = setting(4, "prompts of a step", ge=1)
    num_generations: int = setting(3, "responses to a prompt", gt=1)
    response_length: int = setting(12, "the longest response in tokens", ge=1)
    learning_rate: float = setting(1e-3, "of Adam", gt=0)


class Judged(Method):
    """Raises the probability of responses in proportion to their marks and places, lowered where a critic is short."""

    needs = frozenset({"unlabeled", "judge"})

    def train(self, inputs, context):
        config, judge = self.config, inputs.judge
        policy = inputs.start.copy()
        optimizer = torch.optim.AdamW(policy.model.parameters(), lr=config.learning_rate)
        done = 0
        if newest := context.checkpoints.latest():
            done = newest[0]
            state = torch.load(newest[1] / "state.pt", weights_only=True)
            policy.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        n = config.num_generations
        for step in range(done, config.max_steps):
            tasks = self.tasks(inputs.unlabeled, step)
            decoding = Decoding(n=n, max_new_tokens=config.response_length)
            samples = list(policy.sample(tasks, decoding, seed=context.seed + step))
            groups = [[s.text for s in samples[i : i + n]] for i in range(0, len(samples), n)]
            marks = judge.rate([task for task in tasks for _ in range(n)], [s.text for s in samples])
            places = judge.rank(tasks, groups)
            said = judge.criticise(tasks, [group[0] for group in groups])
            rewards = []
            for i, mark in enumerate(marks):
                group = places[i // n]
                rewards.append(0.0 if mark is None or group is None else (mark - 4) / 3 + (n + 1) / 2 - group[i % n])
            batch = join_and_pad(
                [s.prompt_ids for s in samples], [s.token_ids for s in samples], policy.pad_id, policy.model.device
            )
            logprobs = response_logprobs(policy.model, batch.input_ids, batch.attention_mask, batch.response_mask)
            loss = -(logprobs.sum(1) * torch.tensor(rewards)).mean() / config.response_length
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            figures = {
                "loss": loss.item(),
                "reward": sum(rewards) / len(rewards),
                "criticised": len([*filter(None, said)]),
            }
            context.log_metrics(step + 1, figures)
            state = {"model": policy.model.state_dict(), "optimizer": optimizer.state_dict()}
            context.checkpoints.save(step + 1, lambda directory, state=state: torch.save(state, directory / "state.pt"))
            if context.should_stop():
                raise KeyboardInterrupt
        return policy

    def tasks(self, instructions, step):
        first = step * self.config.prompts
        return [instructions[i % len(instructions)] for i in range(first, first + self.config.prompts)]

    def plan_judging(self, instructions, judge):
        n = self.config.num_generations
        for step in range(self.config.max_steps):
            tasks = self.tasks(instructions["unlabeled"], step)
            judge.rate([task for task in tasks for _ in range(n)], [""] * n * len(tasks))
            judge.rank(tasks, [[""] * n] * len(tasks))
            judge.criticise(tasks, [""] * len(tasks))


@hookimpl
def register_methods(register):
    register("judged", "judged_method:Judged", config=JudgedConfig, summary="learns what a judge marks and ranks high")
