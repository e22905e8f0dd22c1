"""The formulas that TRPO and vanilla policy gradient add, against independent oracles."""

import math

import numpy as np
import pytest
import torch
from conftest import scalars, small_args

import trpo_continuous as trpo
import vpg_continuous as vpg


# ------------------------------------------------------------------------------------------ VPG
def test_loss_pg_has_the_score_function_gradient():
    """Against d/d mean log N(a; mean, std) = (a - mean) / std^2, by hand."""
    torch.manual_seed(0)
    mean = torch.randn(8, 3, requires_grad=True)
    log_std, actions, A = torch.randn(3) * 0.3, torch.randn(8, 3), torch.randn(8)
    vpg.loss_pg(vpg.gaussian_logprob(actions, mean, log_std), A).backward()
    expected = -(actions - mean.detach()) / (2 * log_std).exp() * A[:, None] / 8
    torch.testing.assert_close(mean.grad, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    "kl,expected", [(0.0009, 1.5), (0.0011, 1), (0.002, 1), (0.0039, 1), (0.0041, 1 / 1.5)]
)
def test_adapt_learning_rate_is_the_comparators_rule(kl, expected):
    assert vpg.adapt_learning_rate(1e-3, kl, 0.002) == pytest.approx(1e-3 * expected)


def test_the_stepsize_comes_back_from_both_ends():
    rate = 1e-3
    for kl, factor in ((1.0, 1.5), (0.0, 1 / 1.5)):
        for _ in range(100):
            rate = vpg.adapt_learning_rate(rate, kl, 0.002)
        assert 0 < rate < math.inf
        assert vpg.adapt_learning_rate(rate, 1.0 - kl, 0.002) == pytest.approx(rate * factor)


def test_the_stepsize_of_a_run_follows_its_kl_and_stays_without_the_flag():
    vpg.main(small_args(vpg, run_dir="a"))
    rates, kls = (
        [value for _, value in scalars("a", tag)]
        for tag in ("charts/learning_rate", "losses/kl_old_new")
    )
    expected = [vpg.adapt_learning_rate(r, kl, 0.002) for r, kl in zip(rates, kls)]
    np.testing.assert_allclose(rates[1:], expected[:-1], rtol=1e-5)
    assert len(set(rates)) > 1
    vpg.main(small_args(vpg, run_dir="b", adaptive_lr=False))
    assert len({value for _, value in scalars("b", "charts/learning_rate")}) == 1


@pytest.mark.parametrize("algorithm", [vpg, trpo])
def test_value_step_is_torchs_adam_on_the_squared_error(algorithm):
    torch.manual_seed(0)
    ours, theirs = (
        torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        for _ in range(2)
    )
    theirs.load_state_dict(ours.state_dict())
    params = list(ours.parameters())
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    optimiser = torch.optim.Adam(theirs.parameters(), lr=1e-3, eps=1e-5)
    for t in range(1, 30):
        obs, returns = torch.randn(16, 3), torch.randn(16)
        adam = (m, v, torch.tensor(1e-3 / (1 - 0.9**t)), torch.tensor(1 / (1 - 0.999**t)))
        loss = algorithm.value_step(ours, params, (obs, returns), adam, 1e-5)
        optimiser.zero_grad()
        expected = torch.nn.functional.mse_loss(theirs(obs)[:, 0], returns)
        expected.backward()
        optimiser.step()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for p, q in zip(params, theirs.parameters()):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-4)


# ----------------------------------------------------------------------------------------- TRPO
class Policy(torch.nn.Module):
    """A small Gaussian policy in double precision: 2 observations, 2 actions, 14 parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.actor = torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2)
        ).double()
        self.log_std = torch.nn.Parameter(torch.tensor([-0.3, 0.2], dtype=torch.float64))

    def batch(self, size=64):
        obs, advantages = torch.randn(size, 2).double(), torch.randn(size).double()
        with torch.no_grad():
            mean, log_std = self.actor(obs), self.log_std.clone()
            actions = mean + log_std.exp() * torch.randn(size, 2)
            logprob = trpo.gaussian_logprob(actions, mean, log_std)
        return obs, actions, advantages, mean, log_std, logprob


def mean_kl_at(policy, batch):
    """theta -> E[KL(pi_old || pi_theta)], by torch.distributions on a stateless copy."""
    from torch.distributions import Independent, Normal, kl_divergence

    obs, _, _, old_mean, old_log_std, _ = batch
    shapes = [p.shape for p in policy.parameters()]
    names = [name for name, _ in policy.named_parameters()]

    def kl(theta):
        parts = theta.split([shape.numel() for shape in shapes])
        values = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes)}
        log_std = values.pop("log_std")
        actor = {name.removeprefix("actor."): value for name, value in values.items()}
        mean = torch.func.functional_call(policy.actor, actor, (obs,))
        old = Independent(Normal(old_mean, old_log_std.exp()), 1)
        return kl_divergence(old, Independent(Normal(mean, log_std.exp()), 1)).mean()

    return kl


@pytest.fixture
def policy():
    return Policy()


@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_fisher_vector_product_is_the_hessian_of_the_kl(policy, damping):
    batch = policy.batch()
    params = list(policy.parameters())
    theta = torch.nn.utils.parameters_to_vector(params).detach()
    hessian = torch.autograd.functional.hessian(mean_kl_at(policy, batch), theta)
    _, kl = trpo.surrogate_and_kl(policy, batch)
    kl_gradient = trpo.flat_gradient(kl, params, create_graph=True)
    assert kl_gradient.abs().max() < 1e-12  # pi_old is where the KL is least
    P = len(theta)
    columns = [
        trpo.fisher_vector_product(kl_gradient, params, damping, e)
        for e in torch.eye(P, dtype=torch.float64)
    ]
    ours = torch.stack(columns, dim=1)
    torch.testing.assert_close(ours, hessian + damping * torch.eye(P).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(ours, ours.T)
    assert hessian.abs().max() > 0.1


def test_fisher_vector_product_is_the_finite_difference(policy):
    batch = policy.batch()
    params = list(policy.parameters())
    theta = torch.nn.utils.parameters_to_vector(params).detach()
    kl_at = mean_kl_at(policy, batch)

    def gradient(at):
        at = at.clone().requires_grad_()
        return torch.autograd.grad(kl_at(at), at)[0]

    v, h = torch.randn_like(theta), 1e-5
    expected = (gradient(theta + h * v) - gradient(theta - h * v)) / (2 * h)
    _, kl = trpo.surrogate_and_kl(policy, batch)
    kl_gradient = trpo.flat_gradient(kl, params, create_graph=True)
    ours = trpo.fisher_vector_product(kl_gradient, params, 0.0, v)
    torch.testing.assert_close(ours, expected, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 5, 20])
def test_conjugate_gradient_solves_positive_definite_systems_in_n_steps(n):
    torch.manual_seed(n)
    root = torch.randn(n, n, dtype=torch.float64)
    H, b = root @ root.T / n + torch.eye(n).double(), torch.randn(n, dtype=torch.float64)
    x, iterations = trpo.conjugate_gradient(lambda v: H @ v, b, n)
    torch.testing.assert_close(x, torch.linalg.solve(H, b), atol=1e-7, rtol=1e-6)
    assert iterations <= n
    few, _ = trpo.conjugate_gradient(lambda v: H @ v, b, max(1, n // 2))
    # each iterate is the best of its Krylov space: never worse than 0, by the energy it minimises
    assert few @ H @ few / 2 - b @ few <= 1e-12


def test_conjugate_gradient_of_a_zero_gradient_is_zero():
    x, iterations = trpo.conjugate_gradient(lambda v: v, torch.zeros(4), 10)
    assert iterations == 0 and torch.equal(x, torch.zeros(4))


def test_one_natural_gradient_step_on_a_gaussian_bandit_is_the_closed_form():
    """One state, a ~ N(mu, std). Natural gradient of E[r A]: std^2 E[A (a - mu) / std^2] for mu
    and E[A (z^2 - 1)] / 2 for log std, since the Fisher matrix is diag(1 / std^2, 2)."""
    torch.manual_seed(0)
    policy = Policy()
    policy.actor = torch.nn.Linear(1, 1, bias=False).double()
    policy.log_std = torch.nn.Parameter(torch.tensor([-0.4], dtype=torch.float64))
    mu, std = policy.actor.weight.item(), math.exp(-0.4)
    a = mu + std * torch.randn(500, 1, dtype=torch.float64)
    A = torch.randn(500).double()
    obs, mean = torch.ones(500, 1).double(), torch.full((500, 1), mu).double()
    log_std = policy.log_std.detach().clone()
    batch = (obs, a, A, mean, log_std, trpo.gaussian_logprob(a, mean, log_std))
    params = [policy.actor.weight, policy.log_std]
    surrogate, kl = trpo.surrogate_and_kl(policy, batch)
    gradient = trpo.flat_gradient(surrogate, params)
    kl_gradient = trpo.flat_gradient(kl, params, create_graph=True)
    s, _ = trpo.conjugate_gradient(
        lambda v: trpo.fisher_vector_product(kl_gradient, params, 0.0, v), gradient, 10
    )
    z = (a[:, 0] - mu) / std
    expected = torch.stack([std * (A * z).mean(), (A * (z**2 - 1)).mean() / 2])
    torch.testing.assert_close(s, expected, atol=1e-9, rtol=1e-7)
    # and sqrt(2 delta / s'Hs) s has, to second order, a KL of delta
    curvature = s[0] ** 2 / std**2 + 2 * s[1] ** 2
    theta = torch.tensor([mu, -0.4]).double() + (2e-6 / curvature).sqrt() * s
    _, kl = trpo.policy_at(policy, params, batch, theta)
    assert kl == pytest.approx(1e-6, rel=0.01)


def test_line_search_takes_the_longest_step_that_fits():
    """Surrogate theta, KL theta^2: of 1, 0.8, 0.64, ... the first with theta^2 <= 0.5 is 0.64."""
    theta, accepted, tries = trpo.line_search(
        lambda x: (x.item(), x.item() ** 2), torch.zeros(1), torch.ones(1), 0.0, 0.5, 10
    )
    assert accepted and tries == 3 and theta.item() == pytest.approx(0.64)


@pytest.mark.parametrize("surrogate,kl", [(-1.0, 0.0), (1.0, 9.0), (0.0, 0.0), (math.nan, 0.0)])
def test_line_search_rejects_and_returns_theta_old(surrogate, kl):
    old = torch.randn(5)
    theta, accepted, tries = trpo.line_search(
        lambda x: (surrogate, kl), old, torch.randn(5), 0.0, 0.5, 4
    )
    assert theta is old and not accepted and tries == 4


def policy_of(run_dir):
    state = torch.load(f"{run_dir}/checkpoint.pt", weights_only=True)["agent"]
    return {k: v for k, v in state.items() if k.startswith("actor") or k == "log_std"}


def test_a_rejected_update_restores_the_policy_bit_for_bit(monkeypatch):
    policy_at = trpo.policy_at
    too_far = lambda *args: (policy_at(*args)[0], 1.0)  # noqa: E731
    monkeypatch.setattr(trpo, "policy_at", too_far)
    trpo.main(small_args(trpo, run_dir="a", save_every=1, log_std_init=0.0))
    assert [value for _, value in scalars("a", "charts/rejected_steps")] == list(range(1, 11))
    assert {value for _, value in scalars("a", "charts/line_search_tries")} == {10.0}
    torch.manual_seed(int(np.random.SeedSequence(1).generate_state(3)[1]))
    first = trpo.Agent(4, 1, True).state_dict()
    for name, value in policy_of("a").items():
        assert torch.equal(value, first[name]), name


def test_zero_advantages_are_survived_and_counted(monkeypatch):
    monkeypatch.setattr(trpo, "whiten", lambda x: x * 0)
    trpo.main(small_args(trpo, run_dir="a"))
    assert [value for _, value in scalars("a", "charts/rejected_steps")] == list(range(1, 11))
    assert {value for _, value in scalars("a", "losses/kl_old_new")} == {0.0}


def test_every_update_of_a_run_keeps_the_kl_and_improves_the_surrogate():
    args = small_args(
        trpo, run_dir="a", num_steps=512, total_timesteps=512 * 20, env_id="Hopper-v5"
    )
    trpo.main(args)
    kls = [value for _, value in scalars("a", "losses/kl_old_new")]
    gains = [value for _, value in scalars("a", "losses/surrogate_gain")]
    rejected = [value for _, value in scalars("a", "charts/rejected_steps")]
    assert max(kls) <= 0.01 and np.median(kls) > 0.003 and min(gains) >= 0
    assert rejected[-1] <= 3
    assert sum(gain > 0 for gain in gains) == 20 - rejected[-1]


def test_the_cost_meter_of_trpo_counts_what_happened():
    """1 for pi_old, 3 + 2 (N_CG + 1) for the step, N_LS + 1 for the search and the report."""
    trpo.main(small_args(trpo, run_dir="a"))
    tries = [value for _, value in scalars("a", "charts/line_search_tries")]
    passes = [value for _, value in scalars("a", "charts/passes_per_update")]
    np.testing.assert_allclose(passes, [1 + 3 + 2 * 11 + n + 1 for n in tries])
