"""PPO for a tiny language model: its details one by one, its proof, its command line."""

import csv
import gzip
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from conftest import ROOT, command, flags, run, scalars

import ppo_rlhf_tiny as rlhf
from benchmarks import best_of_n
from benchmarks import rlhf as pictures
from benchmarks import run as benchmark
from benchmarks.suites import RLHF, RLHF_SCALARS, SUITES, Run, runs_of

WORDS = "sun moon star river stone tree bird fish sings sleeps shines falls".split()


def write_corpus(path="small.txt", clauses=500) -> str:
    """Clauses of 3 to 7 words in which some words follow others more often than chance."""
    rng = random.Random(0)
    lines = ["# a comment", "sun\t2.0", "shines\t1.5", "falls\t-1.0", "elsewhere\t3.0"]
    for _ in range(clauses):
        clause = [rng.randrange(12)]
        while len(clause) < rng.randint(3, 7):
            clause.append((clause[-1] + rng.choice((1, 1, 2, 5))) % 12)
        lines.append(" ".join(WORDS[i] for i in clause))
    Path(path).write_text("\n".join(lines) + "\n")
    return str(path)


# Five iterations of 16 responses, in about a second.
SMALL = {"corpus": "small.txt", "prompt_words": 2, "num_steps": 6, "num_envs": 16}
SMALL |= {"total_episodes": 80, "minibatch_size": 8, "hidden_size": 16, "num_layers": 1}
SMALL |= {"sft_epochs": 1, "rm_pairs": 40, "eval_episodes": 8, "save_every": 2}


@pytest.fixture(autouse=True)
def corpus_file(in_a_folder_of_its_own):
    write_corpus()


def small_args(**changes) -> rlhf.Args:
    return rlhf.Args(**{**SMALL, **changes})


def small_flags(**changes) -> list[str]:
    return flags(**{**SMALL, **changes})


def networks_and_corpus(**changes):
    args = small_args(**changes)
    corpus, networks = rlhf.make_networks(args)
    for name, param in networks.named_parameters():
        param.data += 0.3 * torch.randn_like(param)  # so that every token matters
    return networks, corpus, args


def saved(run_dir) -> dict:
    return torch.load(Path(run_dir, "checkpoint.pt"), weights_only=True)


def episodes(run_dir) -> list[tuple]:
    with open(Path(run_dir, "episodes.csv")) as file:
        return [tuple(v for k, v in row.items() if k != "seconds") for row in csv.DictReader(file)]


def assert_same_run(a, b):
    assert episodes(a) == episodes(b) and len(episodes(a)) > 0
    for (name, p), q in zip(saved(a)["networks"].items(), saved(b)["networks"].values()):
        assert torch.equal(p, q), name


def spy(monkeypatch, name: str) -> list:
    """Positional arguments of all calls of a function of the script."""
    calls, function = [], getattr(rlhf, name)

    def spying(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    monkeypatch.setattr(rlhf, name, spying)
    return calls


# ------------------------------------------------------------------------ tokens, masks, the corpus
def test_the_shipped_corpus_is_real_small_and_gives_its_sources():
    path = ROOT / "ppo_rlhf_tiny.txt.gz"
    assert path.stat().st_size <= 200_000
    text = gzip.decompress(path.read_bytes()).decode()
    assert "public domain" in text and "Copyright (c) 2016 C.J. Hutto" in text
    corpus = rlhf.read_corpus(rlhf.Args())
    assert len(corpus.train) + len(corpus.held_out) > 10_000 and (corpus.valence != 0).sum() > 100
    assert corpus.words[0] == "<eos>" and len(set(corpus.words)) == len(corpus.words)


def test_a_corpus_becomes_padded_rows_and_all_are_used_once():
    networks, corpus, args = networks_and_corpus()
    rows = torch.cat((corpus.train, corpus.held_out))
    V = len(corpus.words)
    assert V == 13 and rows.shape[1] == 3 + args.num_steps
    texts = set()
    for row in rows.tolist():
        end = row.index(rlhf.EOS)
        assert row[0] == V and set(row[end + 1 :]) <= {V + 1}
        texts.add(" ".join(corpus.words[i] for i in row[1:end]))
    lines = [x for x in Path("small.txt").read_text().splitlines() if "\t" not in x and x[0] != "#"]
    assert texts == set(lines) and len(rows) == len(lines)
    assert corpus.valence[corpus.words.index("sun")] == 2 and corpus.valence[-1] == 0


def test_a_clause_with_a_rare_word_is_left_out():
    corpus = rlhf.read_corpus(small_args(vocab_size=11))
    assert len(corpus.words) == 12
    lines = [x for x in Path("small.txt").read_text().splitlines() if "\t" not in x and x[0] != "#"]
    (rare,) = set(WORDS) - set(corpus.words)
    kept = [line for line in lines if rare not in line.split()]
    assert len(corpus.train) + len(corpus.held_out) == len(kept) < len(lines)


def test_generated_responses_end_once_and_hold_no_bos_or_pad():
    networks, corpus, args = networks_and_corpus()
    prompts = corpus.train[:200, :3].repeat(10, 1)
    generator = torch.Generator().manual_seed(0)
    tokens, mask = rlhf.generate(networks["policy"], prompts, 6, 1.0, generator)
    V, PAD = 12, 14
    assert PAD != rlhf.EOS and torch.equal(tokens[:, :3], prompts)
    responses = tokens[:, 3:]
    for row, m in zip(responses.tolist(), mask.tolist()):
        length = row.index(rlhf.EOS) + 1 if rlhf.EOS in row else 6
        assert m == [True] * length + [False] * (6 - length)  # with EOS, without PAD
        assert all(0 <= i <= V for i in row[:length]) and set(row[length:]) <= {PAD}
    assert 0.05 < mask.all(1).float().mean() < 0.95  # both kinds were seen


def test_samples_follow_the_log_probabilities_at_any_temperature():
    networks, corpus, args = networks_and_corpus()
    policy, prompts = networks["policy"], corpus.train[:1, :3].expand(40_000, 3)
    for temperature in (0.7, 1.0):
        generator = torch.Generator().manual_seed(0)
        tokens, mask = rlhf.generate(policy, prompts, 1, temperature, generator)
        logprobs = rlhf.token_logprobs(policy, tokens[:1], mask[:1], temperature)[1][0]
        p = logprobs.exp().detach()
        assert p.shape == (13,) and p.sum().item() == pytest.approx(1, abs=1e-6)  # EOS and 12 words
        counts = torch.bincount(tokens[:, 3], minlength=13)
        chi_square = ((counts - 40_000 * p) ** 2 / (40_000 * p)).sum()
        assert chi_square < 40, chi_square  # 12 degrees of freedom: beyond 40 once in 10,000


# ------------------------------------------------------------------------------------ the networks
def test_the_cache_gives_the_logits_of_the_full_forward_pass():
    networks, corpus, args = networks_and_corpus(num_layers=2)
    policy, tokens = networks["policy"], corpus.train[:20]
    full = policy.logits(policy(tokens))
    cache = [[] for _ in policy.blocks]
    parts = [policy(tokens[:, :3], cache)]
    parts += [policy(tokens[:, t : t + 1], cache) for t in range(3, tokens.shape[1])]
    torch.testing.assert_close(policy.logits(torch.cat(parts, 1)), full, atol=1e-4, rtol=0)


def test_log_probabilities_and_scores_are_those_of_each_text_alone():
    """Token by token, without padding: catches shifted logits, wrong places, leaks from PAD."""
    networks, corpus, args = networks_and_corpus()
    policy, scorer = networks["policy"], networks["reward_model"]
    tokens = corpus.train[:12].clone()
    mask = tokens[:, 3:] <= 12
    assert len(set(mask.sum(1).tolist())) > 2
    batch = torch.zeros(mask.shape)
    batch[mask], logprobs = rlhf.token_logprobs(policy, tokens, mask, 0.7)
    scores = rlhf.last_score(scorer, tokens, mask)
    for row, m, together, score in zip(tokens, mask, batch, scores):
        for t in range(int(m.sum())):
            logits = policy.logits(policy(row[None, : 3 + t])[0, -1]) / 0.7
            alone = logits.log_softmax(-1)[row[3 + t]]
            assert together[t].item() == pytest.approx(alone.item(), abs=1e-5)
        alone = scorer(row[None, : 3 + int(m.sum())])[0, -1]
        assert score.item() == pytest.approx(alone.item(), abs=1e-5)
    garbage = tokens.clone()
    garbage[:, 3:][~mask] = 5
    torch.testing.assert_close(rlhf.last_score(scorer, garbage, mask), scores, atol=0, rtol=0)
    torch.testing.assert_close(rlhf.token_logprobs(policy, garbage, mask, 0.7)[1], logprobs)


def test_the_language_model_learns_the_prompt_and_eos_but_not_pad():
    networks, corpus, args = networks_and_corpus()
    policy, clauses = networks["policy"], corpus.train[:9]
    losses = []
    for row in clauses:
        end = row.tolist().index(rlhf.EOS)
        logprobs = policy.logits(policy(row[None]))[0].log_softmax(-1)
        losses += [-logprobs[t, row[t + 1]].item() for t in range(end)]
    assert rlhf.loss_lm(policy, clauses).item() == pytest.approx(np.mean(losses), abs=1e-5)


# ------------------------------------------------------------------------------------ the formulas
def test_rewards_are_the_detached_log_ratio_and_the_score_on_the_last_real_token():
    logprob = torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -2.0, -3.0]], requires_grad=True)
    ref_logprob = torch.tensor([[-1.5, -1.0, -5.0], [-1.0, -3.0, -2.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    scores = torch.tensor([10.0, 20.0])
    rewards = rlhf.kl_shaped_rewards(logprob, ref_logprob, scores, mask, 0.5)
    expected = [[-0.25, 10.5, 0.0], [0.0, -0.5, 20.5]]
    torch.testing.assert_close(rewards, torch.tensor(expected))
    assert not rewards.requires_grad


def test_advantages_in_main_are_those_of_each_response_alone(monkeypatch):
    """What main makes of masks and padding, against the sum of eq. (11) over real tokens."""
    shaped, gae = spy(monkeypatch, "kl_shaped_rewards"), spy(monkeypatch, "compute_gae")
    losses = spy(monkeypatch, "loss_clip")
    changes = {"norm_adv": False, "total_episodes": 16, "minibatch_size": 16}
    rlhf.main(small_args(gae_lambda=0.9, gamma=0.8, **changes))
    ((_, _, _, mask, _),), ((rewards, values, *_),) = shaped, gae
    assert len(set(mask.sum(1).tolist())) > 2  # responses of different lengths
    expected = []
    for r, v, length in zip(rewards.T, values.T, mask.sum(1).tolist()):
        v = [*v[:length], 0.0]  # nothing comes after the last token
        deltas = [r[t] + 0.8 * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            expected.append(sum(0.72 ** (k - t) * deltas[k] for k in range(t, length)))
    found = losses[0][1].sort().values
    torch.testing.assert_close(found, torch.tensor(sorted(expected)).float(), atol=1e-5, rtol=1e-4)


def test_bradley_terry():
    better, worse = torch.tensor([1.0, 0.0], requires_grad=True), torch.tensor([1.0, 2.0])
    assert rlhf.loss_preference(worse, worse).item() == pytest.approx(math.log(2))
    loss = rlhf.loss_preference(better, worse)
    assert loss.item() == pytest.approx((math.log(2) + math.log(1 + math.exp(2))) / 2)
    assert rlhf.loss_preference(better + 5, worse + 5).item() == pytest.approx(loss.item())
    loss.backward()
    assert (better.grad < 0).all() and better.grad[1] < better.grad[0]


def test_exact_kl():
    torch.manual_seed(0)
    p, q = torch.randn(2, 7, 5).log_softmax(-1)
    categorical = torch.distributions.Categorical
    expected = torch.distributions.kl_divergence(categorical(logits=p), categorical(logits=q))
    torch.testing.assert_close(rlhf.categorical_kl(p, q), expected)


@pytest.mark.parametrize(
    "kl,n,factor", [(6.0, 128, 1.0), (6.6, 128, 1.0064), (60, 128, 1.0128), (0, 128, 0.9872)]
)
def test_zieglers_controller(kl, n, factor):
    assert rlhf.adapt_ref_kl_coef(0.1, kl, 6.0, n, 2000) == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(
    "value,old,target,loss", [(1.0, 1.0, 3.0, 4.0), (2.0, 1.0, 3.0, 3.24), (0.5, 1.0, 3.0, 6.25)]
)
def test_clipped_value_loss(value, old, target, loss):
    x = [torch.tensor([v]) for v in (value, old, target)]
    assert rlhf.loss_value(*x, 0.2).item() == pytest.approx(loss)
    assert rlhf.loss_value(*x, float("inf")).item() == pytest.approx((value - target) ** 2)


def test_gold_reward_is_what_it_says_of_words():
    networks, corpus, args = networks_and_corpus()
    tokens, mask = rlhf.generate(
        networks["policy"], corpus.train[:60, :3], 6, 1.0, torch.Generator().manual_seed(1)
    )
    tokens[0, 3:9] = torch.tensor([1, 2, 1, 2, 1, 2])  # one that says the same pair again
    mask[0] = True
    gold = rlhf.gold_reward(tokens, mask, corpus.valence, corpus.attested)
    lines = [x for x in Path("small.txt").read_text().splitlines() if "\t" not in x and x[0] != "#"]
    attested = set()
    for line in lines:
        words = [*line.split(), "<eos>"]
        attested |= set(itertools.pairwise(words))
    valence = {"sun": 2.0, "shines": 1.5, "falls": -1.0}
    for row, m, value in zip(tokens.tolist(), mask, gold.tolist()):
        words = [corpus.words[i] for i in row[2 : 3 + int(m.sum())]]  # from the prompt's last on
        s = sum(valence.get(word, 0.0) for word in set(words[1:]))
        pairs = list(itertools.pairwise(words))
        fluent = [p in attested and p not in pairs[:i] for i, p in enumerate(pairs)]
        expected = s / math.sqrt(s * s + 15) + 2 * (np.mean(fluent) - 1) - (words[-1] != "<eos>")
        assert value == pytest.approx(expected, abs=1e-5)


# ------------------------------------------------------------------------------------ inside main
def test_the_ratio_is_one_in_the_first_minibatch_and_advantages_are_whitened_over_tokens(
    monkeypatch,
):
    losses, shaped = spy(monkeypatch, "loss_clip"), spy(monkeypatch, "kl_shaped_rewards")
    whitened = spy(monkeypatch, "whiten")
    rlhf.main(small_args(total_episodes=32, num_epochs=3, temperature=0.7, run_dir="a"))
    assert scalars("a", "rollout/kl_ref")[0][1] == 0  # policy and reference, one temperature
    assert len(losses) == 2 * 3 * 2 and len(shaped) == len(whitened) == 2
    for first, (_, _, _, mask, _) in zip((0, 6), shaped):
        ratio, advantages, _ = losses[first]
        assert (ratio - 1).abs().max() < 1e-6  # no dropout, the same temperature, the same forward
        epoch = torch.cat([losses[first + i][1] for i in range(2)])
        assert len(epoch) == mask.sum() < mask.numel()  # real tokens, EOS among them, and no other
        assert epoch.mean().abs() < 1e-5 and epoch.std().item() == pytest.approx(1, abs=1e-3)
    assert (losses[5][0] - 1).abs().max() > 1e-4


def test_returns_come_from_unwhitened_advantages(monkeypatch):
    values, whitened = spy(monkeypatch, "loss_value"), spy(monkeypatch, "whiten")
    rlhf.main(small_args(total_episodes=16, num_epochs=1, minibatch_size=16))
    ((_, old_values, returns, _),), ((advantages,),) = values, whitened
    returns, expected = returns.sort().values, (advantages.sum() + old_values.sum())
    assert returns.sum().item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_response_without_eos_gets_the_constant_and_the_penalty_stays(monkeypatch):
    shaped = spy(monkeypatch, "kl_shaped_rewards")
    rlhf.main(small_args(num_steps=3, missing_eos_score=-7.0, total_episodes=16))
    ((_, _, scores, mask, _),) = shaped
    assert 0 < (scores == -7.0).sum() < 16 and mask.all(1)[scores == -7.0].all()


def test_the_policy_starts_at_the_reference_and_the_value_at_the_reward_model():
    rlhf.main(small_args(run_dir="b", learning_rate=1e-12))
    rlhf.main(small_args(run_dir="c"))
    b, c = saved("b")["networks"], saved("c")["networks"]
    for name in (n.removeprefix("reference.") for n in b if n.startswith("reference.")):
        torch.testing.assert_close(b[f"policy.{name}"], b[f"reference.{name}"])
        assert torch.equal(b[f"reference.{name}"], c[f"reference.{name}"])  # frozen
    for name in (n.removeprefix("value.") for n in b if n.startswith("value.")):
        torch.testing.assert_close(b[f"value.{name}"], b[f"reward_model.{name}"])
        assert torch.equal(b[f"reward_model.{name}"], c[f"reward_model.{name}"])  # frozen
    changed = [not torch.equal(c[f"policy.{n}"], c[f"reference.{n}"]) for n in ("norm.weight",)]
    changed += [not torch.equal(c[f"value.{n}"], c[f"reward_model.{n}"]) for n in ("norm.weight",)]
    assert all(changed)  # nothing is shared


def test_dropout_is_on_in_sft_only(monkeypatch):
    modes = {"loss_lm": set(), "token_logprobs": set(), "last_score": set(), "generate": set()}
    for name in modes:
        function = getattr(rlhf, name)

        def recording(network, *args, name=name, function=function):
            modes[name].add(network.training)
            return function(network, *args)

        monkeypatch.setattr(rlhf, name, recording)
    rlhf.main(small_args(ptx_coef=1.0, total_episodes=16))
    assert modes.pop("loss_lm") == {True, False}  # on in SFT, off for its test loss and in ptx
    assert all(mode == {False} for mode in modes.values()), modes


def test_the_reward_model_is_normalised_on_responses_of_the_reference():
    rlhf.main(small_args(run_dir="a", rm_pairs=400, total_episodes=16, learning_rate=1e-12))
    corpus, networks = rlhf.make_networks(small_args(rm_pairs=400), saved("a"))
    prompts = corpus.held_out[:, :3].repeat(40, 1)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        tokens, mask = rlhf.generate(networks["reference"], prompts, 6, 1.0, generator)
        scores = rlhf.last_score(networks["reward_model"], tokens, mask)
    assert abs(scores.mean()) < 0.35 and 0.7 < scores.std() < 1.3


def test_evaluation_changes_nothing():
    rlhf.main(small_args(run_dir="a", eval_every=1))
    rlhf.main(small_args(run_dir="b", eval_every=1000, eval_episodes=3))
    assert_same_run("a", "b")
    assert [step for step, _ in scalars("a", "eval/gold")] == [0, 16, 32, 48, 64, 80]


def test_ptx_adds_the_gradient_of_the_language_model():
    for name, coef in (("off", 0.0), ("on", 100.0)):
        changes = {"total_episodes": 320, "learning_rate": 3e-3, "ref_kl_coef": 0.0}
        rlhf.main(small_args(run_dir=name, ptx_coef=coef, **changes))
    losses = []
    for name in ("off", "on"):
        corpus, networks = rlhf.make_networks(small_args(), saved(name))
        with torch.no_grad():
            losses += [rlhf.loss_lm(networks[n], corpus.train) for n in ("policy", "reference")]
    off, reference, on, _ = losses
    assert on < reference < off


def test_the_adaptive_beta_follows_the_logged_kl():
    changes = {"ref_kl_controller": "adaptive", "ref_kl_target": 0.01, "ref_kl_horizon": 50}
    rlhf.main(small_args(run_dir="a", **changes))
    beta = 0.1
    for (_, kl), (_, after) in zip(scalars("a", "rollout/kl_ref"), scalars("a", "charts/beta")):
        beta = rlhf.adapt_ref_kl_coef(beta, kl, 0.01, 16, 50)  # 16 responses, once per update
        assert after == pytest.approx(beta, rel=1e-5)


def test_stages_are_kept_for_the_next_run_and_made_anew_when_damaged(monkeypatch):
    fits = spy(monkeypatch, "fit")
    rlhf.main(small_args(run_dir="a"))
    assert [call[0] for call in fits] == ["SFT", "reward model"]
    rlhf.main(small_args(run_dir="b"))
    assert len(fits) == 2
    assert_same_run("a", "b")
    rlhf.main(small_args(run_dir="c", rm_pairs=41))
    assert [call[0] for call in fits[2:]] == ["reward model"]
    rlhf.main(small_args(run_dir="d", seed=2))
    assert len(fits) == 5 and episodes("d") != episodes("a")
    for path in Path("runs/stages").iterdir():
        path.write_bytes(b"damaged")
    rlhf.main(small_args(run_dir="e"))
    assert len(fits) == 7
    assert_same_run("a", "e")


# -------------------------------------------------------------------------------------- the proof
def all_responses() -> tuple:
    """The 341 responses of at most 4 tokens from 4 words and EOS, to the prompt BOS."""
    rows = [
        [5, *words, *([0] * (n < 4)), *[6] * (3 - n)]
        for n in range(5)
        for words in itertools.product(range(1, 5), repeat=n)
    ]
    lengths = torch.tensor([min(n + 1, 4) for n in range(5) for _ in range(4**n)])
    return torch.tensor(rows), torch.arange(4) < lengths[:, None]


def number(tokens):
    """A number for each response, below 625."""
    return (tokens[:, 1:].where(tokens[:, 1:] < 5, 0) * 5 ** torch.arange(4)).sum(1)


@torch.no_grad()
def log_distribution(policy):
    tokens, mask = all_responses()
    logprob = torch.zeros(mask.shape)
    logprob[mask], _ = rlhf.token_logprobs(policy, tokens, mask, 1.0)
    return logprob.double().sum(1)  # (341,)


BETA = 0.5
TABLE = torch.randn(625, generator=torch.Generator().manual_seed(7))  # optimum: KL 1.3 from uniform
PROOF = {"corpus": "four.txt", "prompt_words": 0, "num_steps": 4, "reward": "gold"}
PROOF |= {"ref_kl_coef": BETA, "sft_epochs": 20, "rm_pairs": 64}
PROOF |= {"hidden_size": 32, "num_layers": 1, "num_envs": 512}
PROOF |= {"minibatch_size": 256, "num_epochs": 4, "learning_rate": 3e-3}
PROOF |= {"total_episodes": 512 * 100, "eval_every": 10**6, "save_every": 10**6}


def distance_from_the_optimum(monkeypatch, **changes) -> tuple[float, float, float]:
    """Train with the script's main on a random reward table; total variation, J, J*."""
    rng = random.Random(0)
    clauses = [" ".join(rng.choices("abcd", (4, 3, 2, 1), k=rng.randint(1, 3))) for _ in range(400)]
    Path("four.txt").write_text("a\t1\n" + "\n".join(clauses) + "\n")
    monkeypatch.setattr(rlhf, "gold_reward", lambda tokens, mask, *_: TABLE[number(tokens)])
    args = rlhf.Args(**{**PROOF, **changes})
    rlhf.main(args)
    (run_dir,) = Path("runs").glob("four*")
    _, networks = rlhf.make_networks(args, saved(run_dir))
    logp, ref = (log_distribution(networks[name]) for name in ("policy", "reference"))
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-5)
    tokens, _ = all_responses()
    reward = TABLE[number(tokens)].double()
    reward[tokens[:, -1] % 6 > 0] = -1.0  # no EOS and no PAD at the end: the missing-EOS score
    best = (ref + reward / BETA).log_softmax(0)  # pi* = pi_ref exp(r / beta) / Z
    bound = BETA * (ref + reward / BETA).logsumexp(0).item()  # J* = beta log Z
    J = (logp.exp() * (reward - BETA * (logp - ref))).sum().item()
    start = (ref.exp() - best.exp()).abs().sum().item() / 2
    variation = (logp.exp() - best.exp()).abs().sum().item() / 2
    print(f"total variation {start:.3f} -> {variation:.3f}, J {J:.4f} of {bound:.4f}")
    assert J <= bound + 1e-6 and start > 0.5
    return variation, J, bound


def test_ppo_converges_to_the_known_optimum(monkeypatch):
    variation, J, bound = distance_from_the_optimum(monkeypatch)
    assert variation < 0.05 and J > 0.97 * bound


def k3_rewards(logprob, ref_logprob, scores, mask, beta):
    log_ratio = (ref_logprob - logprob) * mask
    rewards = -beta * (log_ratio.exp() - 1 - log_ratio) * mask
    return rewards.scatter_add(1, mask.sum(1, keepdim=True) - 1, scores[:, None])


def no_penalty_on_the_last_token(logprob, ref_logprob, scores, mask, beta):
    rewards = -beta * (logprob - ref_logprob) * mask
    return rewards.scatter(1, mask.sum(1, keepdim=True) - 1, scores[:, None])


@pytest.mark.parametrize("mutant", [k3_rewards, no_penalty_on_the_last_token])
def test_a_wrong_penalty_does_not_converge_to_it(monkeypatch, mutant):
    monkeypatch.setattr(rlhf, "kl_shaped_rewards", mutant)
    assert distance_from_the_optimum(monkeypatch)[0] > 0.15


def test_without_the_clip_the_same_stepsize_does_not_reach_it(monkeypatch):
    assert distance_from_the_optimum(monkeypatch, objective="none")[0] > 0.15


# -------------------------------------------------------------------------------- the command line
def test_the_command_line_trains_and_leaves_everything_behind(tmp_path):
    done = run("ppo_rlhf_tiny", *small_flags(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_dir,) = Path(tmp_path, "runs").glob("small__ppo_rlhf_tiny__seed1__*")
    config = json.loads((run_dir / "config.json").read_text())
    assert config["script"] == "ppo_rlhf_tiny" and config["args"]["num_steps"] == 6
    assert {"python", "torch", "numpy"} <= set(config["versions"])
    result, rows = json.loads((run_dir / "result.json").read_text()), episodes(run_dir)
    assert result["status"] == "finished" and result["steps"] == result["episodes"] == 80
    assert len(rows) == 80 and {row[0] for row in rows} == {"16", "32", "48", "64", "80"}
    assert result["score"] == pytest.approx(np.mean([float(row[2]) for row in rows[-100:]]))
    assert result["gold"] == pytest.approx(np.mean([float(row[4]) for row in rows[-100:]]))
    ((_, accuracy),) = scalars(run_dir, "stages/reward_model_accuracy")
    assert 0 <= accuracy <= 1 and scalars(run_dir, "stages/sft_loss")[0][1] > 0
    assert [step for step, _ in scalars(run_dir, "losses/kl_old_new")] == [16, 32, 48, 64, 80]
    assert done.stdout.count("proxy   gold  prompt | response") == 2  # before and after
    assert run_dir.name in done.stdout and "episode 80/80" in done.stdout
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["runs", "small.txt"]  # and nothing else anywhere


def test_help_shows_every_flag_and_its_meaning(capsys):
    with pytest.raises(SystemExit):
        tyro.cli(rlhf.Args, args=["--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    source = (ROOT / "ppo_rlhf_tiny.py").read_text()
    for name in rlhf.Args.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
        assert source.count(f"args.{name}") or f'"{name}"' in source or f" {name} " in source, name
    assert "gamma_ptx, weight of SFT's loss beside PPO's" in text


def interrupted(after: int, **changes) -> None:
    """Run `after` iterations, then leave as Ctrl-C does."""
    report, count = rlhf.report, []

    def stop_later(*args):
        report(*args)
        count.append(1)
        if len(count) == after:
            rlhf.stop_signals.append(signal.SIGINT)

    rlhf.report = stop_later
    try:
        with pytest.raises(SystemExit) as stop:
            rlhf.main(small_args(**changes))
        assert stop.value.code == 128 + signal.SIGINT
    finally:
        rlhf.report = report
        rlhf.stop_signals.clear()


def test_an_interrupted_run_resumes_to_the_same_end():
    changes = {"ref_kl_controller": "adaptive", "ref_kl_horizon": 50, "eval_every": 1}
    rlhf.main(small_args(run_dir="straight", **changes))
    interrupted(3, run_dir="b", **changes)
    assert json.loads(Path("b/result.json").read_text())["status"] == "interrupted"
    assert rlhf.main(rlhf.Args(resume="b"))["status"] == "finished"
    assert_same_run("straight", "b")
    for tag in ("losses/kl_old_new", "charts/beta", "eval/gold"):
        assert scalars("b", tag) == scalars("straight", tag)
    rows = episodes("b")
    rlhf.main(rlhf.Args(resume="b"))  # finished: changes nothing
    assert episodes("b") == rows


def test_a_run_killed_before_its_first_checkpoint_starts_again():
    rlhf.main(small_args(run_dir="a"))
    rlhf.start_run(small_args(run_dir="b"))
    rlhf.main(rlhf.Args(resume="b"))
    assert_same_run("a", "b")


def test_kill_9_loses_nothing(tmp_path):
    rlhf.main(small_args(run_dir="straight", total_episodes=16 * 30))
    words = [*small_flags(total_episodes=16 * 30), "--run-dir", "b"]
    process = subprocess.Popen(
        command("ppo_rlhf_tiny", *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    rows = Path("b/episodes.csv")
    while process.poll() is None and not (rows.exists() and rows.stat().st_size > 5_000):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert rlhf.main(rlhf.Args(resume="b"))["status"] == "finished"
    assert_same_run("straight", "b")


def test_signals_during_sft_stop_it_and_resume_begins_it_anew(monkeypatch, capsys):
    rlhf.main(small_args(run_dir="straight"))
    shutil.rmtree("runs/stages")
    monkeypatch.setattr(rlhf, "stop_signals", [signal.SIGTERM])
    with pytest.raises(SystemExit) as stop:
        rlhf.main(small_args(run_dir="a"))
    assert stop.value.code == 128 + signal.SIGTERM
    assert "begins the SFT anew" in capsys.readouterr().out
    monkeypatch.setattr(rlhf, "stop_signals", [])
    rlhf.main(rlhf.Args(resume="a"))
    assert_same_run("straight", "a")


def test_evaluate_changes_nothing_and_depends_on_the_seed(capsys):
    rlhf.main(small_args(run_dir="a"))
    before = Path("a/checkpoint.pt").read_bytes()
    first = rlhf.main(rlhf.Args(evaluate="a", eval_episodes=20))
    assert rlhf.main(rlhf.Args(evaluate="a", eval_episodes=20)) == first
    assert rlhf.main(rlhf.Args(evaluate="a", eval_episodes=20, seed=9)) != first
    assert Path("a/checkpoint.pt").read_bytes() == before
    write_corpus(clauses=450)
    capsys.readouterr()
    for mode in ("evaluate", "resume"):
        refused(capsys, rlhf.Args(**{mode: "a"}), ["--corpus small.txt", "is another text now"])


def test_a_copied_script_needs_the_corpus_beside_it(tmp_path, monkeypatch, capsys):
    fork = shutil.copy(ROOT / "ppo_rlhf_tiny.py", tmp_path / "fork.py")
    values = {k: v for k, v in SMALL.items() if k != "corpus"}
    with monkeypatch.context() as patch:
        patch.setattr(rlhf, "__file__", str(fork))
        with pytest.raises(SystemExit):
            rlhf.main(rlhf.Args(**values))
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "ppo_rlhf_tiny.txt.gz: No such file" in line
    Path("ppo_rlhf_tiny.txt.gz").write_bytes(gzip.compress(Path("small.txt").read_bytes()))
    words = [sys.executable, fork, *flags(**values)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [*Path("runs").glob("kjv__fork__seed1__*")]


BAD = [
    ({"ptx_coef": -1.0}, ["--ptx-coef -1.0", "0 or more"]),
    ({"ptx_coef": float("nan")}, ["--ptx-coef nan", "0 or more"]),
    ({"ref_kl_controller": "adaptive", "ref_kl_coef": 0.0}, ["--ref-kl-coef 0", "above 0"]),
    ({"ref_kl_coef": -0.1}, ["--ref-kl-coef -0.1", "0 or more"]),
    ({"ref_kl_target": 3.0}, ["--ref-kl-target 3.0", "leave it out"]),
    ({"ref_kl_controller": "adaptive", "ref_kl_target": 0.0}, ["--ref-kl-target 0.0", "above 0"]),
    ({"minibatch_size": 5}, ["--minibatch-size 5", "divide num_envs = 16"]),
    ({"hidden_size": 24}, ["--hidden-size 24", "multiple"]),
    ({"temperature": 0.0}, ["--temperature 0.0", "above 0"]),
    ({"gamma": 1.01}, ["--gamma 1.01", "from 0 to 1"]),
    ({"num_steps": 1}, ["--num-steps 1", "2 or more"]),
    ({"total_episodes": 15}, ["--total-episodes 15", "num_envs = 16"]),
    ({"missing_eos_score": float("inf")}, ["--missing-eos-score inf", "finite"]),
    ({"objective": "none", "clip_vloss": False, "clip_coef": 0.1}, ["--clip-coef 0.1"]),
    ({"corpus": "nowhere.txt"}, ["--corpus nowhere.txt", "No such file"]),
    ({"corpus": "."}, ["--corpus .", "Is a directory"]),
    ({"run_dir": "/proc/no"}, ["--run-dir /proc/no", "another folder"]),
    ({"evaluate": "nowhere"}, ["--total-episodes 80", "leave it out"]),
]


def refused(capsys, args, words):
    with pytest.raises(SystemExit) as stop:
        rlhf.main(args)
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1, line
    assert line.startswith("ppo_rlhf_tiny.py: error: --")
    for word in words:
        assert word in line, line


@pytest.mark.parametrize("changes,words", BAD)
def test_bad_input_is_refused_in_one_line(capsys, changes, words):
    refused(capsys, small_args(**changes), words)
    assert not Path("runs").exists()


BAD_CORPORA = [
    (b"", ["holds 0 clauses", "200 or more"]),
    (b"sun\t1\n" + b"sun moon star river\n" * 199, ["holds 199 clauses of 3 to 7 words"]),
    (b"\xff\xfe\x00garbage" * 1000, ["is not text"]),
    (gzip.compress(b"sun moon star\n" * 300)[:-20], ["is not text"]),
    (b"\x1f\x8bgarbage", ["is not text"]),
    (b"sun moon star river\n" * 300, ["needs lines WORD<TAB>NUMBER"]),
    (b"sun\tgood\n" + b"sun moon star river\n" * 300, ["must be WORD<TAB>NUMBER"]),
    (b"sun\tnan\n" + b"sun moon star river\n" * 300, ["needs lines WORD<TAB>NUMBER"]),
]


@pytest.mark.parametrize("content,words", BAD_CORPORA)
def test_a_corpus_that_cannot_work_is_refused_in_one_line(capsys, content, words):
    Path("bad.txt").write_bytes(content)
    refused(capsys, small_args(corpus="bad.txt"), ["--corpus bad.txt", *words])
    assert not Path("runs").exists()


def test_folders_that_are_no_runs_are_refused(capsys):
    Path("empty").mkdir()
    for mode in ("resume", "evaluate"):
        refused(capsys, rlhf.Args(**{mode: "empty"}), [f"--{mode} empty", "run"])
    rlhf.main(small_args(run_dir="a"))
    capsys.readouterr()
    refused(capsys, small_args(run_dir="a"), ["--run-dir a", "holds a run"])
    refused(capsys, rlhf.Args(resume="a", seed=3), ["--seed 3", "leave it out"])
    Path("a/checkpoint.pt").write_bytes(b"garbage")
    refused(capsys, rlhf.Args(resume="a"), ["--resume a", "is damaged"])


def test_nan_in_the_loss_stops_the_run(monkeypatch):
    monkeypatch.setattr(rlhf, "whiten", lambda x: x * float("nan"))
    with pytest.raises(FloatingPointError, match="^loss.* step 16, seed 1"):
        rlhf.main(small_args(run_dir="a"))
    assert saved("a")["run"]["global_step"] == 0  # the last good one
    assert all(p.isfinite().all() for p in saved("a")["networks"].values())


def test_a_full_disk_says_so():
    Path("a").mkdir()
    os.symlink("/dev/full", "a/checkpoint.tmp")
    with pytest.raises(OSError, match="No space left on device"):  # one line, in __main__
        rlhf.main(small_args(run_dir="a"))


def test_it_learns_what_gold_likes():
    """Gold starts below 0; a fluent clause with kind words in it is worth up to 1."""
    changes = {"reward": "gold", "num_envs": 64, "total_episodes": 64 * 60, "sft_epochs": 10}
    changes |= {"minibatch_size": 32, "learning_rate": 2e-3, "hidden_size": 32, "run_dir": "a"}
    rlhf.main(small_args(ref_kl_coef=0.0, **changes))
    result = rlhf.main(rlhf.Args(evaluate="a", eval_episodes=50))
    assert result["eval/gold"] > 0.3 > 0 > scalars("a", "eval/gold")[0][1], result


# --------------------------------------------------------------------------------------- the suite
def test_a_results_line_keeps_the_curves_and_no_path(tmp_path):
    words = [*small_flags(eval_every=2), "--run-dir", "x"]
    rlhf.main(tyro.cli(rlhf.Args, args=words))
    planned = Run("tiny", "kjv", 1, " ".join(["ppo_rlhf_tiny.py", *words[:-2]]), RLHF_SCALARS)
    row = benchmark.result_line(planned, Path("x"), "1234")
    assert str(tmp_path) not in json.dumps(row) and row["steps"] == 80
    kept = row["scalars"]
    assert len(kept["rollout/gold"]) == len(kept["losses/kl_old_new"]) == 5
    assert len(kept["eval/gold"]) == 4 and len(kept["stages/reward_model_accuracy"]) == 1
    expected = [float(f"{value:.5g}") for _, value in scalars("x", "rollout/gold")]
    assert kept["rollout/gold"] == expected and "best_of_n/gold" not in kept


def test_best_of_n_counts_every_response_once():
    torch.manual_seed(0)
    proxy, gold = torch.randn(2, 12, 5)
    for n in (1, 3, 12):
        found, means = best_of_n.best_of(proxy, gold, n), []
        for column in range(5):
            for first in range(0, 12, n):
                group = range(first, first + n)
                best = max(group, key=lambda i: proxy[i, column])
                means.append((proxy[best, column].item(), gold[best, column].item()))
        assert found == pytest.approx(np.mean(means, 0))


@pytest.mark.parametrize("n", best_of_n.SIZES)
def test_kl_of_best_of_n(n):
    """The quantile of the best of n has density n u^(n - 1): its KL from the uniform one."""
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    density = n * u ** (n - 1)
    kl = np.mean(np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0))
    assert pictures.best_of_n_kl(n) == pytest.approx(kl, abs=1e-4)


def test_the_fit_finds_the_coefficients_of_its_own_curve():
    d = np.linspace(0.3, 7, 50)
    assert pictures.fit_gold(d, d * (0.7 - 0.4 * np.log(d))) == pytest.approx((0.7, 0.4))


def test_pictures_and_tables_come_from_the_results_alone_the_same_each_time(capsys):
    rng = np.random.default_rng(0)
    Path("results").mkdir()
    with open("results/rlhf.jsonl", "w") as file:
        for planned in runs_of(SUITES["rlhf"]):
            row = {"key": planned.key, "setting": planned.setting, "seed": planned.seed}
            row |= {"command": planned.command, "digest": "1", "scalars": {}}
            for name in planned.scalars:
                size = 5 if name.startswith("best") else 30
                values = np.sort(rng.uniform(0.1, 9, size)) + planned.seed
                row["scalars"][name] = [float(value) for value in values]
            print(json.dumps(row), file=file)
    Path("a").mkdir()
    Path("a/rlhf.md").write_text("before\n<!-- rlhf -->\n<!-- /rlhf -->\nafter\n")
    assert pictures.main(pictures.Args(Path("results"), Path("a"))) == 0
    shutil.copytree("a", "b")
    assert pictures.main(pictures.Args(Path("results"), Path("b"))) == 0
    for name in ("rlhf.md", "rlhf-overoptimization.png", "rlhf-two-devices.png"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()
    page = Path("a/rlhf.md").read_text()
    assert page.startswith("before") and page.endswith("after\n")
    assert all(f"| {label} | 3 |" in page for label in pictures.LABELS.values())
    assert set(pictures.LABELS) == set(RLHF) - {"best-of-n"}
