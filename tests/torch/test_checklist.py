"""What torch asks of its own CUDA graphs, asked of ours, where no other test asks it.

``docs/guide/torch-checklist.md`` says which test stands for which.
"""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorplay_torch as tp

gpu = pytest.mark.gpu


def captured(function, device, **options):
    """The graph of a function and what that returned."""
    made = tp.CUDAGraph(device=device)
    with tp.graph(made, **options):
        result = function()
    return made, result


def aside(function):
    """Runs a function on a side stream, as a warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        result = function()
    torch.cuda.current_stream().wait_stream(side)
    return result


def seed(value: int) -> None:
    torch.manual_seed(value)  # Of every device.


def generator_of(device: str) -> torch.Generator:
    if device == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device()]


# Captures


def test_capturing_is_seen_before_inside_and_after(device):
    told = [tp.is_current_stream_capturing()]
    made = tp.CUDAGraph(device=device)
    x = torch.ones(3, device=device)
    with tp.graph(made):
        x + 1
        told.append(tp.is_current_stream_capturing())
    told.append(tp.is_current_stream_capturing())
    assert told[0] is told[2] is False
    # Without a device named it is the current one that is asked.
    assert told[1] is (device == "cuda" or not torch.cuda.is_available())


def test_ten_additions_are_one_replay(device):
    x = torch.zeros(1000, device=device)

    def work():
        y = x
        for _ in range(10):
            y = y + 1
        return y

    made, y = captured(work, device)
    made.replay()
    assert y.sum().item() == 10 * 1000
    x.add_(1)
    made.replay()
    assert y.sum().item() == 11 * 1000


@gpu
def test_a_capture_stands_inside_a_stream_of_the_users():
    x, side = torch.ones(3, device="cuda"), torch.cuda.Stream()
    made = tp.CUDAGraph()
    with torch.cuda.stream(side), tp.graph(made, stream=side):
        y = x + 1
        assert torch.cuda.current_stream() == side
    made.replay()
    assert y.tolist() == [2.0] * 3


@gpu
def test_two_streams_in_one_graph_are_drawn_and_dumped(tmp_path):
    x, path = torch.ones(3, device="cuda"), tmp_path / "graph.dot"

    def work():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        y = x * 2
        with torch.cuda.stream(side):
            z = x * 3
        torch.cuda.current_stream().wait_stream(side)
        return y + z

    made, _ = captured(work, "cuda")
    made.enable_debug_mode()
    made.debug_dump(str(path))
    assert "digraph" in path.read_text()
    joined = [before for before, after in made.topology.edges if after == 2]
    assert len(joined) == 2


@gpu
def test_timing_events_inside_a_graph_tell_the_time_of_each_replay():
    x = torch.ones(1 << 20, device="cuda")
    start = torch.cuda.Event(enable_timing=True, external=True)
    stop = torch.cuda.Event(enable_timing=True, external=True)

    def work():
        start.record()
        for _ in range(20):
            x.mul_(1.0)
        stop.record()

    made, _ = captured(work, "cuda")
    for _ in range(2):
        made.replay()
        torch.cuda.synchronize()
        assert start.elapsed_time(stop) > 0
    assert {"event_record"} <= set(made.topology.kinds())


@gpu
def test_graphs_record_and_wait_for_an_event_of_the_outside():
    x, out = torch.zeros(1 << 10, device="cuda"), torch.zeros(1 << 10, device="cuda")
    event = torch.cuda.Event(external=True)

    def first():
        x.add_(1)
        event.record()

    def second():
        event.wait()
        out.copy_(x)

    one, _ = captured(first, "cuda")
    two, _ = captured(second, "cuda")
    assert one.topology.count("event_record") == two.topology.count("event_wait") == 1
    for rounds in (1, 2):
        one.replay()
        two.replay()
        assert out.unique().tolist() == [float(rounds)]


@gpu
def test_the_default_stream_is_refused_and_nothing_is_broken():
    with (
        pytest.raises(tp.CaptureError, match="default stream"),
        tp.graph(tp.CUDAGraph(), stream=torch.cuda.default_stream()),
    ):
        pass
    x = torch.ones(3, device="cuda")
    made, y = captured(lambda: x + 1, "cuda")
    made.replay()
    assert y.tolist() == [2.0] * 3


def test_reading_a_value_is_refused(device):
    x = torch.ones(3, device=device)
    with pytest.raises(tp.CaptureError):
        captured(lambda: x.sum().item(), device)
    made, y = captured(lambda: x.sum(), device)
    made.replay()
    assert y.item() == 3.0


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
@gpu
def test_another_thread_may_allocate_meanwhile(mode):
    x, made = torch.ones(3, device="cuda"), tp.CUDAGraph()
    found: list[object] = []

    def allocate():
        try:
            torch.cuda.empty_cache()
            found.append(torch.empty(40 << 20, dtype=torch.uint8, device="cuda"))
        except RuntimeError as error:
            found.append(error)

    with tp.graph(made, capture_error_mode=mode):
        y = x + 1
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
    assert isinstance(found[0], torch.Tensor)
    made.replay()
    assert y.tolist() == [2.0] * 3


# Native handles


@pytest.mark.parametrize("keep", [True, False])
def test_native_graphs_are_there_when_torchs_are(device, keep):
    x = torch.ones(3, device=device)
    made = tp.CUDAGraph(keep_graph=keep, device=device)
    with pytest.raises(tp.GraphStateError):
        made.raw_cuda_graph()
    with tp.graph(made):
        y = x + 1
    assert made.raw_cuda_graph() is not None
    if keep:
        with pytest.raises(tp.GraphStateError):
            made.raw_cuda_graph_exec()
        made.instantiate()
    assert made.raw_cuda_graph_exec() is not None
    made.replay()
    assert y.tolist() == [2.0] * 3
    made.reset()
    with pytest.raises(tp.GraphStateError):
        made.raw_cuda_graph()


def test_a_kept_graph_may_be_instantiated_twice_reset_and_captured_anew(device):
    x, made = torch.ones(3, device=device), tp.CUDAGraph(keep_graph=True, device=device)
    for step in (1, 2):
        with tp.graph(made):
            y = x + step
        for _ in range(2):
            made.instantiate()
            made.replay()
            assert y.tolist() == [1.0 + step] * 3
        made.reset()


@gpu
def test_native_handles_are_those_of_the_runtime():
    from cuda.bindings import driver

    x = torch.ones(3, device="cuda")
    made, _ = captured(lambda: x + 1, "cuda")
    code, _, count = driver.cuGraphGetNodes(driver.CUgraph(made.raw_cuda_graph()))
    assert (int(code), count) == (0, 1)


# Random numbers


def functional(name):
    calls = {
        "dropout": lambda x: nn.functional.dropout(x, 0.1),
        "rrelu": lambda x: nn.functional.rrelu(x, 0.1, 0.9, training=True),
    }
    return calls[name]


@pytest.mark.parametrize("name", ["dropout", "rrelu"])
def test_masks_follow_the_stream_of_the_generator_between_eager_calls(device, name):
    x, call = torch.linspace(-2, -1, 1000, device=device), functional(name)
    seed(5)
    expected = [call(x) for _ in range(6)]
    seed(5)
    made, y = captured(lambda: call(x), device)
    found = []
    for replayed in (True, True, False, False, True, False):
        if replayed:
            made.replay()
        found.append(y.clone() if replayed else call(x))
    assert all(map(torch.equal, found, expected))
    assert not torch.equal(expected[0], expected[1])
    for value in (6, 128, 9999):
        seed(value)
        again = call(x)
        seed(value)
        made.replay()
        assert torch.equal(y, again)


DRAWS = {
    "bernoulli": lambda x: x.bernoulli(),
    "multinomial": lambda x: torch.multinomial(x, 3),
    "normal": lambda x: torch.normal(x, x + 1),
    "poisson": lambda x: torch.poisson(x * 4),
    "rand": torch.rand_like,
    "randint": lambda x: torch.randint_like(x, 0, 100),
    "randn": torch.randn_like,
    "randperm": lambda x: torch.randperm(x.numel(), device=x.device),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.5),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "normal_": lambda x: x.clone().normal_(),
    "random_": lambda x: x.clone().random_(),
    "uniform_": lambda x: x.clone().uniform_(),
}


WAITING_ON_CUDA = frozenset({"multinomial", "randperm"})


@pytest.mark.parametrize("name", DRAWS)
def test_every_distribution_is_drawn_at_the_replay_as_eager_draws_it(device, name):
    if device == "cuda" and name in WAITING_ON_CUDA:
        pytest.skip("torch's own kernel waits for the host, so no capture can have it")
    x, draw = torch.full((200,), 0.5, device=device), DRAWS[name]
    if device == "cuda":
        aside(lambda: draw(x))
    seed(5)
    expected = [draw(x) for _ in range(3)]
    seed(5)
    before = generator_of(device).get_state()
    made, y = captured(lambda: draw(x), device)
    assert torch.equal(generator_of(device).get_state(), before)
    for one in expected:
        made.replay()
        assert torch.equal(y, one)
    seed(9)
    again = draw(x)
    after = generator_of(device).get_state()
    seed(9)
    made.replay()
    assert torch.equal(y, again)
    assert torch.equal(generator_of(device).get_state(), after)


def test_a_recurrent_layers_dropout_follows_eager(device):
    torch.manual_seed(0)
    # oneDNN's path of the CPU draws its mask like any other operation.
    layer = nn.LSTM(8, 8, 2, dropout=0.5).to(device)
    x = torch.ones(5, 3, 8, device=device)
    with torch.no_grad():
        if device == "cuda":
            aside(lambda: layer(x))
        seed(5)
        expected = [layer(x)[0] for _ in range(3)]
        seed(5)
        made, y = captured(lambda: layer(x)[0], device)
        first = layer(x)[0]
        made.replay()
        second, third = y.clone(), layer(x)[0]
    assert all(map(torch.equal, (first, second, third), expected))


@gpu
def test_a_checkpoint_draws_again_what_its_forward_drew():
    seed(0)
    layer = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3)).cuda()
    x = torch.randn(8, 32, device="cuda", requires_grad=True)

    def step():
        y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)
        return torch.autograd.grad(y.sum(), [x, *layer.parameters()])

    aside(step)
    seed(5)
    expected = step()
    seed(5)
    made, found = captured(step, "cuda")
    made.replay()
    assert all(map(torch.equal, found, expected))


def test_a_checkpoint_that_restores_the_generator_is_refused_on_the_cpu():
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))
    x = torch.randn(8, 4, requires_grad=True)

    def step():
        y = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=True)
        return torch.autograd.grad(y.sum(), x)

    with pytest.raises(tp.OperationRefused, match="preserve_rng_state=False"):
        captured(step, "cpu")


def test_another_seed_inside_a_capture_is_refused(device):
    x = torch.ones(3, device=device)

    def work():
        seed(generator_of(device).initial_seed() + 1)
        return torch.rand_like(x)

    before = generator_of(device).get_state()
    with pytest.raises((tp.CaptureError, RuntimeError), match="seed"):
        captured(work, device)
    assert torch.equal(generator_of(device).get_state(), before) or device == "cuda"


@gpu
def test_two_states_of_one_generator_are_both_followed():
    default = generator_of("cuda")
    first, second = default.graphsafe_get_state(), default.clone_state()
    second.manual_seed(77)
    made = tp.CUDAGraph()
    for one in (first, second):
        made.register_generator_state(one)

    def draw():
        default.graphsafe_set_state(first)
        a = torch.rand(100, device="cuda")
        default.graphsafe_set_state(second)
        b = torch.rand(100, device="cuda")
        default.graphsafe_set_state(first)
        return a, b

    first.manual_seed(5)
    second.manual_seed(77)
    expected = [draw() for _ in range(3)]
    offsets = first.get_offset(), second.get_offset()
    first.manual_seed(5)
    second.manual_seed(77)
    with tp.graph(made):
        a, b = draw()
    for one, two in expected:
        made.replay()
        assert torch.equal(a, one)
        assert torch.equal(b, two)
    assert (first.get_offset(), second.get_offset()) == offsets


@gpu
@pytest.mark.parametrize(("generators", "graphs"), [(1, 1), (3, 2), (10, 20)])
def test_generators_and_graphs_leave_no_memory_behind(generators, graphs):
    x = torch.zeros(8, device="cuda")
    captured(lambda: x + 1, "cuda")[0].close()

    def work():
        mine = [torch.Generator(device="cuda") for _ in range(generators)]
        for _ in range(graphs):
            made = tp.CUDAGraph()
            for one in mine:
                made.register_generator_state(one)
            with tp.graph(made):
                for one in mine:
                    torch.rand(8, device="cuda", generator=one)
            made.replay()
            made.close()

    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        work()
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before


# Pools


@gpu
@pytest.mark.parametrize("how", ["own", "handle", "graph"])
def test_a_shared_pool_takes_less_from_the_device(how):
    x = torch.ones(1 << 19, device="cuda")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = tp.graph_pool_handle() if how == "handle" else None
    first, a = captured(lambda: (x + 1).sum(), "cuda", pool=pool)
    shared = {"own": None, "handle": pool, "graph": first}[how]
    one = torch.cuda.memory_reserved() - before
    second, b = captured(lambda: (x + 2).sum(), "cuda", pool=shared)
    both = torch.cuda.memory_reserved() - before
    for made, out, value in ((first, a, 2.0), (second, b, 3.0)):
        made.replay()
        assert out.item() == value * x.numel()
    assert both == one if how != "own" else both >= one


def test_three_graphs_of_one_pool_are_right_in_the_order_of_their_capture(device):
    size, pool = 1 << 10, tp.graph_pool_handle(device)
    x = torch.ones(size, device=device)
    graphs, outputs, source = [], [], x
    for step in range(3):
        made = tp.CUDAGraph(device=device)
        with tp.graph(made, pool=pool):
            source = (source * 2 + step).clone()
        graphs.append(made)
        outputs.append(source)
    for value in (1.0, 3.0):
        x.fill_(value)
        for made in graphs:
            made.replay()
        a = value * 2
        b = a * 2 + 1
        assert [float(out[0]) for out in outputs] == [a, b, b * 2 + 2]


@gpu
def test_memory_of_every_stream_in_a_capture_is_its_pools():
    x = torch.ones(1 << 20, device="cuda")

    def work():
        side = torch.cuda.Stream()
        a = x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = x + 2
        torch.cuda.current_stream().wait_stream(side)
        return a, b

    made, (a, b) = captured(work, "cuda")
    assert made.memory.allocated_bytes >= a.nbytes + b.nbytes
    made.replay()
    assert (a[0].item(), b[0].item()) == (2.0, 3.0)


@gpu
def test_a_tensor_that_another_stream_uses_may_be_dropped_in_the_capture():
    x = torch.ones(1 << 20, device="cuda")

    def work():
        side, total = torch.cuda.Stream(), torch.zeros_like(x)
        for step in range(4):
            y = x + step
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                total.add_(y)
            y.record_stream(side)
            del y
        torch.cuda.current_stream().wait_stream(side)
        return total

    made, total = captured(work, "cuda")
    for _ in range(2):
        made.replay()
        assert total.unique().tolist() == [4 + 6.0]


# Optimizers


def optimizers():
    """Every optimizer of torch's that says it can be captured, each way that it has."""
    always = {
        torch.optim.Adadelta: {},
        torch.optim.ASGD: {},
        torch.optim.Adam: {"amsgrad": True},
        torch.optim.AdamW: {},
        torch.optim.Adamax: {},
        torch.optim.NAdam: {},
        torch.optim.RAdam: {},
        torch.optim.RMSprop: {"momentum": 0.5},
        torch.optim.Rprop: {},
    }
    for kind, options in always.items():
        for foreach in (False, True):
            yield kind, {"capturable": True, "foreach": foreach, **options}
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        yield kind, {"capturable": True, "fused": True}
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        yield torch.optim.SGD, {"momentum": 0.9, **options}


def trained(kind, options, *, replayed: int, device: str) -> list[torch.Tensor]:
    torch.manual_seed(3)
    parameters = [nn.Parameter(torch.randn(5, device=device)) for _ in range(2)]
    for place, one in enumerate(parameters):
        one.grad = torch.full_like(one, 0.1 * (place + 1))
    optimizer = kind(parameters, lr=0.1, **options)
    if device == "cuda":
        aside(optimizer.step)
    else:
        optimizer.step()
    if replayed:
        made, _ = captured(optimizer.step, device)
        for _ in range(replayed):
            made.replay()
    else:
        for _ in range(3):
            optimizer.step()
    return [one.detach() for one in parameters]


@gpu
@pytest.mark.parametrize(
    ("kind", "options"),
    list(optimizers()),
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value)),
)
def test_an_optimizers_steps_are_replayed(kind, options):
    eager = trained(kind, options, replayed=0, device="cuda")
    graphed = trained(kind, options, replayed=3, device="cuda")
    assert all(map(torch.equal, graphed, eager))


@gpu
def test_one_parameter_group_that_counts_on_the_host_is_refused():
    parameters = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(2)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    groups = [
        {"params": [parameters[0]], "capturable": True},
        {"params": [parameters[1]], "capturable": False},
    ]
    optimizer = torch.optim.Adam(groups, foreach=False)
    aside(optimizer.step)
    before = [one.detach().clone() for one in parameters]
    with pytest.raises((tp.OperationRefused, RuntimeError), match="apturable"):
        captured(optimizer.step, "cuda")
    torch.cuda.synchronize()
    assert all(torch.equal(one, old) for one, old in zip(parameters, before, strict=True))


@gpu
def test_a_step_with_scaled_gradients_is_replayed():
    def run(replayed):
        torch.manual_seed(0)
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True, capturable=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
        x = torch.randn(4, 8, device="cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.float16, cache_enabled=False):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        aside(step)
        if replayed:
            made, _ = captured(step, "cuda")
            for _ in range(5):
                made.replay()
        else:
            for _ in range(5):
                step()
        return [*(p.detach() for p in model.parameters()), scaler._scale]

    assert all(map(torch.equal, run(True), run(False)))


# Torch's own graphs


def test_a_graph_of_torchs_own_is_refused_with_what_to_do(device):
    theirs = torch.cuda.CUDAGraph() if torch.cuda.is_available() else torch.cuda.CUDAGraph
    with pytest.raises(tp.ArgumentTypeError, match="CUDAGraph") as caught:
        tp.graph(theirs)
    assert "none of this library's" in str(caught.value)
    assert "pool=" in caught.value.remedy


@gpu
def test_nodes_of_other_kinds_are_annotated_too():
    x, out = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda")
    event, made = torch.cuda.Event(external=True), tp.CUDAGraph()
    with tp.graph(made, enable_annotations=True), tp.annotate("kinds"):
        out.copy_(x)
        out.zero_()
        event.record()
        out.add_(x)
    kinds = {node.kind: node.attributes.get("annotation") for node in made.topology.nodes}
    assert len(kinds) >= 2
    assert set(kinds.values()) == {"kinds"}
