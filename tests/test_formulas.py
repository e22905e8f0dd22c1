"""Every formula of the MuJoCo scripts against an oracle that is not a copy of it."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Independent, Normal, kl_divergence

import ppo_continuous as ppo


# ------------------------------------------------------------------------------- advantages
def gae_by_the_sum(rewards, values, next_values, terminated, ended, gamma, lam):
    """Eqs. (11) and (12) of the paper, term by term, for one environment."""
    T = len(rewards)
    advantages = np.zeros(T)
    for t in range(T):
        for k in range(t, T):
            bootstrap = 0.0 if terminated[k] else gamma * next_values[k]
            advantages[t] += (gamma * lam) ** (k - t) * (rewards[k] + bootstrap - values[k])
            if ended[k]:
                break
    return advantages


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("gamma,lam", [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0), (0.5, 1.0)])
def test_gae_is_the_sum_over_each_episode(seed, gamma, lam):
    rng = np.random.default_rng(seed)
    T, N = 30, 3
    rewards, values, next_values = rng.normal(size=(3, T, N))
    terminated = rng.random((T, N)) < 0.1
    ended = terminated | (rng.random((T, N)) < 0.1)
    result = ppo.compute_gae(rewards, values, next_values, terminated, ended, gamma, lam)
    for n in range(N):
        one = (x[:, n] for x in (rewards, values, next_values, terminated, ended))
        np.testing.assert_allclose(result[:, n], gae_by_the_sum(*one, gamma, lam), atol=1e-12)


def test_gae_with_lambda_1_is_the_discounted_return_minus_the_value():
    rewards, values = np.ones((4, 1)), np.full((4, 1), 7.0)
    end = np.array([[0.0], [0.0], [0.0], [1.0]])
    next_values = np.array([[7.0], [7.0], [7.0], [99.0]])  # the last one must not count
    result = ppo.compute_gae(rewards, values, next_values, end, end, 0.5, 1.0)
    np.testing.assert_allclose(result[:, 0], [1.875 - 7, 1.75 - 7, 1.5 - 7, 1 - 7])


@pytest.mark.parametrize("terminated,last", [(1.0, 1 - 10.0), (0.0, 1 + 0.9 * 10 - 10)])
def test_a_time_limit_is_not_a_death(terminated, last):
    """V = 10 everywhere, reward 1, episode over at the second of three steps; by hand."""
    ended = np.array([[0.0], [1.0], [0.0]])
    tens = np.full((3, 1), 10.0)
    result = ppo.compute_gae(np.ones((3, 1)), tens, tens, terminated * ended, ended, 0.9, 0.95)
    np.testing.assert_allclose(result[:, 0], [0 + 0.9 * 0.95 * last, last, 0.0], atol=1e-12)


def test_discounted_returns_start_anew_with_each_episode():
    rewards = np.array([[1.0, 1], [1, 1], [1, 1]])
    ended = np.array([[0.0, 1], [1, 0], [0, 0]])
    result = ppo.discounted_returns(rewards, ended, 0.5, [4.0, 0.0])
    np.testing.assert_allclose(result, [[3.0, 1], [2.5, 1], [1, 1.5]])


def test_whiten():
    x = ppo.whiten(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert x.mean().abs() < 1e-6 and abs(x.std().item() - 1) < 1e-6
    assert torch.isfinite(ppo.whiten(torch.ones(5))).all()


# -------------------------------------------------------------------------------- Gaussians
@pytest.fixture
def gaussians():
    torch.manual_seed(0)
    old = torch.randn(8, 3), torch.randn(3) * 0.3
    new = torch.randn(8, 3), torch.randn(3) * 0.3
    return old, new


def as_distribution(mean, log_std):
    return Independent(Normal(mean, log_std.exp()), 1)


def test_gaussian_logprob_and_entropy(gaussians):
    old, (mean, log_std) = gaussians
    distribution = as_distribution(mean, log_std)
    x = distribution.sample()
    torch.testing.assert_close(
        ppo.gaussian_logprob(x, mean, log_std), distribution.log_prob(x), atol=1e-5, rtol=1e-5
    )
    expected = scipy.stats.multivariate_normal(cov=np.diag((2 * log_std).exp())).entropy()
    assert ppo.gaussian_entropy(log_std).item() == pytest.approx(expected, abs=1e-5)


def test_gaussian_kl_has_the_old_policy_first(gaussians):
    old, new = gaussians
    kl = ppo.gaussian_kl_old_new(*old, *new)
    expected = kl_divergence(as_distribution(*old), as_distribution(*new))
    reverse = kl_divergence(as_distribution(*new), as_distribution(*old))
    torch.testing.assert_close(kl, expected, atol=1e-5, rtol=1e-5)
    assert (kl - reverse).abs().max() > 0.1
    torch.testing.assert_close(ppo.gaussian_kl_old_new(*old, *old), torch.zeros(8))


# --------------------------------------------------------------------------------- objectives
@pytest.mark.parametrize(
    "advantage,ratio,value,gradient",
    [  # the paper's Figure 1 in figures, eps = 0.2: min(r A, clip(r, 0.8, 1.2) A)
        (1.0, 0.5, 0.5, 1.0),
        (1.0, 1.0, 1.0, 1.0),
        (1.0, 1.5, 1.2, 0.0),
        (-1.0, 0.5, -0.8, 0.0),
        (-1.0, 1.0, -1.0, -1.0),
        (-1.0, 1.5, -1.5, -1.0),
    ],
)
def test_loss_clip_has_the_worked_values_and_gradients(advantage, ratio, value, gradient):
    r = torch.tensor([ratio], requires_grad=True)
    loss = ppo.loss_clip(r, torch.tensor([advantage]), 0.2)
    loss.backward()
    assert -loss.item() == pytest.approx(value)
    assert -r.grad.item() == pytest.approx(gradient)


def test_loss_clip_is_the_other_form_of_the_same_bound():
    """min(r A, g(eps, A)) with g = (1 + eps) A for A >= 0 and (1 - eps) A for A < 0."""
    torch.manual_seed(0)
    r, A = torch.rand(1000) * 3, torch.randn(1000)
    g = torch.where(A >= 0, 1.3 * A, 0.7 * A)
    expected = -torch.minimum(r * A, g).mean()
    torch.testing.assert_close(ppo.loss_clip(r, A, 0.3), expected)
    assert ppo.loss_clip(r, A, 0.3) >= ppo.loss_cpi(r, A)


def test_the_gradients_of_all_objectives_start_as_the_policy_gradient(gaussians):
    """At pi = pi_old every objective's gradient is that of E[log pi A], eq. (2); KL adds none."""
    (mean, log_std), _ = gaussians
    actions, A = torch.randn(8, 3), torch.randn(8)

    def gradient(objective):
        m = mean.clone().requires_grad_()
        logprob = ppo.gaussian_logprob(actions, m, log_std)
        ratio = (logprob - logprob.detach()).exp()
        kl = ppo.gaussian_kl_old_new(mean, log_std, m, log_std)
        losses = {
            "pg": lambda: -(logprob * A).mean(),
            "cpi": lambda: ppo.loss_cpi(ratio, A),
            "clip": lambda: ppo.loss_clip(ratio, A, 0.2),
            "klpen": lambda: ppo.loss_klpen(ratio, A, kl, torch.tensor(3.0)),
        }
        return torch.autograd.grad(losses[objective](), m)[0]

    for objective in ("cpi", "clip", "klpen"):
        torch.testing.assert_close(gradient(objective), gradient("pg"))


def test_loss_klpen_by_hand():
    r, A, kl = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0]), torch.tensor([0.5, 0.1])
    loss = ppo.loss_klpen(r, A, kl, torch.tensor(10.0))
    assert loss.item() == pytest.approx(-((3 - 5) + (-2 - 1)) / 2)


@pytest.mark.parametrize(
    "kl,expected", [(0.001, 0.5), (0.0066, 0.5), (0.0067, 1), (0.01, 1), (0.0149, 1), (0.0151, 2)]
)
def test_adapt_beta_is_the_rule_of_section_4(kl, expected):
    assert ppo.adapt_beta(1.0, kl, 0.01) == expected


def test_beta_comes_back_from_both_ends():
    beta = 1.0
    for _ in range(200):
        beta = ppo.adapt_beta(beta, 0.0, 0.01)
    assert 0 < beta and ppo.adapt_beta(beta, 1.0, 0.01) == 2 * beta
    for _ in range(200):
        beta = ppo.adapt_beta(beta, 1.0, 0.01)
    assert math.isfinite(beta) and ppo.adapt_beta(beta, 0.0, 0.01) == beta / 2


# ------------------------------------------------------------------- statistics and optimiser
def test_running_moments_are_those_of_all_samples_together():
    rng = np.random.default_rng(0)
    data = rng.normal(5, 3, (1000, 4)) * [1, 10, 0.1, 1e4]
    moments = ppo.RunningMoments(4)
    for batch in np.split(data, [1, 100, 640]):
        moments.update(torch.from_numpy(batch))
    np.testing.assert_allclose(moments.mean, data.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.std() ** 2, data.var(0) + 1e-8, rtol=1e-12)
    assert moments.count == 1000


def test_adam_step_is_torchs_adam():
    torch.manual_seed(0)
    ours = [torch.randn(5, 3), torch.randn(4)]
    theirs = [p.clone().requires_grad_() for p in ours]
    m, v = [torch.zeros_like(p) for p in ours], [torch.zeros_like(p) for p in ours]
    adam = torch.optim.Adam(theirs, lr=3e-4, eps=1e-5)
    for t in range(1, 701):
        grads = [torch.randn_like(p) for p in ours]
        stepsize, v_scale = torch.tensor(3e-4 / (1 - 0.9**t)), torch.tensor(1 / (1 - 0.999**t))
        ppo.adam_step(ours, grads, m, v, stepsize, v_scale, 1e-5)
        for p, g in zip(theirs, grads):
            p.grad = g
        adam.step()
    for p, q in zip(ours, theirs):
        torch.testing.assert_close(p, q.detach(), atol=2e-6, rtol=0)


def test_explained_variance():
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert ppo.explained_variance(returns, returns) == pytest.approx(1)
    assert ppo.explained_variance(torch.full((4,), 9.0), returns) == pytest.approx(0)
    assert ppo.explained_variance(-returns, returns) == pytest.approx(1 - 4)


# ---------------------------------------------------------------------------- the whole step
def one_step(step=None, **changes):
    """Parameters and metrics after one train_step on random data."""
    torch.manual_seed(0)
    args = ppo.Args(**changes)
    agent = ppo.Agent(3, 2, True)
    obs, actions = torch.randn(64, 3), torch.randn(64, 2)
    with torch.no_grad():
        old_mean, old_log_std = agent.actor(obs) + 0.1, agent.log_std.clone()
        old_logprob = ppo.gaussian_logprob(actions, old_mean, old_log_std)
    values = torch.randn(64)
    batch = (obs, actions, old_mean, old_logprob, values, torch.randn(64), 3 * torch.randn(64))
    params = list(agent.parameters())
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    adam = (m, v, torch.tensor(3e-3), torch.tensor(1.0))
    beta = torch.tensor(2.0)
    step = step or ppo.train_step
    metrics = step(agent, params, batch, old_log_std, beta, adam, args)
    gradients = [10 * x for x in m]
    return agent, batch, old_log_std, gradients, metrics


@pytest.mark.parametrize("objective", ["clip", "none", "kl-fixed"])
def test_train_step_takes_the_gradient_of_the_objective(objective):
    """Against autograd on torch.distributions, with the formulas of the paper spelt out."""
    _, batch, old_log_std, gradients, metrics = one_step(objective=objective, ent_coef=0.1)
    torch.manual_seed(0)
    agent = ppo.Agent(3, 2, True)
    obs, actions, old_mean, old_logprob, _, A, returns = batch
    new = as_distribution(agent.actor(obs), agent.log_std)
    r = torch.exp(new.log_prob(actions) - old_logprob)
    surrogate = {
        "clip": lambda: torch.minimum(r * A, r.clip(0.8, 1.2) * A),
        "none": lambda: r * A,
        "kl-fixed": lambda: r * A - 2 * kl_divergence(as_distribution(old_mean, old_log_std), new),
    }[objective]()
    value_loss = torch.nn.functional.mse_loss(agent.critic(obs)[:, 0], returns)
    loss = -surrogate.mean() + 0.5 * value_loss - 0.1 * new.entropy().mean()
    expected = torch.autograd.grad(loss, list(agent.parameters()))
    for gradient, theirs in zip(gradients, expected):
        torch.testing.assert_close(gradient, theirs, atol=1e-5, rtol=1e-4)
    assert metrics[1].item() == pytest.approx(value_loss.item(), rel=1e-5)
    assert metrics[3].item() == pytest.approx(((r - 1).abs() > 0.2).float().mean().item())


def test_value_clipping_takes_the_larger_error():
    _, batch, _, _, metrics = one_step(clip_vloss=True)
    torch.manual_seed(0)
    agent = ppo.Agent(3, 2, True)
    V, old, target = agent.critic(batch[0])[:, 0], batch[4], batch[6]
    near = torch.clip(V, old - 0.2, old + 0.2)
    expected = torch.maximum((V - target).abs(), (near - target).abs()).square().mean()
    assert metrics[1].item() == pytest.approx(expected.item(), rel=1e-5)


def test_gradient_clipping_bounds_the_norm_and_keeps_the_direction():
    free, bounded = one_step()[3], one_step(max_grad_norm=0.5)[3]
    flat = [torch.cat([g.flatten() for g in gradients]) for gradients in (free, bounded)]
    assert flat[0].norm() > 1 and flat[1].norm().item() == pytest.approx(0.5, rel=1e-4)
    torch.testing.assert_close(flat[1] / flat[1].norm(), flat[0] / flat[0].norm())


@pytest.mark.parametrize("objective", ["clip", "kl-adaptive"])
def test_compiled_and_eager_steps_agree(objective):
    torch._dynamo.reset()
    compiled = ppo.compile_or_fall_back(ppo.train_step)
    assert compiled is not ppo.train_step, "no C++ compiler: the fast path was not tested"
    a, b = one_step(objective=objective), one_step(compiled, objective=objective)
    torch.testing.assert_close(a[4], b[4], atol=1e-5, rtol=1e-5)
    for p, q in zip(a[0].parameters(), b[0].parameters()):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)


# ---------------------------------------------------------------------------------- networks
def test_normalise_shifts_scales_and_clips():
    agent = ppo.Agent(2, 1, norm_obs=True)
    agent.obs_moments.update(torch.tensor([[0.0, 0.0], [4.0, 1e-9]], dtype=torch.float64))
    obs = agent.normalise(torch.tensor([[4.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(obs, torch.tensor([[1.0, 10.0]]), atol=1e-6, rtol=0)
    off = ppo.Agent(2, 1, norm_obs=False)
    torch.testing.assert_close(
        off.normalise(torch.tensor([[50.0, -3.0]])), torch.tensor([[50.0, -3.0]])
    )


def test_orthogonal_initialisation():
    agent = ppo.Agent(17, 6, True)
    weight = agent.actor[2].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    weight = agent.actor[4].weight
    torch.testing.assert_close(weight @ weight.T, 1e-4 * torch.eye(6), atol=1e-7, rtol=0)
    assert agent.critic[4].weight.norm().item() == pytest.approx(1, abs=1e-5)
    assert not ppo.Agent(17, 6, True, False).actor[4].bias.eq(0).all()
