"""Every optimizer of torch equals itself run eagerly over 50 steps, or is refused beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from tensorplay_adapt import CudaGraphAdaptationStep
from tensorplay_adapt.optimizers import RULES, rule_of, takes_fused_steps
from tensorplay_core.errors import CaptureError

WAYS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
SGD = {
    "plain": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "dampening": {"lr": 0.05, "momentum": 0.9, "dampening": 0.3},
    "maximize": {"lr": 0.001, "momentum": 0.5, "maximize": True, "weight_decay": 0.1},
}
OPTIONS = {
    "Adadelta": {"lr": 0.5, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "fused": True},
    "Adam": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adamax": {"lr": 0.01, "weight_decay": 0.1},
    "ASGD": {"lr": 0.05, "t0": 5.0, "weight_decay": 0.1},
    "NAdam": {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    "RAdam": {"lr": 0.01, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.005, "momentum": 0.5, "centered": True, "weight_decay": 0.1},
    "Rprop": {"lr": 0.005},
}
FUSED = ("Adam", "AdamW")


def both_ways(name, *ways, **more):
    return {f"{name} {way}": (name, OPTIONS[name] | WAYS[way] | more) for way in ways}


CPU = (
    {
        f"SGD {name} {way}": ("SGD", options | which)
        for name, options in SGD.items()
        for way, which in WAYS.items()
    }
    | both_ways("Adadelta", "single", "foreach")
    | both_ways("RMSprop", "single", "foreach")
    | both_ways("Rprop", "single", "foreach")
    | both_ways("Adam", "fused")
    | both_ways("AdamW", "fused", capturable=True)
    | {"Adagrad": ("Adagrad", OPTIONS["Adagrad"])}
)
CUDA = {
    f"SGD {name} {way}": ("SGD", options | which)
    for name, options in SGD.items()
    for way, which in WAYS.items()
}
for one in OPTIONS:
    if one != "Adagrad":
        CUDA |= both_ways(one, "single", "foreach", capturable=True)
    if one in FUSED:
        CUDA |= both_ways(one, "fused", capturable=True)
HAS_ADAGRAD = torch.cuda.is_available() and takes_fused_steps("Adagrad", torch.device("cuda"))
if HAS_ADAGRAD:
    CUDA["Adagrad fused"] = ("Adagrad", OPTIONS["Adagrad"])


def maker(name, options):
    return lambda parameters: getattr(optim, name)(parameters, **options)


@pytest.mark.parametrize("case", CPU)
def test_on_the_cpu(twins, case):
    twins(maker(*CPU[case]), groups=True).run()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CUDA)
def test_on_cuda(twins, case):
    twins(maker(*CUDA[case]), groups=True, device="cuda").run()


def schedule(number, made):
    for group in made.param_groups:
        group["lr"] = 0.05 / (number + 1) if number % 7 != 3 else 0.0


@pytest.mark.parametrize("case", CPU)
def test_schedules_on_the_cpu(twins, case):
    twins(maker(*CPU[case]), groups=True).run(12, change=schedule)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CUDA)
def test_schedules_on_cuda(twins, case):
    pair = twins(maker(*CUDA[case]), groups=True, device="cuda")
    pair.run(change=schedule)
    assert pair.step.captures == 1


FEATURES = {
    "clipping": {"clip": 0.1},
    "accumulation": {"microbatches": 3},
    "bfloat16": {"autocast": torch.bfloat16},
    "skipping": {"skip_nonfinite": True},
    "scaler": {"scaler": {"init_scale": 1024.0, "growth_interval": 4}},
    "average": {"ema_decay": 0.9},
}


def spoil(number, x):
    if number % 5 == 3:
        x[0, 0] = float("nan")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("case", CUDA)
def test_features_on_cuda(twins, make_net, case, feature):
    spoilt = feature in ("skipping", "scaler")
    twins(
        maker(*CUDA[case]),
        device="cuda",
        model=lambda: make_net(norm=not spoilt, dropout=0.2),
        **FEATURES[feature],
    ).run(change=schedule, spoil=spoil if spoilt else None)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CUDA)
def test_loops_on_cuda(twins, case):
    pair = twins(maker(*CUDA[case]), device="cuda", warm=1)
    for most in (1, 9):
        x, y = pair.batch()
        result = pair.step.until(x, y, tolerance=-1.0, max_steps=most)
        for _ in range(most):
            loss = pair.eager.step(x, y)
        assert result.steps.item() == most
        assert torch.equal(result.loss, loss)
        pair.compare()


def test_every_optimizer_of_torch_has_a_rule():
    names = {
        name
        for name, kind in vars(optim).items()
        if isinstance(kind, type) and issubclass(kind, optim.Optimizer)
    } - {"Optimizer"}
    assert names <= RULES.keys()


def test_subclasses_follow_the_rule_of_their_parent():
    class Ours(optim.AdamW):
        pass

    assert rule_of(Ours([nn.Parameter(torch.ones(1))])) is RULES["AdamW"]


def capture(make, model=None):
    model = model or nn.Linear(4, 2)
    optimizer = make(model.parameters())
    device = next(model.parameters()).device
    CudaGraphAdaptationStep.capture(
        model,
        optimizer,
        torch.randn(6, 4, device=device),
        torch.randn(6, 2, device=device),
        nn.functional.mse_loss,
        device=device,
    )


REFUSED = {
    "LBFGS": (lambda p: optim.LBFGS(p), "LBFGS", "it calls a closure"),
    "SparseAdam": (lambda p: optim.SparseAdam(list(p)), "SparseAdam", "a sparse gradient"),
    "Adafactor": (lambda p: optim.Adafactor(p), "Adafactor", "on the host"),
    "Adam": (lambda p: optim.Adam(p), r"param_groups\[0\] has fused=None", "fused=True"),
    "AdamW foreach": (lambda p: optim.AdamW(p, foreach=True), "fused=None", "fused=True"),
    "Adagrad": (lambda p: optim.Adagrad(p), "fused=None", "fused=True"),
    "Adamax": (lambda p: optim.Adamax(p), "counts on the host", "On the CPU these capture"),
    "NAdam": (lambda p: optim.NAdam(p), "counts on the host", "On the CPU these capture"),
    "RAdam": (lambda p: optim.RAdam(p), "counts on the host", "On the CPU these capture"),
    "ASGD": (lambda p: optim.ASGD(p), "counts on the host", "On the CPU these capture"),
    "RMSprop capturable": (
        lambda p: optim.RMSprop(p, capturable=True),
        r"param_groups\[0\] has capturable=True, which torch refuses on the CPU",
        "Leave capturable out",
    ),
    "SGD with a tensor": (
        lambda p: optim.SGD(p, lr=torch.tensor(0.1)),
        r"param_groups\[0\]\['lr'\] is a tensor",
        "Pass a float",
    ),
    "differentiable": (
        lambda p: optim.SGD(p, lr=0.1, differentiable=True),
        "differentiable=True",
        "differentiable=False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_on_the_cpu_name_what_to_change(case):
    make, met, remedy = REFUSED[case]
    with pytest.raises(CaptureError, match=met) as refusal:
        capture(make)
    assert remedy in str(refusal.value)


def test_a_refusal_names_the_group():
    def make(parameters):
        weight, bias = parameters
        return optim.Adam([{"params": [weight], "fused": True}, {"params": [bias], "fused": False}])

    with pytest.raises(CaptureError, match=r"param_groups\[1\] has fused=False"):
        capture(make)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [one for one in OPTIONS if one != "Adagrad"])
def test_without_capturable_it_is_refused_on_cuda(name):
    with pytest.raises(CaptureError, match=r"param_groups\[0\] has capturable=False") as refusal:
        capture(lambda p: getattr(optim, name)(p), nn.Linear(4, 2).cuda())
    assert f"torch.optim.{name}(..., capturable=True)" in str(refusal.value)


@pytest.mark.gpu
def test_other_refusals_on_cuda():
    with pytest.raises(CaptureError, match="fused=None" if HAS_ADAGRAD else "no fused step"):
        capture(optim.Adagrad, nn.Linear(4, 2).cuda())
    rate = torch.tensor(0.1, device="cuda")
    with pytest.raises(CaptureError, match=r"\['lr'\] is a tensor"):
        capture(lambda p: optim.SGD(p, lr=rate), nn.Linear(4, 2).cuda())
    model = nn.Linear(4, 2).cuda()
    optimizer = optim.Adam(model.parameters())
    model(torch.ones(1, 4, device="cuda")).sum().backward()
    optimizer.step()  # The step count is on the CPU from here on.
    optimizer.param_groups[0]["capturable"] = True
    with pytest.raises(CaptureError, match=r"state 'step' of .* is on cpu"):
        capture(lambda _: optimizer, model)
    for state in optimizer.state.values():
        state["step"] = state["step"].cuda()
    capture(lambda _: optimizer, model)
