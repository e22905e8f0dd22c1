# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch==2.13.0", "gymnasium[mujoco]==1.4.0", "mujoco==4.0.0", "numpy==2.4.6",
#     "tyro==1.0.17", "tensorboard==2.21.0", "tqdm==4.70.1", "moviepy==2.2.1",
# ]
# ///
"""Vanilla policy gradient with a value network (VPG) for continuous control, in one file.

The comparator of the PPO paper (Schulman et al. 2017, arXiv 1707.06347, section 2.1 and Figure 3):
nothing bounds the step but its size. Read it first; `diff` it with ppo_continuous.py.

    for iteration = 1, 2, ...:
        (1) run pi in each of N environments for T steps
        (2) estimate advantages A_1, ..., A_T                               eqs. (11), (12)
        (3) one gradient step on L^PG over the whole batch                  eq. (2)
        (4) adapt the stepsize to how far the policy has moved; fit the value network; report

    T num_steps    N num_envs    alpha learning_rate    gamma gamma    lambda gae_lambda
    d_targ lr_kl_target    A advantages

Not in the paper, and how to switch each off (or on):

    on:   observation scaling and clipping  --no-norm-obs      orthogonal      --no-orthogonal-init
          reward scaling and clipping       --no-norm-reward   Adam eps 1e-5   --adam-eps 1e-8
          advantage normalisation           --no-norm-adv      log std of -0.5 --log-std-init 0
          adaptive stepsize                 --no-adaptive-lr

Train:        python vpg_continuous.py --env-id HalfCheetah-v5 --seed 1
Quick check:  python vpg_continuous.py --env-id InvertedPendulum-v5 --total-timesteps 50000
Watch it:     python vpg_continuous.py --evaluate RUN_DIR --capture-video
"""

import csv
import ctypes.util
import io
import json
import math
import os
import re
import signal
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from gymnasium.envs.mujoco import MujocoEnv
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


# ------------------------------------------------------------------------------------ arguments
@dataclass
class Args:
    """Vanilla policy gradient (VPG) for continuous control: trains unless told to evaluate."""

    # run
    seed: int = 1  # seed of the networks, the environments, the actions and the minibatches
    total_timesteps: int = 1_000_000  # steps in all, rounded down to iterations (Table 3: 1M)
    run_dir: str | None = None  # folder for the results, else runs/ENV__SCRIPT__seedSEED__TIME
    save_every: int = 20  # iterations between two checkpoints
    compile: bool = True  # torch.compile the gradient step, 5 to 30 s once (twice the speed)
    resume: str | None = None  # go on with the run in this folder, with its own arguments
    evaluate: str | None = None  # instead of training, play the policy saved in this folder
    eval_episodes: int = 10  # episodes that --evaluate plays
    capture_video: bool = False  # with --evaluate: film the first episode into the run's folder
    # environment
    env_id: str = "HalfCheetah-v5"  # environment (gymnasium's, continuous observations and actions)
    # rollout
    num_envs: int = 1  # N, environments (actors) side by side (Table 3: 1)
    num_steps: int = 512  # T, the horizon: steps per environment and iteration
    norm_obs: bool = True  # scale observations by running mean and std, clip them to [-10, 10]
    norm_reward: bool = True  # scale rewards by the running std of returns, clip to [-10, 10]
    # advantages
    gamma: float = 0.99  # gamma, the discount (Table 3: 0.99)
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation (Table 3: 0.95)
    norm_adv: bool = True  # shift and scale a batch's advantages to mean 0 and std 1
    # optimiser
    learning_rate: float = 3e-3  # stepsize of Adam (for the policy; at the start, if adaptive)
    adaptive_lr: bool = True  # adapt the policy's stepsize to the KL of its last step
    lr_kl_target: float = 0.002  # d_targ, KL per iteration that the adaptive stepsize aims at
    adam_eps: float = 1e-5  # Adam's epsilon, which keeps it from dividing by 0
    value_learning_rate: float = 1e-3  # stepsize of Adam for the value network
    num_value_epochs: int = 10  # epochs over each batch for the value network
    minibatch_size: int = 64  # M, samples per gradient step (of the value network)
    # extras
    orthogonal_init: bool = True  # orthogonal first weights, small for actions; else PyTorch's
    log_std_init: float = -0.5  # log std of the actions at the start


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
        ("num_value_epochs", 1, 1e9, "must be 1 or more"),
        ("lr_kl_target learning_rate value_learning_rate adam_eps", 1e-12, 1e9, "must be above 0"),
        ("log_std_init", -20, 20, "must be from -20 to 20"),
        ("gamma gae_lambda", 0, 1, "must be from 0 to 1"),
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
    if args.run_dir and Path(args.run_dir, "config.json").exists():
        refuse("run_dir", args.run_dir, "holds a run; --resume it, or name another folder")
    used = dict.fromkeys(("eval_episodes", "capture_video"), False)  # training does not
    used |= {"lr_kl_target": args.adaptive_lr}
    if args.resume is not None:
        used = {name: name == "resume" for name in given}
    elif args.evaluate is not None:
        players = ("evaluate", "eval_episodes", "capture_video", "seed")
        used = {name: name in players for name in given}
    for name, value in given.items():
        if value != getattr(Args, name) and not used.get(name, True):
            refuse(name, value, "would be ignored beside the other arguments, leave it out")


# ---------------------------------------------------------------------------------- environment
PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION  # all that the next mj_step depends on


def make_env(env_id: str, **kwargs) -> gym.Env:
    """gym.make, which adds the time limit; refuses what the networks here cannot play."""
    # Else HalfCheetah prints a warning about its old model, and logs it to the working directory.
    mujoco.set_mju_user_warning(lambda text: "settotalmass" in text or print(text, file=sys.stderr))
    try:
        env = gym.make(env_id, disable_env_checker=True, **kwargs)
    except (gym.error.Error, ImportError) as error:
        refuse("env_id", env_id, " ".join(str(error).split()))
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            refuse("env_id", env_id, f"give one whose spaces are vectors (Box), not {space}")
    return env


def env_state(env: gym.Env) -> dict | None:
    """All that the future of a MuJoCo environment depends on; None for other environments."""
    if not isinstance(env.unwrapped, MujocoEnv) or not env.has_wrapper_attr("_elapsed_steps"):
        return None
    model, data = env.unwrapped.model, env.unwrapped.data
    physics = np.empty(mujoco.mj_stateSize(model, PHYSICS))
    mujoco.mj_getState(model, data, physics, PHYSICS)
    return {
        "physics": physics.tolist(),
        # Positions of bodies lag a substep behind the physics; Ant and Humanoid are paid by them.
        "positions": (data.xpos.tolist(), data.xipos.tolist()),
        "elapsed_steps": env.get_wrapper_attr("_elapsed_steps"),
        "generator": json.dumps(env.unwrapped.np_random.bit_generator.state),
    }


def restore_env(env: gym.Env, state: dict) -> None:
    """Put an environment that has been reset into a state that env_state returned."""
    mujoco.mj_setState(env.unwrapped.model, env.unwrapped.data, state["physics"], PHYSICS)
    env.unwrapped.data.xpos[:], env.unwrapped.data.xipos[:] = state["positions"]
    env.set_wrapper_attr("_elapsed_steps", state["elapsed_steps"])
    env.unwrapped.np_random.bit_generator.state = json.loads(state["generator"])


# ------------------------------------------------------------------------------------- networks
class RunningMoments(nn.Module):
    """Mean and variance of all samples so far; buffers, so that they are saved with the model.

    Chan, Golub and LeVeque 1979, eq. (2.1).  # not in the PPO paper: OpenAI baselines
    """

    def __init__(self, *shape: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, batch: Tensor) -> None:
        """Add the samples of batch (B, *shape)."""
        delta, total = batch.mean(0) - self.mean, self.count + len(batch)
        squares = self.var * self.count + batch.var(0, correction=0) * len(batch)
        self.var.copy_((squares + delta**2 * self.count * len(batch) / total) / total)
        self.mean.add_(delta * len(batch) / total)
        self.count.copy_(total)

    def std(self) -> Tensor:
        return (self.var + 1e-8).sqrt()  # (*shape), never 0


class Agent(nn.Module):
    """The policy, a Gaussian whose std does not depend on the state, and the value network."""

    def __init__(self, obs_dim: int, action_dim: int, norm_obs: bool, orthogonal_init: bool = True):
        super().__init__()

        def network(outputs: int, output_gain: float) -> nn.Sequential:
            layers = [nn.Linear(obs_dim, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
            for layer, gain in zip(layers, (2**0.5, 2**0.5, output_gain)):
                if orthogonal_init:  # not in the paper: OpenAI baselines
                    nn.init.orthogonal_(layer.weight, gain)
                    nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor = network(action_dim, 0.01)  # (..., O) -> (..., A), the Gaussian's mean
        self.critic = network(1, 1.0)  # (..., O) -> (..., 1)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.obs_moments = RunningMoments(obs_dim)
        self.return_moments = RunningMoments()
        self.obs_limit = 10.0 if norm_obs else math.inf

    def normalise(self, obs: Tensor) -> Tensor:
        """What the networks see of raw observations (..., O) float64: (..., O) float32."""
        obs = (obs - self.obs_moments.mean) / self.obs_moments.std()
        return obs.clamp(-self.obs_limit, self.obs_limit).float()


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


def discounted_returns(rewards, ended, gamma: float, before) -> np.ndarray:
    """R_t = r_t + gamma R_{t-1}, anew in each episode; its std scales the rewards.

    rewards, ended (T, N), before: R of the step before (N,). Returns R (T, N).  # not in the paper
    """
    decay = gamma * (1 - ended)
    returns = rewards.copy()
    returns[0] += gamma * np.asarray(before)
    for t in range(1, len(rewards)):
        returns[t] += decay[t - 1] * returns[t - 1]
    return returns


def whiten(x: Tensor) -> Tensor:
    """Shift and scale x (B,) to mean 0 and std 1.  # not in the paper: OpenAI baselines"""
    return (x - x.mean()) / (x.std() + 1e-8)


def gaussian_logprob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log pi(a|s): actions, mean (B, A), log_std (A,) -> (B,)."""
    z = (actions - mean) / log_std.exp()
    return (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """S[pi] in nats: log_std (A,) -> scalar."""
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def gaussian_kl_old_new(old_mean, old_log_std, mean, log_std) -> Tensor:
    """KL(pi_old || pi), exact, the old policy first: means (B, A), log stds (A,) -> (B,).

    sum over the actions of log(std / std_old) + (std_old^2 + (mean_old - mean)^2) / (2 std^2) - 1/2
    """
    squares = (2 * old_log_std).exp() + (old_mean - mean) ** 2
    return (log_std - old_log_std + squares / (2 * (2 * log_std).exp()) - 0.5).sum(-1)


def loss_pg(logprob: Tensor, advantages: Tensor) -> Tensor:
    """Policy gradient loss, PPO (1707.06347) eq. (2), negated: (B,), (B,) -> scalar.

    L^PG = E[ log pi(a|s) A ]
    """
    return -(logprob * advantages).mean()


def adapt_learning_rate(learning_rate: float, kl: float, kl_target: float) -> float:
    """The paper's comparator adapts its stepsize to d = E[KL(pi_old || pi)], once per iteration:

    d > 2 d_targ: alpha <- alpha / 1.5        d < d_targ / 2: alpha <- 1.5 alpha
    """
    if kl > 2 * kl_target:
        learning_rate /= 1.5
    elif kl < kl_target / 2:
        learning_rate *= 1.5
    return min(max(learning_rate, 1e-6), 1.0)  # not in the paper: so that it can come back


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


def value_step(critic, params, minibatch, adam, adam_eps: float) -> Tensor:
    """One gradient step on the value network's squared error, compiled as one graph; the loss."""
    obs, returns = minibatch  # (M, O), (M,)
    loss = ((critic(obs).squeeze(-1) - returns) ** 2).mean()
    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        adam_step(params, grads, *adam, adam_eps)
    return loss.detach()


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
    versions = {name: version(name) for name in ("torch", "gymnasium", "mujoco", "numpy")}
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


def save_checkpoint(path: Path, agent, generator, envs, run) -> None:
    """Save all that the rest of the run depends on, as tensors and plain Python types."""
    checkpoint = {"agent": agent.state_dict(), "generator": generator.get_state()}
    checkpoint |= {"envs": [env_state(env) for env in envs], "run": vars(run)}
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    write_file(path, buffer.getvalue())


def restore_checkpoint(checkpoint: dict, agent, generator, envs, run) -> None:
    """Put all back where save_checkpoint found it."""
    agent.load_state_dict(checkpoint["agent"])
    generator.set_state(checkpoint["generator"])
    vars(run).update(checkpoint["run"])
    for n, (env, state) in enumerate(zip(envs, checkpoint["envs"])):
        if state is not None:
            restore_env(env, state)
        else:  # not MuJoCo: a new episode begins
            run.observations[n] = env.reset()[0].tolist()
            run.episode_return[n] = run.episode_length[n] = run.discounted_return[n] = 0


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
    """Play a saved policy: actions sampled as in training, statistics frozen, seed args.seed."""
    saved, checkpoint = load_run("evaluate", args.evaluate)
    if checkpoint is None:
        refuse("evaluate", args.evaluate, "has no checkpoint.pt yet, train it first")
    if args.capture_video and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        renderers = [name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)]
        if not renderers:
            refuse("capture_video", "", "needs a screen, EGL or OSMesa: apt-get install libegl1")
        os.environ.setdefault("MUJOCO_GL", renderers[0].lower())
    env = make_env(saved.env_id, render_mode="rgb_array" if args.capture_video else None)
    if args.capture_video:
        if renderer := getattr(env.unwrapped, "mujoco_renderer", None):  # follow who runs away
            camera = mujoco.mj_name2id(env.unwrapped.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
            renderer.camera_id = camera  # -1, the one that does not move, if there is no "track"
        warnings.filterwarnings("ignore", ".*Overwriting existing videos")
        env = gym.wrappers.RecordVideo(env, args.evaluate, lambda n: n == 0, name_prefix="video")
    agent = Agent(env.observation_space.shape[0], env.action_space.shape[0], saved.norm_obs)
    agent.load_state_dict(checkpoint["agent"])
    generator = torch.Generator().manual_seed(args.seed)
    returns = np.zeros(args.eval_episodes)
    for episode in range(args.eval_episodes):
        obs, _ = env.reset(seed=args.seed + episode)
        ended = False
        while not ended:
            with torch.no_grad():
                mean, std = agent.actor(agent.normalise(torch.from_numpy(obs))), agent.log_std.exp()
            action = torch.normal(mean, std, generator=generator).numpy()  # (A,)
            action = action.clip(env.action_space.low, env.action_space.high)
            obs, reward, terminated, truncated, _ = env.step(action)
            returns[episode] += reward
            ended = terminated or truncated
    env.close()
    mean, std = returns.mean(), returns.std()
    print(f"{saved.env_id}: return {mean:.1f} ± {std:.1f}, mean ± std of {len(returns)} episodes")
    if args.capture_video:
        print(f"video of the first: {args.evaluate}/video-episode-0.mp4")
    return {"mean": float(mean), "std": float(std), "returns": returns.tolist()}


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

    # [same: setup]
    # T steps, N environments, O observation, A action, B = N T samples a batch, M a minibatch
    T, N, M = args.num_steps, args.num_envs, args.minibatch_size
    B = N * T
    num_iterations = args.total_timesteps // B
    seeds = np.random.SeedSequence(args.seed).generate_state(N + 2).tolist()
    envs = [make_env(args.env_id) for _ in range(N)]
    observations = np.stack([env.reset(seed=seeds[n])[0] for n, env in enumerate(envs)])  # (N, O)
    low, high = envs[0].action_space.low, envs[0].action_space.high  # (A,)
    obs, next_obs = np.zeros((2, T, *observations.shape))  # (T, N, O) each
    actions = np.zeros((T, N, len(low)), np.float32)  # (T, N, A)
    rewards, terminated, ended = np.zeros((3, T, N))  # (T, N) each
    torch.manual_seed(seeds[N])
    agent = Agent(observations.shape[1], len(low), args.norm_obs, args.orthogonal_init)
    agent.log_std.data.fill_(args.log_std_init)
    generator = torch.Generator().manual_seed(seeds[N + 1])  # of the actions and the minibatches
    # What changes as the run goes on, besides the agent, the generator and the environments:
    run = SimpleNamespace(iteration=1, global_step=0, seconds=0.0, episodes_size=0)
    run.observations = observations.tolist()
    run.episode_return, run.episode_length, run.discounted_return = [0.0] * N, [0] * N, [0.0] * N
    # [/same]
    policy_params = [*agent.actor.parameters(), agent.log_std]
    value_params = list(agent.critic.parameters())
    step = compile_or_fall_back(value_step) if args.compile else value_step
    run.learning_rate, run.gradient_steps = args.learning_rate, 0
    run.policy_m = [torch.zeros_like(param) for param in policy_params]  # Adam's moments
    run.policy_v = [torch.zeros_like(param) for param in policy_params]
    run.m = [torch.zeros_like(param) for param in value_params]  # and the value network's
    run.v = [torch.zeros_like(param) for param in value_params]
    # [same: start]
    if checkpoint is not None:
        restore_checkpoint(checkpoint, agent, generator, envs, run)
    observations = np.array(run.observations)  # (N, O)
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
            run.iteration, run.observations = iteration, observations.tolist()
            run.seconds, run.episodes_size = time.perf_counter() - start, episodes.tell()
            save_checkpoint(run_dir / "checkpoint.pt", agent, generator, envs, run)
        if finished or stop_signals:
            break
        iteration_start, old_episodes = time.perf_counter(), len(returns)

        # (1) Run pi_old in each of N environments for T steps.
        # The policy in numpy: 12 us a step, torch takes 60, which would be a third of the run.
        obs_mean, obs_std = agent.obs_moments.mean.numpy(), agent.obs_moments.std().numpy()
        actor = [(x.weight.detach().numpy().T, x.bias.detach().numpy()) for x in agent.actor[::2]]
        std, limit = agent.log_std.detach().exp().numpy(), agent.obs_limit  # (A,)
        noise = torch.randn((T, N, len(low)), generator=generator).numpy() * std  # (T, N, A)
        for t in range(T):
            obs[t] = observations
            x = ((observations - obs_mean) / obs_std).clip(-limit, limit).astype(np.float32)
            for weight, bias in actor[:-1]:
                x = np.tanh(x @ weight + bias)  # (N, 64)
            actions[t] = x @ actor[-1][0] + actor[-1][1] + noise[t]
            run.global_step += N
            if not np.isfinite(actions[t]).all():  # before it reaches the physics
                last = {"observation": obs[t, None], "action": actions[t, None]}
                check_finite(run.global_step, args, **last)
            # The environment gets a clipped copy; the policy learns from what it sampled.
            clipped_actions = actions[t].clip(low, high)  # (N, A)
            for n, env in enumerate(envs):
                observations[n], reward, death, cut, _ = env.step(clipped_actions[n])
                next_obs[t, n], rewards[t, n] = observations[n], reward
                terminated[t, n], ended[t, n] = death, death or cut
                run.episode_return[n] += float(reward)
                run.episode_length[n] += 1
                if death or cut:
                    returns.append(run.episode_return[n])
                    row = run.global_step, n, returns[-1], run.episode_length[n]
                    print(*row, f"{time.perf_counter() - start:.2f}", sep=",", file=episodes)
                    run.episode_return[n], run.episode_length[n] = 0.0, 0
                    observations[n], _ = env.reset()
        check_finite(run.global_step - B + N, args, observation=next_obs, reward=rewards)

        # (2) Estimate advantages.
        scaled_rewards = rewards  # (T, N)
        if args.norm_reward:  # not in the paper: OpenAI baselines
            b_discounted = discounted_returns(rewards, ended, args.gamma, run.discounted_return)
            run.discounted_return = (b_discounted[-1] * (1 - ended[-1])).tolist()
            agent.return_moments.update(torch.from_numpy(b_discounted).flatten())
            scaled_rewards = (rewards / agent.return_moments.std().numpy()).clip(-10, 10)
        with torch.no_grad():
            b_obs = agent.normalise(torch.from_numpy(obs).flatten(0, 1))  # (B, O)
            b_next_obs = agent.normalise(torch.from_numpy(next_obs).flatten(0, 1))  # (B, O)
            b_actions = torch.from_numpy(actions).flatten(0, 1)  # (B, A)
            b_old_mean, old_log_std = agent.actor(b_obs), agent.log_std.clone()  # (B, A), (A,)
            b_noise = torch.from_numpy(noise).flatten(0, 1)  # (B, A)
            same = torch.allclose(b_old_mean + b_noise, b_actions, rtol=1e-3, atol=1e-3)
            assert same, "the numpy policy of step (1) is not agent.actor: adapt it"
            b_values = agent.critic(b_obs).squeeze(-1)  # (B,)
            b_next_values = agent.critic(b_next_obs).squeeze(-1)  # (B,)
            passes, value_passes = 1.0, 2.0  # the cost meter: passes over the whole batch
        values, next_values = b_values.view(T, N).numpy(), b_next_values.view(T, N).numpy()
        gae = (values, next_values, terminated, ended, args.gamma, args.gae_lambda)
        b_advantages = torch.from_numpy(compute_gae(scaled_rewards, *gae)).float().flatten()  # (B,)
        b_returns = b_advantages + b_values  # (B,), V^targ
        if args.norm_adv:  # not in the paper: OpenAI baselines
            b_advantages = whiten(b_advantages)
        # [/same]

        # (3) One gradient step on L^PG over the whole batch.
        logprob = gaussian_logprob(b_actions, agent.actor(b_obs), agent.log_std)  # (B,)
        policy_loss = loss_pg(logprob, b_advantages)
        grads = torch.autograd.grad(policy_loss, policy_params)
        passes += 2
        stepsize = torch.tensor(run.learning_rate / (1 - 0.9**iteration))
        v_scale = torch.tensor(1 / (1 - 0.999**iteration))
        with torch.no_grad():
            adam = (run.policy_m, run.policy_v, stepsize, v_scale)
            adam_step(policy_params, grads, *adam, args.adam_eps)
            new_policy = agent.actor(b_obs), agent.log_std  # (B, A), (A,)
            kl = gaussian_kl_old_new(b_old_mean, old_log_std, *new_policy).mean().item()
            passes += 1

        # (4) Adapt the stepsize, fit the value network, report.
        learning_rate = run.learning_rate
        if args.adaptive_lr:
            run.learning_rate = adapt_learning_rate(learning_rate, kl, args.lr_kl_target)
        # [same: value]
        value_loss = torch.zeros(())
        for epoch in range(args.num_value_epochs):
            order = torch.randperm(B, generator=generator)
            for minibatch in zip(b_obs[order].split(M), b_returns[order].split(M)):
                run.gradient_steps += 1
                stepsize = torch.tensor(args.value_learning_rate / (1 - 0.9**run.gradient_steps))
                v_scale = torch.tensor(1 / (1 - 0.999**run.gradient_steps))
                adam = (run.m, run.v, stepsize, v_scale)
                value_loss += step(agent.critic, value_params, minibatch, adam, args.adam_eps)
                value_passes += 2 * M / B
        metrics = {"losses/value_loss": value_loss.item() / (args.num_value_epochs * B // M)}
        # [/same]
        metrics["losses/policy_loss"] = policy_loss.item()
        metrics["losses/entropy"] = gaussian_entropy(old_log_std).item()
        metrics["losses/kl_old_new"] = kl
        metrics["charts/learning_rate"] = learning_rate
        # [same: report]
        check_finite(run.global_step, args, loss=np.array([list(metrics.values())]))
        if args.norm_obs:  # from the next rollout on
            agent.obs_moments.update(torch.from_numpy(obs).flatten(0, 1))
        metrics["losses/explained_variance"] = explained_variance(b_values, b_returns)
        metrics["charts/passes_per_update"], metrics["charts/value_passes"] = passes, value_passes
        metrics["charts/clipped_actions"] = np.mean((actions < low) | (actions > high))
        metrics["charts/SPS"] = B / (time.perf_counter() - iteration_start)
        report(writer, bar, run.global_step, metrics, returns, returns[old_episodes:])

    for resource in (*envs, bar, writer, episodes):
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
    # [/same]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        main(tyro.cli(Args))
    except (FloatingPointError, OSError) as error:
        sys.exit(f"{Path(__file__).name}: stopped, the last checkpoint is kept: {error}")
