# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "gymnasium==1.4.0", "ale-py==0.12.1", "numpy==2.4.6",
#     "tyro==1.0.17", "tensorboard==2.21.0", "tqdm==4.70.1", "moviepy==2.2.1",
# ]
# ///
"""Proximal policy optimisation (PPO) for Atari games, in one file.

Paper: Schulman et al. 2017, arXiv 1707.06347. Algorithm 1, with Table 5's hyperparameters:

    for iteration = 1, 2, ...:
        (1) run pi_old in each of N games for T steps of four frames
        (2) estimate advantages A_1, ..., A_T                               eqs. (11), (12)
        (3) optimise L^{CLIP+VF+S} for K epochs over minibatches of size M  eqs. (7), (9)
        (4) report; pi_old <- pi

    T num_steps    N num_envs    K num_epochs    M minibatch_size    gamma gamma    r ratio
    lambda gae_lambda    eps clip_coef    c1 vf_coef    c2 ent_coef    A advantages
    alpha falls from 1 to 0 over the run and multiplies the stepsize and eps

One network, Mnih et al. 2015, sees four frames of 84 x 84 grey pixels and has two outputs: policy
and value. It learns from the sign of the rewards, and an episode ends for it with each lost life;
what is logged are whole games and the points they paid.
Not in the paper, and how to switch each off (or on):

    on:   advantage normalisation  --no-norm-adv          orthogonal  --no-orthogonal-init
          Adam eps 1e-5            --adam-eps 1e-8        bfloat16    --no-bf16
    off:  gradient clipping        --max-grad-norm 0.5    actions that stick  --sticky-actions 0.25

Train:        python ppo_atari.py --env-id Pong --seed 1
Quick check:  python ppo_atari.py --env-id Pong --total-timesteps 20480
Watch it:     python ppo_atari.py --evaluate RUN_DIR --eval-episodes 1 --capture-video
"""

import copy
import csv
import difflib
import io
import itertools
import json
import os
import re
import signal
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import tyro
from gymnasium.utils.save_video import save_video
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

try:
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv
except ImportError:
    sys.exit(f"{Path(__file__).name}: error: the games are missing: pip install ale-py==0.12.1")


# ------------------------------------------------------------------------------------ arguments
@dataclass
class Args:
    """Proximal policy optimisation (PPO) for Atari games: trains unless told to evaluate."""

    # run
    seed: int = 1  # seed of the networks, the environments, the actions and the minibatches
    total_timesteps: int = 10_000_000  # steps in all, rounded down to iterations (Table 5: 10M)
    run_dir: str | None = None  # folder for the results, else runs/ENV__SCRIPT__seedSEED__TIME
    save_every: int = 100  # iterations between two checkpoints
    compile: bool = True  # torch.compile the gradient step, 5 to 30 s once (a fifth faster)
    device: str = "cpu"  # where the network computes: cpu or cuda
    bf16: bool = True  # convolutions in bfloat16, where the processor has it
    resume: str | None = None  # go on with the run in this folder, with its own arguments
    evaluate: str | None = None  # instead of training, play the policy saved in this folder
    eval_episodes: int = 10  # episodes that --evaluate plays
    capture_video: bool = False  # with --evaluate: film the first episode into the run's folder
    # environment
    env_id: str = "Pong"  # environment (game: Pong, ALE/Pong-v5 and PongNoFrameskip-v4 are one)
    sticky_actions: float = 0.0  # probability that a frame repeats the last action instead
    # rollout
    num_envs: int = 8  # N, environments (actors) side by side (Table 5: 8)
    num_steps: int = 128  # T, the horizon: steps per environment and iteration (Table 5: 128)
    # advantages
    gamma: float = 0.99  # gamma, the discount (Table 5: 0.99)
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation (Table 5: 0.95)
    norm_adv: bool = True  # shift and scale a batch's advantages to mean 0 and std 1
    # objective
    clip_coef: float = 0.1  # eps, distance from 1 that the ratio may gain (Table 5: 0.1 alpha)
    anneal_clip: bool = True  # let eps fall linearly to 0 over the run (Table 5: alpha)
    vf_coef: float = 1.0  # c1, weight of the value loss (Table 5: 1)
    ent_coef: float = 0.01  # c2, weight of the entropy bonus (Table 5: 0.01)
    # optimiser
    learning_rate: float = 2.5e-4  # stepsize of Adam (Table 5: 2.5e-4 alpha)
    anneal_lr: bool = True  # let the stepsize fall linearly to 0 over the run (Table 5: alpha)
    adam_eps: float = 1e-5  # Adam's epsilon, which keeps it from dividing by 0
    num_epochs: int = 3  # K, epochs over each batch (Table 5: 3)
    minibatch_size: int = 256  # M, samples per gradient step (Table 5: 32 x 8)
    max_grad_norm: float = 0.0  # scale longer gradients down to this length, 0: no limit
    # extras
    orthogonal_init: bool = True  # orthogonal first weights, small for actions; else PyTorch's


def refuse(flag: str, value, remedy: str) -> None:
    """Bad input: exit code 2 and one line with the flag, its value and what would be right."""
    flag = flag.replace("_", "-")
    print(f"{Path(__file__).name}: error: --{flag} {value}: {remedy}", file=sys.stderr)
    raise SystemExit(2)


def check_args(args: Args) -> None:
    """Refuse, before any work, arguments that cannot work or would be ignored."""
    B, M, given = args.num_envs * args.num_steps, args.minibatch_size, asdict(args)
    for names, low, high, remedy in (
        ("num_envs num_steps save_every eval_episodes", 1, 1e9, "must be 1 or more"),
        ("num_epochs", 1, 1e9, "must be 1 or more"),
        ("clip_coef learning_rate adam_eps", 1e-12, 1e9, "must be above 0"),
        ("vf_coef ent_coef max_grad_norm", 0, 1e9, "must be 0 or more"),
        ("gamma gae_lambda sticky_actions", 0, 1, "must be from 0 to 1"),
        ("seed", 0, 2**32 - 1, "must be from 0 to 2**32 - 1"),
        ("total_timesteps", B, 1e12, f"must be num_envs * num_steps = {B}, one iteration, or more"),
    ):
        for name in names.split():
            if not low <= given[name] <= high:  # so written, it refuses NaN as well
                refuse(name, given[name], remedy)
    if M < 2 or B % M:
        sizes = [size for size in range(2, B + 1) if B % size == 0]
        nearest = min(sizes, key=lambda size: abs(size - M), default="none")
        remedy = f"must be 2 or more and divide num_envs * num_steps = {B}; nearest is {nearest}"
        refuse("minibatch_size", M, remedy)
    if args.device not in ("cpu", "cuda"):
        refuse("device", args.device, "must be cpu or cuda")
    if args.device == "cuda" and not torch.cuda.is_available():
        refuse("device", args.device, "PyTorch finds no GPU here, leave it out")
    if args.run_dir and Path(args.run_dir, "config.json").exists():
        refuse("run_dir", args.run_dir, "holds a run; --resume it, or name another folder")
    used = dict.fromkeys(("eval_episodes", "capture_video"), False)  # training does not
    if args.resume is not None:
        used = {name: name == "resume" for name in given}
    elif args.evaluate is not None:
        players = ("evaluate", "eval_episodes", "capture_video", "seed")
        used = {name: name in players for name in given}
    for name, value in given.items():
        if value != getattr(Args, name) and not used.get(name, True):
            refuse(name, value, "would be ignored beside the other arguments, leave it out")


# ---------------------------------------------------------------------------------- environment
MAX_STEPS = 27_000  # of a game: 108,000 frames, half an hour


def rom_name(env_id: str) -> str:
    """pong for Pong, ALE/Pong-v5, PongNoFrameskip-v4; refuses what is no game, names near ones."""
    names = {name.replace("_", ""): name for name in roms.get_all_rom_ids()}
    game = re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", env_id)
    key = re.sub(r"[^a-z0-9]", "", game.lower())
    if key not in names:
        near = [names[n].title().replace("_", "") for n in difflib.get_close_matches(key, names)]
        refuse("env_id", env_id, f"is no Atari game; near: {', '.join(near) or 'none'}")
    return names[key]


def make_games(env_id: str, num_envs: int, sticky_actions: float = 0.0, **kwargs) -> AtariVectorEnv:
    """Games side by side: a step is an action for four frames, the last two of which are pooled.

    A new game begins with FIRE, where there is such a button, and up to 30 actions in all that do
    nothing. A game that is over begins anew within the step. A time limit would leave a stale last
    picture here, so there is none: main counts the steps.
    """
    options = {"noop_max": 30, "max_num_frames_per_episode": 2**31 - 1, "reward_clipping": False}
    options |= {"repeat_action_probability": sticky_actions, "autoreset_mode": "SameStep", **kwargs}
    return AtariVectorEnv(rom_name(env_id), num_envs, **options)


# ------------------------------------------------------------------------------------- networks
def has_bf16(device: str) -> bool:
    """Whether the device computes in bfloat16; elsewhere bfloat16 is slower than float32."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return any(has for name, has in torch.cpu.get_capabilities().items() if "bf16" in name)


class Agent(nn.Module):
    """The network of Mnih et al. 2015, with the policy and the value on the same 512 features."""

    def __init__(self, num_actions: int, orthogonal_init: bool = True):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(),  # (B, 4, 84, 84) -> (B, 32, 20, 20)
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),  # (B, 64, 9, 9)
            nn.Conv2d(64, 64, 3, stride=1), nn.ReLU(),  # (B, 64, 7, 7)
            nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(),
        )  # fmt: skip
        self.actor = nn.Linear(512, num_actions)
        self.critic = nn.Linear(512, 1)
        if orthogonal_init:  # not in the paper: OpenAI baselines
            gains = {self.actor: 0.01, self.critic: 1.0}
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.orthogonal_(layer.weight, gains.get(layer, 2**0.5))
                    nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last)  # 100 ms a minibatch in float32, else 120

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Frames (B, 4, 84, 84) uint8 -> logits of the actions (B, A), values (B,)."""
        obs = obs.contiguous(memory_format=torch.channels_last)  # while it is small
        pixels = obs.to(self.critic.weight.dtype) / 255
        features = self.trunk(pixels)  # (B, 512)
        return self.actor(features).float(), self.critic(features).squeeze(-1).float()


@torch.no_grad()
def act(agent, observations) -> tuple[Tensor, Tensor]:
    """Frames (N, 4, 84, 84) of numpy -> logits (N, A), values (N,), wherever the agent is."""
    logits, values = agent(torch.from_numpy(observations).to(agent.critic.weight.device))
    return logits.cpu(), values.cpu()


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


def categorical_logprob(logits: Tensor, actions: Tensor) -> Tensor:
    """log pi(a|s): logits (B, A), actions (B,) int64 -> (B,)."""
    return logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """S[pi] in nats: logits (B, A) -> (B,)."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def categorical_kl_old_new(old_logits: Tensor, logits: Tensor) -> Tensor:
    """KL(pi_old || pi), exact, the old policy first: logits (B, A), (B, A) -> (B,).

    sum over the actions of pi_old (log pi_old - log pi)
    """
    old_logprobs = old_logits.log_softmax(-1)
    return (old_logprobs.exp() * (old_logprobs - logits.log_softmax(-1))).sum(-1)


def loss_clip(ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """Clipped surrogate, PPO (1707.06347) eq. (7), negated: (M,), (M,) -> scalar.

    L^CLIP = E[ min( r A, clip(r, 1 - eps, 1 + eps) A ) ]

    Past the clip there is nothing left to gain. The min keeps what there is to lose: where
    r > 1 + eps though A < 0, the gradient still pulls back.
    """
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return -torch.min(ratio * advantages, clipped_ratio * advantages).mean()


def adam_step(params, grads, m, v, stepsize: Tensor, v_scale: Tensor, eps: float) -> None:
    """Adam (1412.6980), Algorithm 1, in place on lists of tensors, with b1 = 0.9 and b2 = 0.999:

        m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
        theta <- theta - stepsize m / (sqrt(v_scale v) + eps)

    stepsize = alpha / (1 - b1^t), v_scale = 1 / (1 - b2^t). Written out so that torch.compile takes
    the gradient step as one graph: 0.29 ms; 0.46 ms with torch.optim.Adam after it.
    """
    for param, grad, m_i, v_i in zip(params, grads, m, v):
        m_i.lerp_(grad, 1 - 0.9)
        v_i.lerp_(grad**2, 1 - 0.999)
        param.sub_(stepsize * m_i / ((v_scale * v_i).sqrt() + eps))


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1 - Var[returns - values] / Var[returns]: 1 for perfect values, 0 for constant ones."""
    return float(1 - (returns - values).var() / (returns.var() + 1e-12))


def train_step(agent, params, batch, rows, clip_coef, adam, args) -> Tensor:
    """One gradient step on L^{CLIP+VF+S}, PPO (1707.06347) eq. (9); compiled as one graph."""
    obs, actions, old_logits, advantages, returns = (x[rows] for x in batch)  # (M, ...)
    with torch.autocast(obs.device.type, torch.bfloat16, enabled=args.bf16):
        logits, values = agent(obs)  # (M, A), (M,)
    old_logprob = categorical_logprob(old_logits, actions)  # (M,)
    ratio = (categorical_logprob(logits, actions) - old_logprob).exp()  # (M,)
    policy_loss = loss_clip(ratio, advantages, clip_coef)
    value_loss = ((values - returns) ** 2).mean()
    entropy = categorical_entropy(logits).mean()
    loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        grad_norm = torch.stack([grad.norm() for grad in grads]).norm()
        if args.max_grad_norm > 0:  # not in the paper: OpenAI baselines
            scale = (args.max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
            grads = [grad * scale for grad in grads]
        adam_step(params, grads, *adam, args.adam_eps)
        clip_fraction = ((ratio - 1).abs() > clip_coef).float().mean()
        kl = categorical_kl_old_new(old_logits, logits).mean()
        return torch.stack([policy_loss, value_loss, entropy, clip_fraction, grad_norm, kl])


# ---------------------------------------------------------------- saving, resuming, evaluating
stop_signals: list[int] = []  # filled by Ctrl-C and SIGTERM, read by main between iterations


def on_signal(number: int, frame) -> None:
    """Let main finish its iteration and save; a second signal ends it at once."""
    stop_signals.append(number)
    signal.signal(number, signal.SIG_DFL)


def compile_or_fall_back(function):
    """torch.compile(function); or function, and a line that says so, where nothing can compile."""
    torch._dynamo.config.trace_autograd_ops = True  # keeps torch.autograd.grad inside the graph
    options = {"cpp_wrapper": True}  # instead of a Python one: a tenth faster
    try:
        torch.compile(lambda x: x + 1, options=options)(torch.zeros(8))
        return torch.compile(function, dynamic=False, options=options)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        print(f"torch.compile does not work here, going on without it ({reason})", file=sys.stderr)
        return function


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
    name = f"{args.env_id}__{script}__seed{args.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    run_dir = Path(args.run_dir or Path("runs", re.sub(r"[^\w.-]", "_", name)))
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse("run_dir", run_dir, f"{error.strerror}; name another folder")
    versions = {name: version(name) for name in ("torch", "gymnasium", "ale-py", "numpy")}
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


def save_checkpoint(path: Path, agent, generator, run) -> None:
    """Save all that the rest of the run depends on, as tensors and plain Python types.

    All but the games: AtariVectorEnv cannot say where they stand. A resumed run begins new ones.
    """
    parameters = {name: x.cpu() for name, x in agent.state_dict().items()}
    moments = {"m": [m.cpu() for m in run.m], "v": [v.cpu() for v in run.v]}
    checkpoint = {"agent": parameters, "generator": generator.get_state()}
    checkpoint |= {"run": vars(run) | moments}
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    write_file(path, buffer.getvalue())


def report(writer, bar, step: int, metrics: dict, returns: list, new_returns: list) -> None:
    """Metrics to TensorBoard; progress to the terminal, or in 50 plain lines to a file."""
    if new_returns:
        metrics["charts/episodic_return"] = np.mean(new_returns)
    for name, value in metrics.items():
        writer.add_scalar(name, value, step)
    score = f"return {np.mean(returns[-100:]):.1f}" if returns else "no episode has ended"
    if bar.disable and 50 * step // bar.total > 50 * bar.n // bar.total:
        print(f"step {step}/{bar.total}  {score}  {metrics['charts/SPS']:.0f} steps/s", flush=True)
    bar.n = step
    bar.set_postfix_str(score)


def evaluate(args: Args) -> dict:
    """Play whole games with a saved policy: actions sampled as in training, seed args.seed."""
    saved, checkpoint = load_run("evaluate", args.evaluate)
    if checkpoint is None:
        refuse("evaluate", args.evaluate, "has no checkpoint.pt yet, train it first")
    game = make_games(saved.env_id, 1, saved.sticky_actions)
    camera, frames = None, []
    if args.capture_video:  # a second emulator, which plays the same in colour
        colour = {"grayscale": False, "img_height": 210, "img_width": 160, "stack_num": 1}
        camera = make_games(saved.env_id, 1, saved.sticky_actions, **colour)
    torch.set_num_threads(1)  # enough for one game
    agent = Agent(int(game.single_action_space.n))
    agent.load_state_dict(checkpoint["agent"])
    generator = torch.Generator().manual_seed(args.seed)
    returns = np.zeros(args.eval_episodes)
    for episode in range(args.eval_episodes):
        seed = np.array([(args.seed + episode) % 2**31])
        obs, _ = game.reset(seed=seed)  # (1, 4, 84, 84)
        filming = camera is not None and episode == 0
        if filming:
            frames.append(camera.reset(seed=seed)[0][0, 0])  # (210, 160, 3)
        for _ in range(MAX_STEPS):
            with torch.no_grad():
                probabilities = agent(torch.from_numpy(obs))[0].softmax(-1)  # (1, A)
            action = torch.multinomial(probabilities, 1, generator=generator)[0].numpy()  # (1,)
            obs, reward, over, _, _ = game.step(action)
            returns[episode] += reward[0]
            if filming:
                frames.append(camera.step(action)[0][0, 0])
            if over[0]:
                break
    game.close()
    mean, std = returns.mean(), returns.std()
    print(f"{saved.env_id}: return {mean:.1f} ± {std:.1f}, mean ± std of {len(returns)} episodes")
    if args.capture_video:
        save_video(frames, args.evaluate, lambda n: n == 0, name_prefix="video", fps=15)
        print(f"video of the first: {args.evaluate}/video-episode-0.mp4")
    return {"mean": float(mean), "std": float(std), "returns": returns.tolist()}


# ----------------------------------------------------------------------------------------- main
def main(args: Args) -> dict:
    """Train, and return what result.json holds; with --evaluate, play."""
    check_args(args)
    if args.evaluate is not None:
        return evaluate(args)
    resumed, checkpoint = args.resume, None
    if resumed is not None:
        args, checkpoint = load_run("resume", resumed)
    if args.bf16 and not has_bf16(args.device):
        print("no bfloat16 in this processor, going on in float32", file=sys.stderr)
        args.bf16 = False

    # T steps, N games, A actions, B = N T samples a batch, M a minibatch
    T, N, M = args.num_steps, args.num_envs, args.minibatch_size
    B = N * T
    num_iterations = args.total_timesteps // B
    seeds = np.random.SeedSequence(args.seed).generate_state(2).tolist()
    # Two groups: the games of one go on while the network acts for the other: a tenth faster.
    groups = [slice(0, N // 2), slice(N // 2, N)] if N > 1 else [slice(0, 1)]
    games = [make_games(args.env_id, n.stop - n.start, args.sticky_actions) for n in groups]
    A = int(games[0].single_action_space.n)
    obs = torch.zeros((T, N, 4, 84, 84), dtype=torch.uint8, pin_memory=args.device == "cuda")
    actions, old_logits = torch.zeros((T, N), dtype=torch.int64), torch.zeros((T, N, A))
    rewards, terminated, truncated, final_values = np.zeros((4, T, N))  # (T, N) each
    values = np.zeros((T + 1, N))
    torch.manual_seed(seeds[0])
    agent = Agent(A, args.orthogonal_init).to(args.device)
    generator = torch.Generator().manual_seed(seeds[1])  # of the actions and the minibatches
    params, threads = list(agent.parameters()), torch.get_num_threads()
    step = compile_or_fall_back(train_step) if args.compile else train_step
    # What changes as the run goes on, besides the agent, the generator and the games:
    run = SimpleNamespace(iteration=1, global_step=0, seconds=0.0, episodes_size=0)
    run.gradient_steps = 0
    run.m = [torch.zeros_like(param) for param in params]  # Adam's moments
    run.v = [torch.zeros_like(param) for param in params]
    if checkpoint is not None:
        agent.load_state_dict(checkpoint["agent"])
        generator.set_state(checkpoint["generator"])
        vars(run).update(checkpoint["run"])
        run.m, run.v = ([x.to(args.device) for x in moments] for moments in (run.m, run.v))
    game_seeds = np.random.SeedSequence((args.seed, run.iteration)).generate_state(N) // 2
    observations, lives = np.zeros((N, 4, 84, 84), np.uint8), np.zeros(N, np.int64)
    for n, group in zip(groups, games):
        observations[n], info = group.reset(seed=game_seeds[n].astype(np.int64))
        lives[n] = info["lives"]
    episode_return, episode_length = np.zeros((2, N), np.int64)
    run_dir = Path(resumed) if resumed else start_run(args)
    episodes = open(run_dir / "episodes.csv", "a+")
    episodes.truncate(run.episodes_size)  # cuts off what a killed run wrote after its checkpoint
    episodes.seek(0)
    returns = [float(row["return"]) for row in csv.DictReader(episodes)]
    if run.episodes_size == 0:
        print("step,env,return,length,seconds", file=episodes)
    writer = SummaryWriter(run_dir, purge_step=run.global_step + 1)  # likewise
    bar = tqdm(total=num_iterations * B, initial=run.global_step, unit=" steps", disable=None)
    start = time.perf_counter() - run.seconds

    for iteration in range(run.iteration, num_iterations + 2):
        finished = iteration > num_iterations
        if finished or stop_signals or (iteration - 1) % args.save_every == 0:
            writer.flush()
            episodes.flush()
            run.iteration, run.episodes_size = iteration, episodes.tell()
            run.seconds = time.perf_counter() - start
            save_checkpoint(run_dir / "checkpoint.pt", agent, generator, run)
        if finished or stop_signals:
            break
        iteration_start, old_episodes = time.perf_counter(), len(returns)

        # (1) Run pi_old in each of N games for T steps.
        # The network acts on one core: four games are too few for more. A copy whose weights are
        # bfloat16 once and for all takes 0.9 ms, autocast 1.2 ms.
        torch.set_num_threads(1)
        actor = copy.deepcopy(agent).to(torch.bfloat16 if args.bf16 else torch.float32)
        # The argmax of logits + Gumbel noise is a sample of their softmax.
        noise = -torch.empty((T, N, A)).exponential_(generator=generator).log()  # (T, N, A)
        for t, (n, group) in itertools.product(range(T + 1), zip(groups, games)):
            if t > 0:  # what the actions of step t - 1 led to
                observations[n], rewards[t - 1, n], over, _, info = group.recv()
                episode_return[n] += rewards[t - 1, n].astype(np.int64)
                episode_length[n] += 1
                cut = (episode_length[n] >= MAX_STEPS) & ~over
                life_lost = (info["lives"] < lives[n]) & (info["lives"] > 0)
                terminated[t - 1, n], truncated[t - 1, n] = over | life_lost, cut
                for i in n.start + np.flatnonzero(over | cut):  # whole games, and what they paid
                    returns.append(float(episode_return[i]))
                    row = run.global_step + t * N, i, returns[-1], episode_length[i]
                    print(*row, f"{time.perf_counter() - start:.2f}", sep=",", file=episodes)
                    episode_return[i] = episode_length[i] = 0
                if cut.any():  # a time limit is no death: what would have come is worth something
                    final_values[t - 1, n] = act(actor, observations[n])[1]
                    observations[n], info = group.reset(options={"reset_mask": cut})
                lives[n] = info["lives"]
            logits, values[t, n] = act(actor, observations[n])  # (N / 2, A), (N / 2,)
            if t < T:
                obs[t, n], old_logits[t, n] = torch.from_numpy(observations[n]), logits
                actions[t, n] = (logits + noise[t, n]).argmax(-1)
                group.send(actions[t, n].numpy())
        run.global_step += B
        torch.set_num_threads(threads)

        # (2) Estimate advantages, of the rewards' signs.
        ended = np.maximum(terminated, truncated)  # (T, N)
        next_values = np.where(truncated, final_values, values[1:])  # (T, N)
        gae = (values[:-1], next_values, terminated, ended, args.gamma, args.gae_lambda)
        advantages = compute_gae(np.sign(rewards), *gae)  # (T, N)
        b_advantages = torch.from_numpy(advantages).float().flatten()  # (B,)
        b_values = torch.from_numpy(values[:-1]).float().flatten()  # (B,)
        b_returns = b_advantages + b_values  # (B,), V^targ
        if args.norm_adv:  # not in the paper: OpenAI baselines
            b_advantages = whiten(b_advantages)

        # (3) Optimise L for K epochs over minibatches of size M.
        alpha = 1 - (iteration - 1) / num_iterations
        learning_rate = args.learning_rate * (alpha if args.anneal_lr else 1)
        clip_coef = args.clip_coef * (alpha if args.anneal_clip else 1)
        b_obs, b_actions, b_old_logits = (x.flatten(0, 1) for x in (obs, actions, old_logits))
        batch = (b_obs, b_actions, b_old_logits, b_advantages, b_returns)
        batch = [x.to(args.device, non_blocking=True) for x in batch]
        eps, sums = torch.tensor(clip_coef, device=args.device), torch.zeros(6, device=args.device)
        for epoch in range(args.num_epochs):
            order = torch.randperm(B, generator=generator).to(args.device)
            for rows in order.split(M):
                run.gradient_steps += 1
                stepsize = torch.tensor(learning_rate / (1 - 0.9**run.gradient_steps))
                v_scale = torch.tensor(1 / (1 - 0.999**run.gradient_steps))
                adam = (run.m, run.v, stepsize.to(args.device), v_scale.to(args.device))
                sums += step(agent, params, batch, rows, eps, adam, args)

        # (4) Report. pi_old <- pi needs no code: the next rollout uses the new weights.
        names = ("policy_loss", "value_loss", "entropy", "clip_fraction", "grad_norm", "kl_old_new")
        means = (sums / (args.num_epochs * B // M)).tolist()  # over the whole update
        metrics = {f"losses/{name}": mean for name, mean in zip(names, means)}
        metrics["charts/learning_rate"], metrics["charts/clip_coef"] = learning_rate, clip_coef
        check_finite(run.global_step, args, loss=np.array([list(metrics.values())]))
        metrics["losses/explained_variance"] = explained_variance(b_values, b_returns)
        metrics["charts/SPS"] = B / (time.perf_counter() - iteration_start)
        report(writer, bar, run.global_step, metrics, returns, returns[old_episodes:])

    for resource in (*games, bar, writer, episodes):
        resource.close()
    result = {"status": "finished" if finished else "interrupted", "steps": run.global_step}
    result["score"] = float(np.mean(returns[-100:])) if returns else None
    result |= {"episodes": len(returns), "seconds": round(run.seconds, 2)}
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
