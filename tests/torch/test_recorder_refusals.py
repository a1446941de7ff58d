"""What a capture on the CPU refuses: each by its name, at the user's line, with a way out."""

from __future__ import annotations

import pytest
import torch

from .refusals import refusal, x

pytestmark = [
    pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Sparse CSR tensor support:UserWarning"),
]


VALUE_SHAPES = {
    "aten.nonzero": lambda t: t.nonzero(),
    "aten.masked_select": lambda t: t.masked_select(t > 0),
    "aten._unique2": lambda t: t.unique(),
    "aten.unique_consecutive": lambda t: t.unique_consecutive(),
    "aten.bincount": lambda t: torch.bincount(t[0].long()),
    "aten.repeat_interleave.Tensor": lambda t: t.repeat_interleave(torch.tensor([1, 2, 1, 1]), 0),
    "aten.index.Tensor": lambda t: t[t > 0],
    "aten.index_put_": lambda t: t.clone().__setitem__(t > 0, t[0, :1].expand(16)),
    "aten._pack_padded_sequence": lambda t: torch.nn.utils.rnn.pack_padded_sequence(
        t, torch.tensor([4, 2, 1, 1])
    ),
}


@pytest.mark.parametrize("name", VALUE_SHAPES)
def test_shapes_that_depend_on_values(record, name):
    assert refusal(record, VALUE_SHAPES[name], x()).operation == name


def test_masks_that_select_nothing_are_fine(record):
    t = x()
    repeats = torch.tensor([1, 2, 1, 1])
    captured = record(
        lambda: (
            torch.nonzero_static(t, size=3),
            t.repeat_interleave(repeats, 0, output_size=5),
            t[torch.tensor([0, 2])],
        )
    )
    captured.replay()
    assert torch.equal(captured.result[1], t.repeat_interleave(repeats, 0))
    assert torch.equal(captured.result[2], t[[0, 2]])


@pytest.mark.parametrize(
    ("name", "function"),
    {
        "aten._linalg_check_errors": lambda t: torch.linalg.inv(t),
        "aten.cholesky": lambda t: torch.cholesky(t @ t.t() + torch.eye(4)),
    }.items(),
)
@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated:UserWarning")
def test_factorisations_that_check_themselves(record, name, function):
    error = refusal(record, function, x())
    assert error.operation == name
    assert "_ex" in error.remedy
    record(lambda: torch.linalg.inv_ex(x())).replay()


MOVES = {
    "aten.t_": lambda t: t.t_(),
    "aten.unsqueeze_": lambda t: t.unsqueeze_(0),
    "aten.resize_": lambda t: t.resize_(9),
    "aten.set_.source_Tensor": lambda t: t.set_(torch.ones(2)),
    "aten.add.out": lambda t: torch.add(torch.ones(5), 1, out=t),
    "Tensor.data = ...": lambda t: setattr(t, "data", torch.ones(2)),
    "Tensor.share_memory_": lambda t: t.share_memory_(),
}


@pytest.mark.parametrize("name", MOVES)
def test_tensors_from_outside_stay_where_they_are(record, name):
    t = torch.randn(0) if name == "aten.add.out" else x()
    shape, address = t.shape, t.data_ptr()
    assert refusal(record, MOVES[name], t).operation == name
    assert (t.shape, t.data_ptr()) == (shape, address)


def test_tensors_that_are_not_plain_memory(record):
    t = x()
    csr, quantized = t.to_sparse_csr(), torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)
    assert refusal(record, lambda: csr @ t).operation.startswith("aten.")
    assert "to_dense" in refusal(record, lambda: t.to_sparse()).remedy
    assert "dequantize" in refusal(record, lambda: quantized.dequantize()).remedy
    assert "strided" in refusal(record, lambda: t.to_mkldnn()).met
    one, many = torch.ones(()), torch.ones(4)
    for makes in (
        lambda: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        lambda: torch.quantize_per_tensor(t, one, one.int(), torch.quint8),
        lambda: torch.quantize_per_tensor([t, t], many[:2], many[:2].int(), torch.quint8),
        lambda: torch.quantize_per_channel(t, many, many.int(), 0, torch.quint8),
        lambda: torch.quantize_per_tensor_dynamic(t, torch.quint8, False),
        lambda: torch.empty(3, dtype=torch.qint8),
        lambda: torch.nested.nested_tensor([t, t]),
    ):
        assert "plain strided" in refusal(record, makes).met


def test_operations_whose_results_are_unknown(record):
    @torch.library.custom_op("tensorplay_tests::unknown", mutates_args=())
    def unknown(t: torch.Tensor) -> torch.Tensor:
        return t.clone()

    @torch.library.custom_op("tensorplay_tests::counts", mutates_args=())
    def counts(t: torch.Tensor) -> int:
        return int((t > 0).sum())

    t = x()
    error = refusal(record, lambda: unknown(t))
    assert error.operation == "tensorplay_tests.unknown"
    assert "register_fake" in error.remedy
    assert refusal(record, lambda: counts(t)).operation == "tensorplay_tests.counts"


def test_other_devices(record):
    t = x()
    assert "device='cuda'" in refusal(record, lambda: t.to("meta")).remedy
    meta = record(lambda: torch.ones(2, device="meta") * 2)
    assert meta.result.device.type == "meta"
    assert meta.recorder.node_count == 0


class Compiled:
    @staticmethod
    def make(function=lambda t: t.sin() + 1, **options):
        torch.compiler.reset()
        return torch.compile(function, backend="aot_eager", **options)

    def warm(self):
        function = self.make()
        function(x())
        return function, lambda t: function(t)

    def cold(self):
        function = self.make()
        return function, lambda t: function(t)

    def module(self):
        model = self.make(torch.nn.Linear(4, 4))
        model(x())
        return model, lambda t: model(t)

    def backward(self):
        function = self.make()
        leaf = x().requires_grad_()
        loss = function(leaf).sum()
        return function, lambda t: loss.backward()

    def gradient(self):
        function = self.make()
        leaf = x().requires_grad_()
        loss = function(leaf).sum()
        return function, lambda t: torch.autograd.grad(loss, leaf)


@pytest.mark.parametrize("name", ["warm", "cold", "module", "backward", "gradient"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_functions(record, name):
    function, body = getattr(Compiled(), name)()
    error = refusal(record, body, x())
    assert "torch.compile" in error.met
    # It is compiled all the same outside, before and after.
    t = x()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    function(t)
    function(t)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= graphs + 1
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_control_flow_operators_of_torch(record):
    t = x()
    with pytest.raises(Exception, match=r"tensorplay_torch\.cond"):
        record(lambda: torch.cond(t.sum() > 0, torch.sin, torch.cos, (t,)))


def test_attention_on_its_fast_path(record):
    model = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    t = x().unsqueeze(0)

    def body():
        with torch.no_grad():
            return model(t)

    assert "set_fastpath_enabled(False)" in refusal(record, body).remedy
    record(lambda: model(t))  # With gradients there is no fast path.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        captured = record(body)
        captured.replay()
        assert torch.equal(captured.result, body())
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_modules_that_are_not_ready(record):
    lazy = torch.nn.LazyLinear(3)
    refusal(record, lambda: lazy(x()))
    norm = torch.nn.BatchNorm1d(4, momentum=None)
    assert refusal(record, lambda: norm(x())).operation == "float(tensor)"
