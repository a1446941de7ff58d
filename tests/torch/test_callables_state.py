"""What graphing leaves as it was, and what a graph notices when it has changed since."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import weakref

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.nn.utils.parametrizations import spectral_norm as parametrized_spectral_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized_weight_norm

import tensorplay_torch as tp


def rand(device, *shape, **options):
    return torch.randn(*shape, device=device, **options)


def leaf(device, *shape):
    return rand(device, *(shape or (6, 4)), requires_grad=True)


def everything(module):
    """All that training goes on from, by name, as copies."""
    found = {name: value.clone() for name, value in module.state_dict().items()}
    found |= {
        f"{n}.grad": p.grad.clone() for n, p in module.named_parameters() if p.grad is not None
    }
    return found


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


class Moving(nn.Module):
    """Everything that a forward may move: statistics, counters, averages, a norm's vectors."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = parametrized_spectral_norm(nn.Linear(4, 4))
        self.drop = nn.Dropout(0.5)
        self.register_buffer("average", torch.zeros(4))
        self.plain = torch.zeros(4)
        self.parts = [torch.zeros(4)]

    def forward(self, x):
        y = self.drop(self.linear(self.norm(x)))
        with torch.no_grad():
            self.average.lerp_(y.mean(0), 0.1)
            self.plain.add_(y.sum(0))
            self.parts[0].mul_(0.5).add_(1)
        return y

    def to(self, device):
        self.plain = self.plain.to(device)
        self.parts = [part.to(device) for part in self.parts]
        return super().to(device)


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_warm_up_and_capture_move_nothing(device, warmup):
    """B10: torch's version advances statistics, counters and random numbers by the warm-ups."""
    module, x = Moving().to(device), leaf(device)
    module(rand(device, 6, 4)).sum().backward()
    before, plain, parts = everything(module), module.plain.clone(), module.parts[0].clone()
    versions = {name: buffer._version for name, buffer in module.named_buffers()}
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    cuda = torch.cuda.get_rng_state() if device == "cuda" else torch.empty(0)
    tp.make_graphed_callables(module, (x,), num_warmup_iters=warmup)
    with torch.no_grad():
        tp.graphed(lambda x: module(x)).prepare(x)
    assert_same(everything(module), before)
    assert torch.equal(module.plain, plain)
    assert torch.equal(module.parts[0], parts)
    assert {name: buffer._version for name, buffer in module.named_buffers()} == versions
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert numpy.random.get_state()[1].tolist() == states[2]
    if device == "cuda":
        assert torch.equal(torch.cuda.get_rng_state(), cuda)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled(device)


def test_replays_move_what_eager_moves(device, twins):
    module = Moving().to(device)
    pair = twins(module, leaf(device))
    for _ in range(4):
        pair.step(leaf(device))
        assert torch.equal(pair.eager.plain, pair.graphed.plain)
        assert torch.equal(pair.eager.parts[0], pair.graphed.parts[0])
    with torch.no_grad():
        pair.call(rand(device, 6, 4))
    pair.check()


def test_a_capture_that_fails_moves_nothing(device):
    class Failing(Moving):
        def forward(self, x):
            y = super().forward(x)
            self.note = "set in a call that failed"
            return y * y.sum().item()

    module, x = Failing().to(device), leaf(device)
    before, plain = everything(module), module.plain.clone()
    state = torch.get_rng_state()
    with pytest.raises((tp.CaptureError, RuntimeError)) as caught:
        tp.make_graphed_callables(module, (x,))
    assert "item" in str(caught.value) or "scalar" in str(caught.value)
    assert_same(everything(module), before)
    assert torch.equal(module.plain, plain)
    assert torch.equal(torch.get_rng_state(), state)
    assert not hasattr(module, "note")
    assert isinstance(module.linear.parametrizations.weight.original, nn.Parameter)
    tp.make_graphed_callables(nn.Linear(4, 4).to(device), (leaf(device),))


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_parameters_are_themselves_afterwards(device):
    module = nn.LSTM(4, 4).to(device)
    parameters = dict(module.named_parameters())
    weights = list(module._flat_weights)
    with torch.backends.mkldnn.flags(enabled=False):
        tp.make_graphed_callables(module, (leaf(device, 5, 2, 4),))
    assert all(parameters[name] is one for name, one in module.named_parameters())
    assert all(one is other for one, other in zip(module._flat_weights, weights, strict=True))


def test_a_pending_backward_from_before_is_not_disturbed(device):
    """Its saved tensors are counted as unchanged, since they are."""
    module = nn.BatchNorm1d(4).to(device)
    x = leaf(device)
    module.eval()
    loss = module(x).square().sum()
    wanted = torch.autograd.grad(loss, x, retain_graph=True)
    module.train()
    tp.make_graphed_callables(module, (leaf(device),))
    found = torch.autograd.grad(loss, x)
    assert torch.equal(found[0], wanted[0])


DRAWS = {
    "dropout": lambda x: nn.functional.dropout(x),
    "feature dropout": lambda x: nn.functional.feature_alpha_dropout(x[None, :, :, None]),
    "rrelu": lambda x: nn.functional.rrelu(x, training=True),
    "rand": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x * torch.randn(x.shape, device=x.device),
    "randint": lambda x: x * torch.randint(9, x.shape, device=x.device),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.3)),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(),
    "randperm": lambda x: x[torch.randperm(len(x), device=x.device)],
    "multinomial": lambda x: x * torch.multinomial(torch.full_like(x, 0.2), 4, replacement=True),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_follow_eager_s_stream(device, twins, draw):
    """Torch issue 84614: masks frozen, a new seed ignored."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return draw(self.linear(x)).square()

    try:
        pair = twins(Module().to(device), leaf(device))
    except tp.CaptureError:
        # torch looks at values on the host for these, on CUDA.
        assert device == "cuda"
        assert draw in (DRAWS["randperm"], DRAWS["multinomial"])
        return
    for seed in (6, None, 128, 128, None):
        if seed is not None:
            torch.manual_seed(seed)
        pair.step(leaf(device))
        with torch.no_grad():
            pair.call(rand(device, 6, 4))


def test_a_generator_of_one_s_own_is_followed(device):
    generator = torch.Generator(device=device).manual_seed(3)
    other = torch.Generator(device=device).manual_seed(3)

    def work(x, generator=generator):
        return x + torch.rand(x.shape, device=x.device, generator=generator)

    x = rand(device, 6, 4)
    graphed = tp.make_graphed_callables(lambda x: work(x), (x,))
    for _ in range(3):
        assert torch.equal(graphed(x), work(x, other))
        assert torch.equal(generator.get_state(), other.get_state())
    generator.manual_seed(8)
    other.manual_seed(8)
    assert torch.equal(graphed(x), work(x, other))


def draws_from_python(x):
    return x * random.random()


def draws_from_numpy(x):
    return x * float(numpy.random.rand())


@pytest.mark.parametrize(
    ("draw", "library"),
    [(draws_from_python, "Python's random"), (draws_from_numpy, "numpy.random")],
)
def test_draws_on_the_host_are_refused(device, draw, library):
    states = random.getstate(), numpy.random.get_state()[1].tolist()
    with pytest.raises(tp.OperationRefused, match=library):
        tp.make_graphed_callables(draw, (rand(device, 3),))
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == states


@pytest.mark.gpu
def test_draws_of_torch_on_the_host_are_refused():
    with pytest.raises(tp.OperationRefused, match="torch's generator of the CPU"):
        tp.make_graphed_callables(
            lambda x: x * float(torch.rand(())), (torch.ones(3, device="cuda"),)
        )


@pytest.mark.gpu
def test_draws_from_a_generator_on_the_host_are_refused():
    generator = torch.Generator()
    with pytest.raises(tp.OperationRefused, match="a generator of cpu"):
        tp.make_graphed_callables(
            lambda x: x * float(torch.rand((), generator=generator)), (torch.ones(3).cuda(),)
        )


def test_the_other_mode_runs_the_original_forward(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).to(device)
    pair = twins(module, leaf(device))
    pair.step(leaf(device))
    for one in pair.modules():
        one.eval()
    pair.step(leaf(device))
    assert pair.counts == (1, 1, 1)
    for one in pair.modules():
        one.train()
    pair.step(leaf(device))
    assert pair.counts == (2, 1, 1)


def test_a_module_graphed_in_eval_mode_trains_without_graphs(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).to(device).eval()
    pair = twins(module, leaf(device))
    pair.step(leaf(device))
    for one in pair.modules():
        one.train()
    pair.step(leaf(device))
    assert pair.counts == (1, 1, 1)


def test_a_function_follows_the_mode_of_the_modules_it_runs(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    graphed = tp.make_graphed_callables(lambda x: module(x), (leaf(device),))
    module.eval()
    x = leaf(device)
    assert torch.equal(graphed(x), module(x))
    assert graphed.graphed.counts.eager == 1


def test_a_submodule_in_another_mode_is_noticed(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    module[1].eval()
    with pytest.raises(tp.StaleGraph, match=r"1.training is False, was True"):
        for _ in range(40):
            module(leaf(device))


CHANGES = {
    "assigned state": (
        lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True),
        "was replaced by another tensor",
    ),
    "another dtype": (lambda m: m.to(torch.bfloat16), "moved .*torch.bfloat16 .*was torch.float32"),
    "other memory": (lambda m: m._apply(torch.clone), "moved to other memory"),
    "frozen": (lambda m: m.requires_grad_(False), "requires_grad is False, was True"),
    "one replaced": (
        lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())),
        "parameter '0.weight' was replaced",
    ),
    "one's data": (
        lambda m: setattr(m[2].bias, "data", m[2].bias.data.clone()),
        "parameter '2.bias' moved",
    ),
    "one frozen": (lambda m: m[0].bias.requires_grad_(False), "parameter '0.bias'.requires_grad"),
    "a buffer": (
        lambda m: setattr(m[1], "running_mean", torch.zeros_like(m[1].running_mean)),
        "buffer '1.running_mean' was replaced",
    ),
    "a part": (
        lambda m: m.append(nn.ReLU()).__delitem__(2),
        "the parts of module '' are others",
    ),
    "a number": (lambda m: setattr(m[1], "momentum", 0.5), "1.momentum is 0.5, was 0.1"),
    "a hook": (lambda m: m[2].register_forward_hook(lambda *_: None), "module '2' has hooks"),
}


@pytest.mark.parametrize(("change", "met"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("grad", [True, False])
def test_what_moved_since_the_capture_is_noticed(device, change, met, grad):
    """B13: its version goes on with stale pointers."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    with torch.set_grad_enabled(grad):
        x = leaf(device)
        module(x)
        change(module)
        with pytest.raises(tp.StaleGraph, match=met) as caught:
            for _ in range(400):
                module(x)
        assert "recapture" in caught.value.remedy
        with pytest.raises(tp.StaleGraph, match=met):
            for _ in range(400):
                module(x)
    tp.release(module)
    module(x.to(module[0].weight.dtype))


@pytest.mark.parametrize("name", ["assigned state", "another dtype", "frozen"])
def test_what_moves_every_parameter_is_noticed_by_the_next_call(device, name):
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    x = leaf(device)
    with torch.no_grad():
        for warm in range(7):
            for _ in range(warm):
                module(x)
        CHANGES[name][0](module)
        with pytest.raises(tp.StaleGraph):
            module(x)


SCALE = 2.0


def test_values_that_a_function_finds_by_name_are_noticed(device, monkeypatch):
    """A number in a closure, a global or on an object is frozen in the graph."""
    shift = 1.0
    table = rand(device, 4)

    class Trainer:
        def __init__(self):
            self.rate, self.steps = 0.5, 0

        def step(self, x):
            return x * self.rate

    trainer = Trainer()

    def plain(x):
        return x * SCALE + shift + table

    x = rand(device, 3, 4)
    one, two = tp.graphed(plain), tp.graphed(trainer.step)
    for _ in range(30):
        one(x)
        two(x)
        trainer.steps += 1
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "SCALE", 3.0)
        with pytest.raises(tp.StaleGraph, match=r"global SCALE is 3.0, was 2.0"):
            for _ in range(30):
                one(x)
    shift = 4.0
    with pytest.raises(tp.StaleGraph, match=r"shift is 4.0, was 1.0"):
        for _ in range(30):
            one(x)
    shift = 1.0
    table.fill_(3)
    assert torch.equal(one(x), plain(x))
    table = table.clone()
    with pytest.raises(tp.StaleGraph, match="table is another Tensor"):
        for _ in range(30):
            one(x)
    trainer.rate = 0.25
    with pytest.raises(tp.StaleGraph, match=r"self.rate is 0.25, was 0.5"):
        for _ in range(30):
            two(x)


def test_attributes_that_forward_does_not_mention_may_change(device):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.epoch = 0

        def forward(self, x):
            return self.linear(x)

        def report(self):
            return self.epoch

    module = Module().to(device)
    tp.make_graphed_callables(module, (rand(device, 3, 4),))
    for _ in range(30):
        module.epoch += 1
        module(rand(device, 3, 4))
    assert module.forward.counts == (30, 0, 1)


def test_values_changed_in_place_are_followed(device, twins):
    pair = twins(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device), leaf(device))
    state = {
        name: torch.rand_like(v.float()).to(v.dtype) for name, v in pair.eager.state_dict().items()
    }
    for module in pair.modules():
        module.load_state_dict(state)
    pair.step(leaf(device))
    for module in pair.modules():
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
    pair.step(leaf(device))


def test_it_is_captured_again_when_asked_to(device, twins):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device)
    pair = twins(module, leaf(device), on_change="recapture")
    pair.step(leaf(device))
    for n, change in enumerate(
        (CHANGES["assigned state"], CHANGES["one frozen"], CHANGES["other memory"]), start=2
    ):
        for one in pair.modules():
            change[0](one)
        for _ in range(30):
            pair.call(leaf(device))
        pair.graphed.zero_grad()
        pair.eager.zero_grad()
        pair.step(leaf(device))
        assert pair.counts.captured == n
    pair.eager.double()
    pair.graphed.double()
    for _ in range(3):
        pair.step(leaf(device).detach().double().requires_grad_())


def test_a_chain_is_captured_again_as_a_whole(device):
    eager = [nn.Linear(4, 4).to(device) for _ in range(3)]
    graphed = tp.make_graphed_callables(
        tuple(copy.deepcopy(eager)), tuple((leaf(device),) for _ in eager), on_change="recapture"
    )
    for module in (eager[1], graphed[1]):
        module.weight.data = module.weight.data.clone()
    for _ in range(4):
        x = leaf(device)
        y = eager[2](eager[1](eager[0](x)))
        z = graphed[2](graphed[1](graphed[0](x)))
        assert torch.equal(y, z)


def test_copies_and_pickles_are_without_graphs(device):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
    tp.make_graphed_callables(module, (leaf(device),))
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    whole = nn.ModuleDict({"inner": module, "other": nn.Linear(4, 4).to(device)})
    copies = [
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(buffer, weights_only=False),
        copy.deepcopy(whole)["inner"],
    ]
    x = leaf(device)
    expected = module(x)
    for other in copies:
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            other[0].weight.add_(1)
        assert not torch.equal(other(x), expected)
        assert torch.equal(module(x), expected)
        tp.make_graphed_callables(other, (x,))
        assert torch.equal(other(x), nn.functional.relu(other[0](x)))
        tp.release(other)
        assert "forward" not in vars(other)
    assert module.forward.counts.eager == 0


def test_hooks_of_the_module_itself_run_at_every_call(device):
    module = nn.Linear(4, 4).to(device)
    calls = []
    module.register_forward_pre_hook(lambda m, args: calls.append("pre"))
    tp.make_graphed_callables(module, (leaf(device),))
    module.register_forward_hook(lambda m, args, result: calls.append("post") or result * 2)
    module.register_full_backward_hook(lambda m, gi, go: calls.append("back"))
    assert calls == []
    for _ in range(2):
        x = leaf(device)
        y = module(x)
        y.sum().backward()
        assert torch.equal(y, nn.functional.linear(x, module.weight, module.bias) * 2)
    assert calls == ["pre", "post", "back"] * 2


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (lambda m: m.register_forward_hook(lambda *_: None), "forward hook"),
        (lambda m: m.register_forward_pre_hook(lambda *_: None), "forward pre-hook"),
        (lambda m: m.register_full_backward_hook(lambda *_: None), "backward hook"),
        (lambda m: m.register_full_backward_pre_hook(lambda *_: None), "backward pre-hook"),
    ],
)
def test_hooks_inside_are_refused_by_name(device, register, kind):
    """B12: they would run at the capture and never again."""
    module = nn.Sequential(nn.ModuleList([nn.Linear(4, 4)])[0], nn.ReLU()).to(device)
    handle = register(module[0])
    with pytest.raises(tp.CaptureError, match=rf"0 \(Linear\) has a {kind} \(.*<lambda>\)"):
        tp.make_graphed_callables(module, (leaf(device),))
    handle.remove()
    tp.make_graphed_callables(module, (leaf(device),))


def test_hooks_for_all_modules_are_refused(device):
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(tp.CaptureError, match="hooks for all modules"):
            tp.make_graphed_callables(nn.Linear(4, 4).to(device), (leaf(device),))
    finally:
        handle.remove()


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "make", [spectral_norm, weight_norm, lambda m: prune.random_unstructured(m, "weight", 0.5)]
)
def test_reparametrization_by_hooks_is_refused_with_the_remedy(device, make):
    module = nn.Sequential(make(nn.Linear(4, 4))).to(device)
    with pytest.raises(tp.CaptureError, match="pre-hook") as caught:
        tp.make_graphed_callables(module, (leaf(device),))
    assert "parametrizations" in caught.value.remedy
    assert "prune.remove" in caught.value.remedy


@pytest.mark.parametrize("make", [parametrized_weight_norm, parametrized_spectral_norm])
def test_parametrizations_train_as_eager(device, twins, make):
    pair = twins(make(nn.Linear(4, 4)).to(device), leaf(device))
    for _ in range(3):
        pair.step(leaf(device))


REBINDING = {
    "an attribute": ("self.last = y", "last"),
    "a counter": ("self.calls += 1", "calls"),
    "a list": ("self.seen.append(y)", r"seen\[\d\]"),
    "a dict": ("self.by_name['y'] = y", r"by_name\['y'\]"),
    "a buffer": ("self.state = y.detach()", r"_buffers\['state'\]"),
    "a parameter's gradient": (
        "self.linear.weight.grad = torch.ones_like(self.linear.weight)",
        "grad",
    ),
}


@pytest.mark.parametrize(("statement", "name"), REBINDING.values(), ids=REBINDING)
def test_rebinding_in_forward_is_refused_by_name(device, statement, name):
    """A replay runs no Python: what it set would be the capture's for ever."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(6, 4))
            self.calls, self.seen, self.by_name = 0, [], {}

        def forward(self, x):
            y = self.linear(x)
            exec(statement)
            return y

    module = Module().to(device)
    before = dict(vars(module))
    with pytest.raises(tp.OperationRefused, match=name):
        tp.make_graphed_callables(module, (leaf(device),))
    assert vars(module) == before
    assert module.seen == []
    assert module.by_name == {}
    assert module.linear.weight.grad is None


def test_rebinding_on_the_object_of_a_method_is_refused(device):
    class Trainer:
        def __init__(self):
            self.last, self.history = None, []

        def step(self, x):
            self.last = x * 2
            self.history.append(1)
            return self.last + 1

    trainer = Trainer()
    with pytest.raises(
        tp.OperationRefused, match=r"sets self.history\[\d\], self.last in each call"
    ):
        tp.make_graphed_callables(trainer.step, (rand(device, 3),))
    assert trainer.last is None
    assert trainer.history == []


def test_what_only_the_first_call_sets_is_fine(device, twins):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.table = None
            self.tables = {}

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(4.0, device=x.device)
            key = x.shape[1]
            if key not in self.tables:
                self.tables[key] = torch.ones(key, device=x.device) * 3
            return self.linear(x) * self.table + self.tables[key]

    pair = twins(Cached().to(device), leaf(device))
    assert pair.graphed.table is None
    assert pair.graphed.tables == {}
    for _ in range(2):
        pair.step(leaf(device))
    with pytest.raises(tp.OperationRefused, match="num_warmup_iters ≥ 1"):
        tp.make_graphed_callables(Cached().to(device), (leaf(device),), num_warmup_iters=0)


def test_warm_ups_leave_nothing_behind(device):
    """B11: torch's version keeps the last warm-up's results through the capture."""
    made = []
    # A method of a list is no variable of the function's, so that what it keeps is not looked at.
    note = made.append

    def work(x):
        y = x * 2
        note(weakref.ref(y))
        return y.relu()

    gc.disable()
    try:
        tp.make_graphed_callables(work, (leaf(device),), num_warmup_iters=4)
        assert [one() for one in made[:4]] == [None] * 4
    finally:
        gc.enable()


def test_lazy_modules_are_refused_until_they_are_made(device):
    module = nn.LazyLinear(4).to(device)
    with pytest.raises(tp.ArgumentError, match="weight has no shape yet"):
        tp.make_graphed_callables(module, (leaf(device),))
    module(leaf(device))
    tp.make_graphed_callables(module, (leaf(device),))


def test_a_graphed_module_inside_another_is_part_of_it(device, twins):
    inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    tp.make_graphed_callables(inner, (leaf(device),))
    outer = nn.Sequential(inner, nn.Linear(4, 4)).to(device)
    eager = copy.deepcopy(outer)
    tp.make_graphed_callables(outer, (leaf(device),))
    for _ in range(2):
        x = leaf(device)
        state = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
        expected = eager(x)
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])
        result = outer(x)
        assert torch.equal(result, expected)
        found = torch.autograd.grad(result.square().sum(), [x, *outer.parameters()])
        wanted = torch.autograd.grad(expected.square().sum(), [x, *eager.parameters()])
        assert all(map(torch.equal, found, wanted))
    assert inner.forward.counts.replayed == 0
    inner(leaf(device))
    assert inner.forward.counts.replayed == 1


def test_a_graphed_module_in_a_capture_is_part_of_it(device):
    module = nn.Linear(4, 4).to(device)
    tp.make_graphed_callables(module, (rand(device, 6, 4),))
    x = rand(device, 6, 4)
    with torch.no_grad():
        module(x)
        g = tp.CUDAGraph(device=device)
        with tp.graph(g):
            y = module(x)
        x.copy_(rand(device, 6, 4))
        g.replay()
        assert torch.equal(y, nn.functional.linear(x, module.weight, module.bias))
