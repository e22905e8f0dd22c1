"""What the benchmarks run, as data: settings x environments x seeds.

A setting is a command line; the runner adds --env-id, --seed, --total-timesteps and --run-dir, the
first and the third only where the script has them.
What a suite takes from another suite's results instead of running it again is `borrowed`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

MUJOCO = (
    "HalfCheetah-v5",
    "Hopper-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
)

GAMES = tuple(  # Schulman et al. 2017, Table 6
    """
    Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Bowling
    Boxing Breakout Centipede ChopperCommand CrazyClimber DemonAttack DoubleDunk Enduro
    FishingDerby Freeway Frostbite Gopher Gravitar IceHockey Jamesbond Kangaroo Krull
    KungFuMaster MontezumaRevenge MsPacman NameThisGame Pitfall Pong PrivateEye Qbert Riverraid
    RoadRunner Robotank Seaquest SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown
    Venture VideoPinball WizardOfWor Zaxxon
    """.split()
)


@dataclass(frozen=True)
class Suite:
    settings: dict[str, str]  # name: command line
    envs: tuple[str, ...]
    steps: int | dict[str, int] | None  # per run, or per run in each env; None: it has no such flag
    seeds: tuple[int, ...] = (1, 2, 3)
    borrowed: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: (suite, setting)
    all_cores: bool = False  # whether a run has every core; else it has one thread
    env_flag: bool = True  # whether the script takes --env-id
    scalars: tuple[str, ...] = ()  # TensorBoard scalars that results keep whole

    def budget(self, env: str) -> int | None:
        """Steps of a run in env; None: the script has no --total-timesteps."""
        return self.steps[env] if isinstance(self.steps, dict) else self.steps


TABLE1 = {  # Schulman et al. 2017, Table 1
    "none": "ppo_continuous.py --objective none",
    "clip-0.1": "ppo_continuous.py --objective clip --clip-coef 0.1",
    "clip-0.2": "ppo_continuous.py --objective clip --clip-coef 0.2",
    "clip-0.3": "ppo_continuous.py --objective clip --clip-coef 0.3",
    "adaptive-0.003": "ppo_continuous.py --objective kl-adaptive --kl-target 0.003",
    "adaptive-0.01": "ppo_continuous.py --objective kl-adaptive --kl-target 0.01",
    "adaptive-0.03": "ppo_continuous.py --objective kl-adaptive --kl-target 0.03",
    "fixed-0.3": "ppo_continuous.py --objective kl-fixed --kl-beta 0.3",
    "fixed-1": "ppo_continuous.py --objective kl-fixed --kl-beta 1",
    "fixed-3": "ppo_continuous.py --objective kl-fixed --kl-beta 3",
    "fixed-10": "ppo_continuous.py --objective kl-fixed --kl-beta 10",
}

QUICK = {  # eager: compiling would take longer than it saves
    "none": "ppo_continuous.py --objective none --no-compile",
    "clip-0.2": "ppo_continuous.py --objective clip --clip-coef 0.2 --no-compile",
}

RANDOM = {  # what the scores call 0; the first is the report's default
    "untrained": "benchmarks/random_policy.py --policy untrained",
    "untrained-std-1": "benchmarks/random_policy.py --policy untrained --log-std-init 0",
    "uniform": "benchmarks/random_policy.py --policy uniform",
}

FIGURE3 = {  # room for a2c and cem
    "trpo": "trpo_continuous.py",
    "vpg": "vpg_continuous.py",
}

DETAILS = {  # what the paper leaves out, switched off one at a time
    "no-norm-obs": "ppo_continuous.py --no-norm-obs",
    "no-norm-reward": "ppo_continuous.py --no-norm-reward",
    "no-norm-adv": "ppo_continuous.py --no-norm-adv",
    "no-anneal-lr": "ppo_continuous.py --no-anneal-lr",
    "no-orthogonal-init": "ppo_continuous.py --no-orthogonal-init",
    "adam-eps-1e-8": "ppo_continuous.py --adam-eps 1e-8",
    "log-std-init-0": "ppo_continuous.py --log-std-init 0",
}

DEFAULTS = {  # the candidates for the defaults, on seeds that no other suite sees
    "std-0.61": "ppo_continuous.py --log-std-init -0.5",
    "std-0.37": "ppo_continuous.py --log-std-init -1",
    "std-1": "ppo_continuous.py --log-std-init 0",
}

ALL_OFF = (
    "ppo_continuous.py --no-norm-obs --no-norm-reward --no-norm-adv --no-anneal-lr"
    " --no-orthogonal-init --adam-eps 1e-8 --log-std-init 0"
)
TABLE1_2017 = {  # Table 1 by the letter of the paper
    "none": f"{ALL_OFF} --objective none",
    "clip-0.2": f"{ALL_OFF} --objective clip --clip-coef 0.2",
}

HUMANOID = {  # Table 4
    "ppo": "ppo_continuous.py --num-envs 32 --num-steps 512 --num-epochs 15 --minibatch-size 4096"
    " --log-std-schedule -0.7 -1.6",
}

ATARI = {"ppo": "ppo_atari.py"}  # Table 5
AGGRESSIVE = "ppo_rlhf_tiny.py --learning-rate 1e-3 --num-epochs 8 --max-grad-norm 0"
RLHF = {  # by default clip, beta 0.1, stepsize 3e-4, 4 epochs, gradient norm 1
    "beta-0.1": "ppo_rlhf_tiny.py",
    "beta-0": "ppo_rlhf_tiny.py --ref-kl-coef 0",
    "none-beta-0.1": "ppo_rlhf_tiny.py --objective none",
    "none-beta-0": "ppo_rlhf_tiny.py --objective none --ref-kl-coef 0",
    "gold-beta-0": "ppo_rlhf_tiny.py --reward gold --ref-kl-coef 0",
    "adaptive": "ppo_rlhf_tiny.py --ref-kl-controller adaptive",
    "beta-0.03": "ppo_rlhf_tiny.py --ref-kl-coef 0.03",
    "beta-0.3": "ppo_rlhf_tiny.py --ref-kl-coef 0.3",
    "best-of-n": "benchmarks/best_of_n.py",
    "aggressive-beta-0.1": AGGRESSIVE,
    "aggressive-beta-0": f"{AGGRESSIVE} --ref-kl-coef 0",
    "aggressive-none-beta-0.1": f"{AGGRESSIVE} --objective none",
    "aggressive-none-beta-0": f"{AGGRESSIVE} --objective none --ref-kl-coef 0",
}
RLHF_SCALARS = ("rollout/proxy", "rollout/gold", "rollout/kl_ref", "losses/kl_old_new")
RLHF_SCALARS += ("eval/proxy", "eval/gold", "eval/kl_ref", "eval/eos", "best_of_n/proxy")
RLHF_SCALARS += ("best_of_n/gold", "stages/reward_model_accuracy", "stages/sft_loss")

MILLION = 1_000_000
ATARI_SMALL = {"Pong": 4 * MILLION, "Breakout": MILLION}
DETAILS_ENVS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Swimmer-v5")

SUITES = {
    "table1": Suite(TABLE1, MUJOCO, MILLION),  # 231 runs
    "quick": Suite(QUICK, ("InvertedPendulum-v5", "Reacher-v5"), 40_960, seeds=(1,)),
    "random": Suite(RANDOM, MUJOCO, None),
    "figure3": Suite(FIGURE3, MUJOCO, MILLION, borrowed={"ppo": ("table1", "clip-0.2")}),
    "details": Suite(DETAILS, DETAILS_ENVS, MILLION, borrowed={"all-on": ("table1", "clip-0.2")}),
    "defaults": Suite(DEFAULTS, DETAILS_ENVS, MILLION, seeds=(4, 5, 6)),
    "table1-2017": Suite(TABLE1_2017, ("HalfCheetah-v5", "Hopper-v5"), MILLION),
    "humanoid": Suite(HUMANOID, ("Humanoid-v5",), 50 * MILLION),
    "atari": Suite(ATARI, GAMES, 10 * MILLION, all_cores=True),  # 147 runs
    "atari-small": Suite(ATARI, tuple(ATARI_SMALL), ATARI_SMALL, seeds=(1,), all_cores=True),
    # bfloat16's second seed: run atari-small --only env=Breakout --seeds 1 2
    "atari-bf16": Suite(
        {"float32": "ppo_atari.py --no-bf16"},
        ("Breakout",),
        MILLION,
        seeds=(1, 2),
        borrowed={"bfloat16": ("atari-small", "ppo")},
        all_cores=True,
    ),
    "rlhf": Suite(RLHF, ("kjv",), None, env_flag=False, scalars=RLHF_SCALARS),  # 39 runs
}
ATARI_SUITES = ("atari", "atari-small")  # with the paper's Table 6 to stand beside


class Run(NamedTuple):
    """One run of a suite. `command` is the script and its flags, --run-dir apart."""

    setting: str
    env: str
    seed: int
    command: str
    scalars: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.setting}/{self.env}/{self.seed}"


def suite_of(name: str) -> Suite:
    """The suite that results called `name` belong to: table1, but also table1@fork.

    Raises KeyError, with the names there are, for a name that belongs to none.
    """
    suite = name.partition("@")[0]
    if suite not in SUITES:
        raise KeyError(f"no suite {suite}: take one of {', '.join(SUITES)}")
    return SUITES[suite]


def runs_of(suite: Suite, seeds=None, steps: int | None = None, script=None) -> list[Run]:
    """All runs of a suite, the first seed of everything first.

    seeds, steps: instead of the suite's own. script: a path instead of the settings' script.
    """
    runs = []
    for seed in seeds or suite.seeds:
        for setting, command in suite.settings.items():
            if script is not None:
                command = " ".join([str(script), *command.split()[1:]])
            for env in suite.envs:
                total = steps or suite.budget(env)
                budget = f" --total-timesteps {total}" if suite.steps else ""
                world = f" --env-id {env}" if suite.env_flag else ""
                flags = f"{command}{world} --seed {seed}{budget}"
                runs.append(Run(setting, env, seed, flags, suite.scalars))
    return runs
