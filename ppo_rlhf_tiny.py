# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "numpy==2.4.6", "tyro==1.0.17", "tensorboard==2.21.0", "tqdm==4.70.1",
# ]
# ///
"""Proximal policy optimisation (PPO) for language models, whole and tiny, in one file.

Papers: Ouyang et al. 2022 (InstructGPT, arXiv 2203.02155), Ziegler et al. 2019 (1909.08593) and
Schulman et al. 2017 (PPO, 1707.06347). An action is a token, a state the prompt with the tokens so
far, an episode one response:

    SFT: learn a text by cross-entropy: pi_ref
    reward model: learn which of two responses of pi_ref a judge, the gold reward, prefers
    for iteration = 1, 2, ...:
        (1) answer N prompts with pi_old, token by token; score each whole response
        (2) r_t = score at the last token - beta log(pi_old / pi_ref) at every token; advantages
        (3) optimise L^CLIP for K epochs over minibatches of M responses            PPO eq. (7)
        (4) adapt beta, report; pi_old <- pi

    T num_steps    N num_envs    K num_epochs    M minibatch_size    gamma gamma    r ratio
    lambda gae_lambda    eps clip_coef    beta ref_kl_coef    gamma_ptx ptx_coef    A advantages

The clip bounds one update, against pi_old; the KL penalty bounds all of them together, against
pi_ref: the optimum is pi* ~ pi_ref exp(score / beta). Without it the policy finds what the reward
model is blind to, and the gold reward, which only watches, falls.
Not in the papers, and how to switch each off:

    advantage normalisation  --no-norm-adv     stepsize decay     --no-anneal-lr
    value clipping           --no-clip-vloss   gradient clipping  --max-grad-norm 0

Train:        python ppo_rlhf_tiny.py --seed 1
Quick check:  python ppo_rlhf_tiny.py --total-episodes 1280 --sft-epochs 2
See it hack:  python ppo_rlhf_tiny.py --ref-kl-coef 0
Your text:    python ppo_rlhf_tiny.py --corpus FILE     (its format: see read_corpus)
"""

import gzip
import hashlib
import io
import json
import math
import os
import re
import signal
import sys
import time
import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid, scaled_dot_product_attention
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


# ------------------------------------------------------------------------------------ arguments
@dataclass
class Args:
    """PPO for language models, whole and tiny: trains unless told to evaluate."""

    # run
    seed: int = 1  # seed of the networks, the environments, the actions and the minibatches
    total_episodes: int = 12_800  # responses in all, rounded down to iterations
    run_dir: str | None = None  # folder for the results, else runs/ENV__SCRIPT__seedSEED__TIME
    save_every: int = 20  # iterations between two checkpoints
    resume: str | None = None  # go on with the run in this folder, with its own arguments
    evaluate: str | None = None  # instead of training, play the policy saved in this folder
    eval_episodes: int = 256  # episodes that --evaluate plays (on prompts held out of training)
    eval_every: int = 10  # iterations between two evaluations of the same kind during training
    # environment: a text and a judge
    corpus: str | None = None  # the text, else ppo_rlhf_tiny.txt.gz beside the script
    vocab_size: int = 1000  # commonest words of the text, clauses with others are left out
    prompt_words: int = 3  # first words of a clause, which the policy is given
    reward: Literal["proxy", "gold"] = "proxy"  # what scores: the reward model, or its judge
    missing_eos_score: float = -1.0  # score of a response without EOS (Ziegler et al.: -1)
    # the two stages before PPO
    hidden_size: int = 64  # D, width of all four networks, in heads of 16
    num_layers: int = 2  # blocks of all four networks
    sft_epochs: int = 8  # epochs of SFT over the text
    rm_pairs: int = 2000  # pairs of responses that teach the reward model
    # rollout
    num_envs: int = 128  # N, environments (here prompts that are answered in one iteration)
    num_steps: int = 17  # T, the horizon: steps per environment and iteration (tokens, with EOS)
    temperature: float = 1.0  # divides the logits of pi, pi_old and pi_ref alike
    # advantages
    gamma: float = 1.0  # gamma, the discount (Ziegler et al.: 1)
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation (Ziegler et al.: 0.95)
    norm_adv: bool = True  # shift and scale a batch's advantages to mean 0 and std 1
    # objective: clipped (PPO eq. 7) or unbounded (eq. 6), with the score and the penalty as reward
    objective: Literal["clip", "none"] = "clip"  # L, PPO eqs. (6) and (7)
    clip_coef: float = 0.2  # eps, distance from 1 that the ratio may gain (Table 1: 0.2 is best)
    ref_kl_coef: float = 0.1  # beta of the penalty against pi_ref, first beta if adaptive
    ref_kl_controller: Literal["fixed", "adaptive"] = "fixed"  # adaptive: beta follows the target
    ref_kl_target: float = 6.0  # nats per response that the adaptive beta aims at (Ziegler: 6)
    ref_kl_horizon: int = 2000  # episodes over which the adaptive beta reacts (Ziegler: 10000)
    ptx_coef: float = 0.0  # gamma_ptx, weight of SFT's loss beside PPO's (InstructGPT: 27.8)
    vf_coef: float = 0.05  # c1, weight of the value loss (Ziegler et al.: 0.1 times 1/2)
    clip_vloss: bool = True  # let the value move from its old value by eps at most, as the ratio
    # optimiser
    learning_rate: float = 3e-4  # stepsize of Adam
    anneal_lr: bool = True  # let the stepsize fall linearly to 0 over the run
    num_epochs: int = 4  # K, epochs over each batch (Ziegler et al.: 4)
    minibatch_size: int = 32  # M, samples per gradient step (here responses)
    max_grad_norm: float = 1.0  # scale longer gradients down to this length, 0: no limit


def refuse(flag: str, value, remedy: str) -> None:
    """Bad input: exit code 2 and one line with the flag, its value and what would be right."""
    flag = flag.replace("_", "-")
    print(f"{Path(__file__).name}: error: --{flag} {value}: {remedy}", file=sys.stderr)
    raise SystemExit(2)


def check_args(args: Args) -> None:
    """Refuse, before any work, arguments that cannot work or would be ignored."""
    N, M, given = args.num_envs, args.minibatch_size, asdict(args)
    for names, low, high, remedy in (
        ("save_every eval_every eval_episodes num_epochs", 1, 1e9, "must be 1 or more"),
        ("vocab_size num_layers sft_epochs rm_pairs", 1, 1e9, "must be 1 or more"),
        ("ref_kl_horizon", 1, 1e9, "must be 1 or more"),
        ("num_envs num_steps", 2, 1e9, "must be 2 or more"),
        ("temperature clip_coef ref_kl_target learning_rate", 1e-12, 1e9, "must be above 0"),
        ("prompt_words vf_coef ptx_coef ref_kl_coef max_grad_norm", 0, 1e9, "must be 0 or more"),
        ("missing_eos_score", -1e9, 1e9, "must be a finite number"),
        ("gamma gae_lambda", 0, 1, "must be from 0 to 1"),
        ("seed", 0, 2**32 - 1, "must be from 0 to 2**32 - 1"),
        ("total_episodes", N, 1e12, f"must be num_envs = {N}, one iteration, or more"),
    ):
        for name in names.split():
            if not low <= given[name] <= high:  # so written, it refuses NaN as well
                refuse(name, given[name], remedy)
    if M < 1 or N % M:
        refuse("minibatch_size", M, f"must divide num_envs = {N}")
    if args.hidden_size < 16 or args.hidden_size % 16:
        refuse("hidden_size", args.hidden_size, "must be 16, or a multiple of it")
    adaptive = args.ref_kl_controller == "adaptive"
    if adaptive and args.ref_kl_coef == 0:
        refuse("ref_kl_coef", 0, "stays 0 however it is adapted; give a first beta above 0")
    if args.run_dir and Path(args.run_dir, "config.json").exists():
        refuse("run_dir", args.run_dir, "holds a run; --resume it, or name another folder")
    used = {"clip_coef": args.objective == "clip" or args.clip_vloss}
    used |= {"ref_kl_target": adaptive, "ref_kl_horizon": adaptive}
    if args.resume is not None:
        used = {name: name == "resume" for name in given}
    elif args.evaluate is not None:
        used = {name: name in ("evaluate", "eval_episodes", "seed") for name in given}
    for name, value in given.items():
        if value != getattr(Args, name) and not used.get(name, True):
            refuse(name, value, "would be ignored beside the other arguments, leave it out")


# ---------------------------------------------------------------------------------- environment
EOS = 0  # the id that ends a response; 1 to V - 1 are words, V is BOS, V + 1 is PAD


def read_corpus(args: Args) -> SimpleNamespace:
    """The text as tokens, a tenth of it held out, and what the gold reward knows of its words.

    A file of one clause per line, packed by gzip or not; lines WORD<TAB>NUMBER say how much the
    gold reward likes a word, lines that start with # say nothing.
    """
    path = Path(args.corpus or Path(__file__).with_name("ppo_rlhf_tiny.txt.gz"))
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
        likes = dict(line.split("\t") for line in lines if "\t" in line)
        likes = {word: float(number) for word, number in likes.items()}
    except OSError as error:
        refuse("corpus", path, f"{error.strerror or error}; give a text, one clause per line")
    except (EOFError, zlib.error, UnicodeDecodeError):
        refuse("corpus", path, "is not text in UTF-8, nor such text in gzip")
    except ValueError:
        refuse("corpus", path, "a line with a tab must be WORD<TAB>NUMBER")
    clauses = [line.split() for line in lines if "\t" not in line]
    counts = Counter(word for clause in clauses for word in clause)
    words = ["<eos>", *(word for word, _ in counts.most_common(args.vocab_size))]
    ids = {word: i for i, word in enumerate(words) if i != EOS}
    V, P, T = len(words), 1 + args.prompt_words, args.num_steps  # BOS begins the prompt
    rows = [[V, *(ids[word] for word in c), EOS] for c in clauses if ids.keys() >= set(c)]
    rows = [row + [V + 1] * (P + T - len(row)) for row in rows if P + 2 <= len(row) <= P + T]
    if len(rows) < 200:
        sizes = f"{P} to {P + T - 2} words, all of the {args.vocab_size} commonest"
        refuse("corpus", path, f"holds {len(rows)} clauses of {sizes}, must be 200 or more")
    tokens = torch.tensor(rows)  # (clauses, P + T)
    valence, attested = torch.zeros(V + 2), torch.zeros(V + 2, V + 2)
    valence[1:V] = torch.tensor([likes.get(word, 0.0) for word in words[1:]])
    if not valence.any() or not valence.isfinite().all():
        refuse("corpus", path, "needs lines WORD<TAB>NUMBER with the words that gold likes or not")
    attested[tokens[:, :-1], tokens[:, 1:]] = 1.0
    tokens = tokens[torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))]
    train, held_out = tokens.tensor_split([len(tokens) * 9 // 10])
    corpus = SimpleNamespace(words=words, P=P, train=train, held_out=held_out, valence=valence)
    corpus.attested, corpus.digest = attested, hashlib.sha256(content).hexdigest()
    return corpus


# ------------------------------------------------------------------------------------- networks
class Block(nn.Module):
    """Attention to the tokens so far, then two layers, each added to the stream (GPT-2's block)."""

    def __init__(self, D: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, past: list) -> Tensor:
        """x (B, L, D) -> (B, L, D). past: keys and values of earlier tokens, to which x's go."""
        B, L, D = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, L, 3, D // 16, 16)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, D/16 heads, L, 16) each
        if past:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        past[:] = k, v
        y = scaled_dot_product_attention(q, k, v, is_causal=L > 1)  # (B, D/16, L, 16)
        x = x + self.dropout(self.proj(y.transpose(1, 2).reshape(B, L, D)))
        return x + self.dropout(self.down(self.up(self.norm2(x)).relu()))


class Transformer(nn.Module):
    """Decoder-only. PAD comes after the real tokens, which look back only: it needs no mask."""

    def __init__(self, V: int, length: int, D: int, num_layers: int):
        super().__init__()
        self.V, self.embed = V, nn.Embedding(V + 2, D)  # EOS and words, BOS, PAD
        self.position = nn.Embedding(length, D)
        self.blocks = nn.ModuleList(Block(D) for _ in range(num_layers))
        self.norm, self.dropout = nn.LayerNorm(D), nn.Dropout(0.1)
        for param in self.parameters():
            if param.ndim == 2:
                nn.init.normal_(param, std=0.02)  # GPT-2's
        self.eval()  # no dropout except in SFT: it would move the ratio away from 1

    def forward(self, tokens: Tensor, cache: list | None = None) -> Tensor:
        """tokens (B, L) -> (B, L, D). cache: one list per block, of the tokens before these."""
        cache = cache or [[] for _ in self.blocks]
        start = cache[0][0].shape[2] if cache[0] else 0
        x = self.embed(tokens) + self.position.weight[start : start + tokens.shape[1]]
        x = self.dropout(x)  # (B, L, D)
        for block, past in zip(self.blocks, cache):
            x = block(x, past)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V): EOS and words. BOS and PAD have none: they have probability 0."""
        return hidden @ self.embed.weight[: self.V].T


class Scorer(Transformer):
    """The same with a scalar head: the reward model, and the value network that starts from it."""

    def __init__(self, V: int, length: int, D: int, num_layers: int):
        super().__init__(V, length, D, num_layers)
        self.head = nn.Linear(D, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, L) -> what the text up to each of them is worth (B, L)."""
        return self.head(super().forward(tokens)).squeeze(-1)


@torch.no_grad()
def generate(policy, prompts: Tensor, T: int, temperature: float, generator=None) -> tuple:
    """Sample a response to each prompt (N, P): tokens (N, P + T), PAD after EOS; mask (N, T).

    The whole distribution is sampled: top-k or top-p would make it another policy than the one
    whose log-probabilities PPO takes. Each token is computed once; the cache has those before it.
    """
    N, P = prompts.shape
    tokens = torch.cat((prompts, torch.full((N, T), policy.V + 1)), 1)  # (N, P + T), PAD
    lengths = torch.full((N,), T)  # with EOS, where there is one
    cache = [[] for _ in policy.blocks]
    new, alive = prompts, torch.ones(N, dtype=torch.bool)
    for t in range(T):
        hidden = policy(new, cache)[:, -1]  # (N, D)
        cdf = (policy.logits(hidden) / temperature).softmax(-1).cumsum(-1)  # (N, V)
        # The first whose cdf passes a uniform number; torch.multinomial takes 15 times as long.
        uniform = torch.rand((N, 1), generator=generator) * cdf[:, -1:]
        new = torch.searchsorted(cdf, uniform, right=True).clamp(max=policy.V - 1)  # (N, 1)
        tokens[alive, P + t] = new[alive, 0]
        ends = alive & (new[:, 0] == EOS)
        lengths[ends] = t + 1
        alive &= ~ends
    return tokens, torch.arange(T) < lengths[:, None]


def token_logprobs(policy, tokens: Tensor, mask: Tensor, temperature: float) -> tuple:
    """log pi at the K real places of responses (N, P + T): of the tokens there (K,), of all (K, V).

    The output at place t is about the token at t + 1, hence [-T - 1 : -1].
    """
    T = mask.shape[1]
    hidden = policy(tokens)[:, -T - 1 : -1][mask]  # (K, D)
    logprobs = (policy.logits(hidden) / temperature).log_softmax(-1)  # (K, V)
    return logprobs.gather(1, tokens[:, -T:][mask].unsqueeze(1)).squeeze(1), logprobs


def last_score(scorer, tokens: Tensor, mask: Tensor) -> Tensor:
    """The score that a scorer gives at the last real token: (N, P + T), (N, T) -> (N,)."""
    last = tokens.shape[1] - mask.shape[1] + mask.sum(1, keepdim=True) - 1  # (N, 1)
    return scorer(tokens).gather(1, last).squeeze(1)


def loss_lm(policy, clauses: Tensor) -> Tensor:
    """Cross-entropy of the next token, EOS included, PAD not: (M, L) -> scalar."""
    targets = clauses[:, 1:]  # (M, L - 1)
    mask = targets < policy.V
    return cross_entropy(policy.logits(policy(clauses)[:, :-1][mask]), targets[mask])


# ---------------------------------------------------------------------------------- mathematics
def compute_gae(rewards, values, next_values, terminated, ended, gamma: float, lam: float):
    """Generalised advantage estimation, PPO (1707.06347) eqs. (11) and (12):

        A_t = delta_t + (gamma lambda) delta_{t+1} + (gamma lambda)^2 delta_{t+2} + ...
        delta_t = r_t + gamma V(s_{t+1}) - V(s_t)

    All arrays, and the A returned, are (T, N). next_values is V of the state that the action led
    to, terminated: that state is final and worth 0, ended: it was the episode's last, final or cut
    by a time limit. Neither sum nor gamma lambda reaches past it; but a time limit is no death.
    """
    deltas = rewards + gamma * next_values * (1 - terminated) - values
    decay = gamma * lam * (1 - ended)
    advantages = deltas.copy()
    for t in reversed(range(len(deltas) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages


def whiten(x: Tensor) -> Tensor:
    """Shift and scale x (B,) to mean 0 and std 1.  # not in the paper: OpenAI baselines"""
    return (x - x.mean()) / (x.std() + 1e-8)


def loss_cpi(ratio: Tensor, advantages: Tensor) -> Tensor:
    """Unbounded surrogate, PPO (1707.06347) eq. (6), negated: (M,), (M,) -> scalar.

    L^CPI = E[ r A ]    with the ratio r = pi(a|s) / pi_old(a|s)
    """
    return -(ratio * advantages).mean()


def loss_clip(ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """Clipped surrogate, PPO (1707.06347) eq. (7), negated: (M,), (M,) -> scalar.

    L^CLIP = E[ min( r A, clip(r, 1 - eps, 1 + eps) A ) ]

    Past the clip there is nothing left to gain. The min keeps what there is to lose: where
    r > 1 + eps though A < 0, the gradient still pulls back.
    """
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return -torch.min(ratio * advantages, clipped_ratio * advantages).mean()


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1 - Var[returns - values] / Var[returns]: 1 for perfect values, 0 for constant ones."""
    return float(1 - (returns - values).var() / (returns.var() + 1e-12))


def loss_value(values: Tensor, old_values: Tensor, returns: Tensor, clip_coef: float) -> Tensor:
    """Value loss, the worse of the new value and one that moved by eps at most: (M,) -> scalar.

    E[ max( (V - R)^2, (V_old + clip(V - V_old, -eps, eps) - R)^2 ) ]    eps = inf: not clipped
    """
    clipped_values = old_values + (values - old_values).clamp(-clip_coef, clip_coef)
    return torch.max((values - returns) ** 2, (clipped_values - returns) ** 2).mean()


def loss_preference(better: Tensor, worse: Tensor) -> Tensor:
    """Reward model's loss (Bradley and Terry), InstructGPT (2203.02155) eq. (1): (M,) -> scalar.

    -E[ log sigmoid( r(x, y_better) - r(x, y_worse) ) ]
    """
    return -logsigmoid(better - worse).mean()


def kl_shaped_rewards(logprob, ref_logprob, scores, mask, beta: float) -> Tensor:
    """Rewards of tokens, InstructGPT (2203.02155) eq. (2), by which Ziegler's KL penalty is paid:

        r_t = -beta log( pi_old(a_t|s_t) / pi_ref(a_t|s_t) ) + [t is the last] score

    log-probabilities when sampled and mask (N, T), scores (N,). The plain log-ratio, whose mean is
    the KL. An estimate with less variance, r - 1 - log r, moves the optimum when it is a reward.
    """
    rewards = -beta * (logprob - ref_logprob) * mask  # (N, T)
    last = mask.sum(1, keepdim=True) - 1  # (N, 1), EOS, or the last token there was room for
    return rewards.scatter_add(1, last, scores[:, None]).detach()


def categorical_kl(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """KL(pi || other), exact, at each of K states: log-probabilities (K, V), (K, V) -> (K,)."""
    return (logprobs.exp() * (logprobs - other_logprobs)).sum(-1)


def adapt_ref_kl_coef(beta: float, kl: float, target: float, n: int, horizon: int) -> float:
    """Ziegler et al. (1909.08593) section 2.2, after each batch of n episodes:

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon)
    """
    return beta * (1 + min(max(kl / target - 1, -0.2), 0.2) * n / horizon)


def gold_reward(tokens: Tensor, mask: Tensor, valence: Tensor, attested: Tensor) -> Tensor:
    """The judge, a program: sentiment + 2 (fluency - 1) - [no EOS]: (N, P + T), (N, T) -> (N,).

    sentiment = s / sqrt(s^2 + 15) as in VADER, s the summed valence of the distinct words;
    fluency = share of the pairs of neighbours, up to EOS, that are new here and in the corpus.
    """
    T = mask.shape[1]
    responses, before = tokens[:, -T:], tokens[:, -T - 1 : -1]  # (N, T) each
    present = torch.zeros(len(tokens), len(valence)).scatter(1, responses, 1.0)  # (N, V + 2)
    s = present @ valence  # (N,)
    pairs = before * len(valence) + responses  # (N, T)
    said = (pairs[:, :, None] == pairs[:, None, :]).tril(-1).any(2)  # (N, T), the pair came before
    fluency = (attested[before, responses] * ~said * mask).sum(1) / mask.sum(1)
    has_eos = (responses == 0).any(1)  # EOS is 0
    return s / (s**2 + 15).sqrt() + 2 * (fluency - 1) - 1 + has_eos.float()


# ----------------------------------------------------------------------------- stages before PPO
def fit(name: str, network, loss, rows: int, epochs: int, learning_rate: float) -> None:
    """Adam on loss(rows of a minibatch); the stepsize falls linearly to 0."""
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    batches = [batch for _ in range(epochs) for batch in torch.randperm(rows).split(64)]
    for step, batch in enumerate(tqdm(batches, name, leave=False, disable=None)):
        if stop_signals:  # there is nothing to save yet
            print(f"stopped: --resume RUN_DIR begins the {name} anew")
            raise SystemExit(128 + stop_signals[0])
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / len(batches))
        optimizer.zero_grad()
        loss(batch).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def train_sft(networks, corpus, args: Args) -> dict:
    """pi_ref, a language model of the corpus. Returns its loss on the clauses held out."""
    reference = networks["reference"]

    def loss(rows):
        return loss_lm(reference, corpus.train[rows])

    reference.train()
    fit("SFT", reference, loss, len(corpus.train), args.sft_epochs, learning_rate=3e-3)
    reference.eval()
    with torch.no_grad():
        return {"stages/sft_loss": loss_lm(reference, corpus.held_out).item()}


def train_reward_model(networks, corpus, args: Args) -> dict:
    """Which of two responses of pi_ref does gold prefer? Returns its accuracy on held-out ones."""
    reference, reward_model = networks["reference"], networks["reward_model"]
    reward_model.load_state_dict(reference.state_dict(), strict=False)  # all but the head
    nn.init.normal_(reward_model.head.weight, std=(args.hidden_size + 1) ** -0.5)
    nn.init.zeros_(reward_model.head.bias)

    def pairs(prompts):
        """Two responses to each prompt, the better first: tokens (2, n, P + T), mask (2, n, T)."""
        both = prompts.repeat(2, 1)  # (2n, P)
        tokens, mask = generate(reference, both, args.num_steps, args.temperature)
        gold = gold_reward(tokens, mask, corpus.valence, corpus.attested).view(2, -1)  # (2, n)
        rows = gold.argsort(0, descending=True) * len(prompts) + torch.arange(len(prompts))
        rows = rows[:, gold[0] != gold[1]]  # ties teach nothing
        return tokens[rows], mask[rows]

    def scores(tokens, mask):
        return last_score(reward_model, tokens.flatten(0, 1), mask.flatten(0, 1)).chunk(2)

    def loss(rows):
        return loss_preference(*scores(tokens[:, rows], mask[:, rows]))

    choice = torch.randint(len(corpus.train), (args.rm_pairs,))
    tokens, mask = pairs(corpus.train[choice, : corpus.P])
    fit("reward model", reward_model, loss, tokens.shape[1], epochs=4, learning_rate=1e-3)
    with torch.no_grad():
        better, worse = scores(*pairs(corpus.held_out[:, : corpus.P]))
        # Mean 0, std 1 on responses of pi_ref, so that beta means the same for every reward model.
        std, mean = torch.std_mean(torch.cat((better, worse)))
        reward_model.head.weight.div_(std)
        reward_model.head.bias.sub_(mean).div_(std)
    return {"stages/reward_model_accuracy": (better > worse).float().mean().item()}


def train_stages(networks, corpus, args: Args) -> dict:
    """SFT and the reward model, or what an earlier run has kept of them; returns their measures."""
    names = "seed vocab_size prompt_words num_steps hidden_size num_layers sft_epochs".split()
    made_from, measures = [torch.__version__, Path(__file__).read_text(), corpus.digest], {}
    for network, train, more_names in (
        ("reference", train_sft, names),
        ("reward_model", train_reward_model, ["rm_pairs", "temperature"]),
    ):
        made_from += [(name, getattr(args, name)) for name in more_names]
        digest = hashlib.sha256(repr(made_from).encode()).hexdigest()
        path = Path("runs", "stages", f"{digest[:16]}.pt")
        try:
            stage = torch.load(path, weights_only=True)
        except Exception:  # there is none, or a damaged one
            torch.manual_seed(args.seed)
            stage = {"measures": train(networks, corpus, args)}
            stage["weights"] = networks[network].state_dict()
            path.parent.mkdir(parents=True, exist_ok=True)
            mine = path.with_name(f"{path.stem}-{os.getpid()}")  # others may do the same just now
            save(mine, stage)
            os.replace(mine, path)
        networks[network].load_state_dict(stage["weights"])
        measures |= stage["measures"]
    networks["policy"].load_state_dict(networks["reference"].state_dict())
    networks["value"].load_state_dict(networks["reward_model"].state_dict())
    return measures


# ---------------------------------------------------------------- saving, resuming, evaluating
stop_signals: list[int] = []  # filled by Ctrl-C and SIGTERM, read by main between iterations


def on_signal(number: int, frame) -> None:
    """Let main finish its iteration and save; a second signal ends it at once."""
    stop_signals.append(number)
    signal.signal(number, signal.SIG_DFL)


def check_finite(step: int, args: Args, **quantities: np.ndarray) -> None:
    """Raise FloatingPointError at the first NaN or infinity in arrays (T, N, ...) from step on."""
    for name, values in quantities.items():
        bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))  # (T,)
        if bad.any():
            where = f"step {step + int(bad.argmax()) * args.num_envs}, seed {args.seed}"
            raise FloatingPointError(f"{name} is not a finite number at {where}")


def write_file(path: Path, content: bytes) -> None:
    """Write in whole or not at all: a kill in between leaves the old file."""
    path.with_suffix(".tmp").write_bytes(content)
    os.replace(path.with_suffix(".tmp"), path)


def start_run(args: Args) -> Path:
    """Make the run's folder, with config.json in it."""
    script = Path(__file__).stem
    text = Path(args.corpus or "kjv").name.partition(".")[0]
    name = f"{text}__{script}__seed{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    run_dir = Path(args.run_dir or Path("runs", re.sub(r"[^\w.-]", "_", name)))
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse("run_dir", run_dir, f"{error.strerror}; name another folder")
    versions = {name: version(name) for name in ("torch", "numpy")}
    versions["python"] = sys.version.split()[0]
    config = {"script": script, "args": asdict(args), "versions": versions}
    write_file(run_dir / "config.json", json.dumps(config, indent=2).encode())
    return run_dir


def load_run(flag: str, run_dir: str) -> tuple[Args, dict | None]:
    """A run's arguments and its last checkpoint (None if it was killed before the first)."""
    path = Path(run_dir, "checkpoint.pt")
    try:
        config = json.loads(Path(run_dir, "config.json").read_text())
        if config["script"] != Path(__file__).stem:
            refuse(flag, run_dir, f"is a run of {config['script']}.py, use that script")
        checkpoint = torch.load(path, weights_only=True) if path.exists() else None
        return Args(**config["args"]), checkpoint
    except OSError:
        refuse(flag, run_dir, "is not the folder of a run: it has no config.json that can be read")
    except Exception as error:
        refuse(flag, run_dir, f"is damaged ({type(error).__name__}), take another run")


def save(path: Path, content: dict) -> None:
    """Save tensors and plain Python types."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_file(path, buffer.getvalue())


def make_networks(args: Args, checkpoint: dict | None = None) -> tuple:
    """The text and the four models of RLHF: two will learn, two are frozen."""
    corpus = read_corpus(args)
    torch.manual_seed(args.seed)
    sizes = len(corpus.words), corpus.train.shape[1], args.hidden_size, args.num_layers
    networks = {"policy": Transformer(*sizes), "reference": Transformer(*sizes)}
    networks |= {"value": Scorer(*sizes), "reward_model": Scorer(*sizes)}
    networks = nn.ModuleDict(networks)
    if checkpoint is not None:
        if checkpoint["run"]["corpus_digest"] != corpus.digest:
            refuse("corpus", args.corpus or "", "is another text now than the run has learnt")
        networks.load_state_dict(checkpoint["networks"])
    return corpus, networks


@torch.no_grad()
def answer(networks, prompts, corpus, args: Args, generator) -> SimpleNamespace:
    """Responses to N prompts, and all that policy, reference, reward model and gold say of them."""
    policy, reference, reward_model = (networks[x] for x in ("policy", "reference", "reward_model"))
    tokens, mask = generate(policy, prompts, args.num_steps, args.temperature, generator)
    a = SimpleNamespace(tokens=tokens, mask=mask)  # (N, P + T), (N, T); K real tokens
    a.old_logprob, a.old_logprobs = token_logprobs(policy, tokens, mask, args.temperature)
    a.ref_logprob, ref_logprobs = token_logprobs(reference, tokens, mask, args.temperature)
    a.kl_ref = categorical_kl(a.old_logprobs, ref_logprobs).sum() / len(prompts)  # per response
    a.proxy = last_score(reward_model, tokens, mask)  # (N,)
    a.gold = gold_reward(tokens, mask, corpus.valence, corpus.attested)  # (N,)
    a.eos = (tokens[:, corpus.P :] == EOS).any(1)  # (N,)
    measures = {"proxy": a.proxy, "gold": a.gold, "kl_ref": a.kl_ref, "eos": a.eos.float()}
    a.means = {name: measure.mean().item() for name, measure in measures.items()}
    return a


def play(networks, corpus, args: Args, seed: int) -> tuple[dict, str]:
    """Answer held-out prompts, with a generator of its own: means, and eight responses as text."""
    generator = torch.Generator().manual_seed(seed)
    choice = torch.randint(len(corpus.held_out), (args.eval_episodes,), generator=generator)
    a = answer(networks, corpus.held_out[choice, : corpus.P], corpus, args, generator)
    text = "proxy   gold  prompt | response"
    for row, proxy, gold in list(zip(a.tokens.tolist(), a.proxy, a.gold))[:8]:
        words = [corpus.words[i] for i in row if i < len(corpus.words)]
        words.insert(corpus.P - 1, "|")
        text += f"\n{proxy:5.2f}  {gold:5.2f}  {' '.join(words)}"
    return {f"eval/{name}": mean for name, mean in a.means.items()}, text


def report(writer, bar, step: int, metrics: dict) -> None:
    """Metrics to TensorBoard; progress to the terminal, or in 50 plain lines to a file."""
    for name, value in metrics.items():
        writer.add_scalar(name, value, step)
    score = "  ".join(f"{x} {metrics[f'rollout/{x}']:.2f}" for x in ("proxy", "gold", "kl_ref"))
    if bar.disable and 50 * step // bar.total > 50 * bar.n // bar.total:
        print(f"episode {step}/{bar.total}  {score}", flush=True)
    bar.n = step
    bar.set_postfix_str(score)


def evaluate(args: Args) -> dict:
    """Let a saved policy answer prompts that were held out, sampled as in training."""
    saved, checkpoint = load_run("evaluate", args.evaluate)
    if checkpoint is None:
        refuse("evaluate", args.evaluate, "has no checkpoint.pt yet, train it first")
    saved.eval_episodes = args.eval_episodes
    corpus, networks = make_networks(saved, checkpoint)
    means, text = play(networks, corpus, saved, args.seed)
    line = "  ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    print(f"{text}\n{line}, means of {args.eval_episodes} responses")
    return means


# ----------------------------------------------------------------------------------------- main
def main(args: Args) -> dict:
    """Train, and return what result.json holds; with --evaluate, play."""
    torch.set_num_threads(1)  # networks this small are slower on more threads, and on a GPU
    check_args(args)
    if args.evaluate is not None:
        return evaluate(args)
    resumed, checkpoint = args.resume, None
    if resumed is not None:
        args, checkpoint = load_run("resume", resumed)

    # T tokens, N episodes, P BOS and prompt, V EOS and words, M episodes of a minibatch; K real
    # tokens of the batch, m of a minibatch
    T, N, M = args.num_steps, args.num_envs, args.minibatch_size
    num_iterations = args.total_episodes // N
    corpus, networks = make_networks(args, checkpoint)
    P, policy, value = corpus.P, networks["policy"], networks["value"]
    params = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(params, eps=1e-5, fused=True)  # eps: OpenAI baselines
    generator = torch.Generator().manual_seed(args.seed)  # of prompts, tokens and minibatches
    # What changes as the run goes on, besides the networks, the optimiser and the generator:
    run = SimpleNamespace(iteration=1, global_step=0, seconds=0.0, episodes_size=0)
    run.beta, run.last, run.corpus_digest = args.ref_kl_coef, [], corpus.digest
    if checkpoint is not None:
        optimizer.load_state_dict(checkpoint["optimizer"])
        generator.set_state(checkpoint["generator"])
        vars(run).update(checkpoint["run"])
    run_dir = Path(resumed) if resumed else start_run(args)
    episodes = open(run_dir / "episodes.csv", "a")
    episodes.truncate(run.episodes_size)  # cuts off what a killed run wrote after its checkpoint
    writer = SummaryWriter(run_dir, purge_step=run.global_step + 1 if checkpoint else 0)  # likewise
    if checkpoint is None:
        metrics = train_stages(networks, corpus, args)
        means, text = play(networks, corpus, args, args.seed)
        for name, number in (metrics | means).items():
            writer.add_scalar(name, number, 0)
        writer.add_text("eval/responses", text.replace("\n", "\n\n"), 0)
        print(f"{text}\n{metrics}", flush=True)
        print("step,env,return,length,seconds,gold,kl_ref", file=episodes)
    bar = tqdm(total=num_iterations * N, initial=run.global_step, unit=" episodes", disable=None)
    start = time.perf_counter() - run.seconds

    for iteration in range(run.iteration, num_iterations + 2):
        finished = iteration > num_iterations
        if finished or stop_signals or (iteration - 1) % args.save_every == 0:
            writer.flush()
            episodes.flush()
            run.iteration = iteration
            run.seconds, run.episodes_size = time.perf_counter() - start, episodes.tell()
            checkpoint = {"networks": networks.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint |= {"generator": generator.get_state(), "run": vars(run)}
            save(run_dir / "checkpoint.pt", checkpoint)
        if finished or stop_signals:
            break
        iteration_start = time.perf_counter()

        # (1) Answer N prompts with pi_old, token by token; score each whole response.
        choice = torch.randint(len(corpus.train), (N,), generator=generator)
        a = answer(networks, corpus.train[choice, :P], corpus, args, generator)
        tokens, mask = a.tokens, a.mask  # (N, P + T), (N, T), which has EOS in and PAD out
        old_logprob, ref_logprob, old_values = torch.zeros((3, N, T))  # (N, T) each, 0 where PAD is
        old_logprob[mask], ref_logprob[mask] = a.old_logprob, a.ref_logprob
        with torch.no_grad():
            old_values[mask] = value(tokens)[:, P - 1 : -1][mask]
        scores = a.proxy if args.reward == "proxy" else a.gold  # (N,)
        scores = scores.where(a.eos, torch.tensor(args.missing_eos_score))  # Ziegler et al.

        # (2) Rewards of the tokens; advantages. A response is worth nothing more after its last.
        rewards = kl_shaped_rewards(old_logprob, ref_logprob, scores, mask, run.beta)  # (N, T)
        ended = torch.arange(T) >= mask.sum(1, keepdim=True) - 1  # (N, T), from the last token on
        gae = (rewards, old_values, old_values.roll(-1, 1), ended, ended)
        gae = [x.T.numpy() for x in gae]  # (T, N) each, time first
        b_advantages = compute_gae(*gae, args.gamma, args.gae_lambda)  # (T, N)
        advantages = torch.from_numpy(b_advantages).float().T.contiguous()  # (N, T), 0 where PAD is
        returns = advantages + old_values  # (N, T), V^targ
        if args.norm_adv:  # not in the papers: OpenAI's code
            advantages[mask] = whiten(advantages[mask])

        # (3) Optimise L for K epochs over minibatches of M responses.
        learning_rate = args.learning_rate
        if args.anneal_lr:  # not in the papers: OpenAI's code
            learning_rate *= 1 - (iteration - 1) / num_iterations
        optimizer.param_groups[0]["lr"] = learning_rate
        sums = torch.zeros(4)
        for epoch in range(args.num_epochs):
            for rows in torch.randperm(N, generator=generator).split(M):
                mb_tokens, mb_mask = tokens[rows], mask[rows]  # (M, P + T), (M, T)
                mb = (x[rows][mb_mask] for x in (old_logprob, advantages, old_values, returns))
                mb_old_logprob, mb_advantages, mb_old_values, mb_returns = mb  # (m,) each
                logprob, _ = token_logprobs(policy, mb_tokens, mb_mask, args.temperature)
                ratio = (logprob - mb_old_logprob).exp()  # (m,)
                if args.objective == "clip":
                    policy_loss = loss_clip(ratio, mb_advantages, args.clip_coef)
                else:
                    policy_loss = loss_cpi(ratio, mb_advantages)
                mb_values = value(mb_tokens)[:, P - 1 : -1][mb_mask]  # (m,)
                reach = args.clip_coef if args.clip_vloss else math.inf
                value_loss = loss_value(mb_values, mb_old_values, mb_returns, reach)
                loss = policy_loss + args.vf_coef * value_loss
                if args.ptx_coef > 0:  # InstructGPT eq. (2), PPO-ptx
                    choice = torch.randint(len(corpus.train), (M,), generator=generator)
                    loss = loss + args.ptx_coef * loss_lm(policy, corpus.train[choice])
                optimizer.zero_grad()
                loss.backward()
                limit = args.max_grad_norm or math.inf
                grad_norm = nn.utils.clip_grad_norm_(params, limit)  # not in the papers
                optimizer.step()
                clip_fraction = ((ratio - 1).abs() > args.clip_coef).float().mean()
                means = (policy_loss, value_loss, clip_fraction, grad_norm)
                sums += torch.stack(means).detach()

        # (4) Adapt beta, report. pi_old <- pi needs no code: the next rollout uses the new weights.
        run.global_step += N
        names = ("policy_loss", "value_loss", "clip_fraction", "grad_norm")
        means = (sums / (args.num_epochs * N // M)).tolist()  # over the whole update
        metrics = {f"losses/{name}": mean for name, mean in zip(names, means)}
        metrics |= {f"rollout/{name}": mean for name, mean in a.means.items()}
        with torch.no_grad():
            _, new_logprobs = token_logprobs(policy, tokens, mask, args.temperature)  # (K, V)
        metrics["losses/kl_old_new"] = categorical_kl(a.old_logprobs, new_logprobs).sum().item() / N
        metrics["losses/entropy"] = -(a.old_logprobs.exp() * a.old_logprobs).sum(-1).mean().item()
        if args.ref_kl_controller == "adaptive":
            target = (args.ref_kl_target, N, args.ref_kl_horizon)
            run.beta = adapt_ref_kl_coef(run.beta, metrics["rollout/kl_ref"], *target)
        metrics["charts/learning_rate"], metrics["charts/beta"] = learning_rate, run.beta
        check_finite(run.global_step, args, loss=np.array([list(metrics.values())]))
        fit_quality = explained_variance(old_values[mask].numpy(), returns[mask].numpy())
        metrics["losses/explained_variance"] = fit_quality
        metrics["charts/SPS"] = N / (time.perf_counter() - iteration_start)
        if iteration % args.eval_every == 0 or iteration == num_iterations:
            means, text = play(networks, corpus, args, args.seed)
            metrics |= means
            writer.add_text("eval/responses", text.replace("\n", "\n\n"), run.global_step)
            if iteration == num_iterations:
                bar.write(text)
        report(writer, bar, run.global_step, metrics)
        columns = (scores, mask.sum(1), a.gold, (old_logprob - ref_logprob).sum(1))  # (N,) each
        run.last = [*run.last, *zip(*(x.tolist() for x in columns))][-max(N, 100) :]
        seconds = f"{time.perf_counter() - start:.2f}"
        for n, (score, length, gold, kl) in enumerate(run.last[-N:]):
            print(run.global_step, n, score, length, seconds, gold, kl, sep=",", file=episodes)

    for resource in (bar, writer, episodes):
        resource.close()
    result = {"status": "finished" if finished else "interrupted", "steps": run.global_step}
    last = np.mean(run.last[-100:], 0).tolist() if run.last else [None] * 4
    result |= {"score": last[0], "gold": last[2], "kl_ref": last[3]}
    result |= {"episodes": run.global_step, "seconds": round(run.seconds, 2)}
    result["steps_per_second"] = round(run.global_step / run.seconds, 1)
    write_file(run_dir / "result.json", json.dumps(result, indent=2).encode())
    print(f"{json.dumps(result)}\nresults: {run_dir}    curves: tensorboard --logdir {run_dir}")
    if not finished:
        print(f"go on: python {sys.argv[0]} --resume {run_dir}")
        raise SystemExit(128 + stop_signals[0])
    return result


if __name__ == "__main__":
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        main(tyro.cli(Args))
    except (FloatingPointError, OSError) as error:
        sys.exit(f"{Path(__file__).name}: stopped, the last checkpoint is kept: {error}")
