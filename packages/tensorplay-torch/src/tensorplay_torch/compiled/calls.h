// A call of a graphed callable as a node of autograd, whose backward is a function of Python's.
#pragma once

#include "forms.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace tensorplay {

using torch::autograd::variable_list;

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

// The node of one call. `backward(context, gradients, whole)` gets the gradients of the outputs, None
// where there is none, and returns one for each input, or None. `whole` says that all gradients were
// asked for, not chosen ones.
struct GraphedCallBackward : torch::autograd::Node {
  PyObject *backward = nullptr, *context = nullptr;
  bool last = false;  // Nothing can be asked of it after one backward.
  bool due = false;   // The engine is about to call it, and has what follows it released then.
  torch::autograd::edge_list edges;  // Its own, while it has none.

  std::string name() const override { return "GraphedCallBackward"; }

  ~GraphedCallBackward() override {
    if (!Py_IsInitialized()) return;
    WithGil gil;
    Py_XDECREF(backward);
    Py_XDECREF(context);
  }

  // The engine's last step before it calls a node whose graph is not kept: after hooks, which may call
  // the node by hand.
  void will_release_variables() override { due = true; }

  variable_list apply(variable_list&& gradients) override {
    bool is_due = std::exchange(due, false);
    auto* chosen = torch::autograd::get_current_graph_task_exec_info();
    // It may be called by hand, too, also by a hook in the midst of another backward.
    bool whole = chosen != nullptr && chosen->empty() &&
                 torch::autograd::get_current_node().get() == this;
    variable_list results = called(gradients, whole);
    if (whole && is_due && last && post_hooks().empty()) accumulate(results);
    return results;
  }

  // Adds gradients to those of leaves, as their nodes would, where nothing but this call and the
  // engine could tell the difference. One by one and through the engine each takes twice as long as
  // an addition.
  void accumulate(variable_list& results) {
    if (c10::GradMode::is_enabled() || torch::autograd::AnomalyMode::is_enabled() ||
        c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return;
    }
    std::vector<size_t> places;
    size_t others = 0, flowing = 0;
    for (size_t place = 0; place < results.size(); place++) {
      if (!next_edge(place).is_valid()) continue;
      if (results[place].defined() && is_mine(place, results[place])) {
        places.push_back(place);
      } else {
        others++;
        flowing += results[place].defined();
      }
    }
    // Where a gradient goes on from here, code that runs later in this backward may look back.
    if (flowing > 0) return;
    // What follows this node is how the engine knows that work was done on its stream: another
    // node; or nothing at all, which makes this one the last.
    if (others > 0 && !places.empty()) places.pop_back();
    if (places.empty()) return;
    std::vector<at::Tensor> sums, summands;
    for (size_t place : places) {
      at::Tensor& one = results[place];
      auto& leaf = *static_cast<torch::autograd::AccumulateGrad*>(next_edge(place).function.get());
      const at::Tensor& sum = leaf.variable.grad();
      if (one.is_cuda() && adds(sum, one)) {
        sums.push_back(sum);
        summands.push_back(std::move(one));
      } else {
        variable_list alone;
        alone.push_back(std::move(one));
        leaf(std::move(alone));
      }
      one = at::Tensor();
    }
    if (apart(sums)) {
      at::_foreach_add_(sums, summands);
    } else {
      for (size_t n = 0; n < sums.size(); n++) sums[n].add_(summands[n]);
    }
    if (others == 0) {
      // As many gradients as edges is what the engine asks for right after this.
      results.clear();
      WithGil gil;  // Python may be reading them, in another thread.
      edges.swap(next_edges_);
    }
  }

  // The engine's next step with a node whose graph is not kept, in the same thread: whoever asks for
  // the node after it, in this backward or later, finds it as it was.
  void release_variables() override {
    if (edges.empty()) return;
    WithGil gil;
    edges.swap(next_edges_);
  }

  // True for at least one, if no two share memory: those would be added to one after the other.
  static bool apart(const std::vector<at::Tensor>& sums) {
    std::vector<std::pair<uintptr_t, uintptr_t>> spans;
    for (const at::Tensor& one : sums) {
      uintptr_t start = address(one);
      spans.emplace_back(start, start + one.nbytes());
    }
    std::sort(spans.begin(), spans.end());
    for (size_t n = 1; n < spans.size(); n++) {
      if (spans[n].first < spans[n - 1].second) return false;
    }
    return !sums.empty();
  }

  // True for a leaf that only this call leads to, on its stream, at which no code looks on, and
  // which the engine would give `gradient` as it is.
  bool is_mine(size_t place, const at::Tensor& gradient) {
    const auto& edge = next_edge(place);
    auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get());
    if (leaf == nullptr || edge.function.use_count() != 1 || !leaf->pre_hooks().empty() ||
        !leaf->post_hooks().empty() || !leaf->tensor_pre_hooks().empty() ||
        !leaf->retains_grad_hooks().empty() || leaf->stream() != stream()) {
      return false;
    }
    const at::Tensor& variable = leaf->variable;
    return variable.requires_grad() && !variable.grad_fn() &&
           torch::autograd::impl::post_acc_grad_hooks(variable) == nullptr &&
           leaf->num_inputs() == 1 && keeps_dtype(leaf->input_metadata(0), gradient, 0) &&
           variable.sizes() == gradient.sizes() && variable.dtype() == gradient.dtype() &&
           variable.device() == gradient.device() && variable.layout() == at::kStrided;
  }

  // Newer torch lets a leaf's gradient have another dtype.
  template <class Metadata>
  static auto keeps_dtype(const Metadata& wanted, const at::Tensor& gradient, int)
      -> decltype(wanted.grad_dtype().has_value()) {
    return wanted.grad_dtype() == gradient.scalar_type();
  }

  template <class Metadata>
  static bool keeps_dtype(const Metadata&, const at::Tensor&, long) {
    return true;
  }

  // True for plain memory of one form.
  static bool adds(const at::Tensor& sum, const at::Tensor& one) {
    return sum.defined() && !sum.requires_grad() && sum.layout() == at::kStrided &&
           Form(one).fits(sum);
  }

  variable_list called(const variable_list& gradients, bool whole) {
    WithGil gil;
    try {
      return called_with_gil(gradients, whole);
    } catch (python_error& error) {
      // The engine raises it in the thread that called it.
      error.persist();
      throw;
    }
  }

  variable_list called_with_gil(const variable_list& gradients, bool whole) {
    Ref given = owned(PyTuple_New(static_cast<Py_ssize_t>(gradients.size())));
    for (size_t place = 0; place < gradients.size(); place++) {
      const at::Tensor& one = gradients[place];
      PyObject* wrapped = one.defined() ? THPVariable_Wrap(one) : Py_NewRef(Py_None);
      PyTuple_SET_ITEM(given.get(), static_cast<Py_ssize_t>(place), owned(wrapped).release());
    }
    PyObject* all[] = {context, given.get(), whole ? Py_True : Py_False};
    Ref returned = owned(PyObject_Vectorcall(backward, all, 3, nullptr));
    Sequence found = sequence(returned.get());
    variable_list results;
    if (num_outputs() == 0) return results;
    if (found.size() != num_outputs()) refuse(PyExc_RuntimeError, "a gradient is missing");
    results.reserve(found.size());
    for (size_t place = 0; place < found.size(); place++) {
      results.push_back(found[place] == Py_None ? at::Tensor() : tensor(found[place]));
    }
    return results;
  }
};

inline auto node() {
  using torch::autograd::Node;
  // In torch 2.11 nodes are shared pointers.
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<GraphedCallBackward>();
  } else {
    return std::shared_ptr<GraphedCallBackward>(
        new GraphedCallBackward(), [](GraphedCallBackward* one) { delete one; });
  }
}

// connect(backward, context, inputs, outputs, which, always, last): gives those of `outputs` whose
// places `which` names a history, as results of `inputs`; if none of these requires grad, only with
// `always`. With `last` there is no second backward.
inline PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 7) refuse(PyExc_TypeError, "connect takes seven arguments");
  Sequence inputs = sequence(args[2]), outputs = sequence(args[3]), which = sequence(args[4]);
  torch::autograd::edge_list edges(inputs.size());
  bool any = false;
  for (size_t place = 0; place < inputs.size(); place++) {
    const at::Tensor& one = tensor(inputs[place]);
    if (one.requires_grad()) {
      edges[place] = torch::autograd::impl::gradient_edge(one);
      any = true;
    }
  }
  if (!any) {
    if (args[5] != Py_True) Py_RETURN_NONE;
    edges.clear();
  }
  auto made = node();
  made->set_next_edges(std::move(edges));
  made->backward = Py_NewRef(args[0]);
  made->context = Py_NewRef(args[1]);
  made->last = args[6] == Py_True;
  for (size_t place = 0; place < which.size(); place++) {
    size_t n = PyLong_AsSize_t(which[place]);
    if (PyErr_Occurred()) raise();
    if (n >= outputs.size()) refuse(PyExc_IndexError, "there is no such output");
    torch::autograd::set_history(tensor(outputs[n]), made);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// written(tensors): counts a write of each.
inline PyObject* written(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  Sequence tensors = sequence(given);
  for (size_t place = 0; place < tensors.size(); place++) {
    const at::Tensor& one = tensor(tensors[place]);
    if (!one.is_inference()) torch::autograd::impl::bump_version(one);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// versions(tensors): how often each was written.
inline PyObject* versions(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  Sequence tensors = sequence(given);
  Ref found = owned(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
  for (size_t place = 0; place < tensors.size(); place++) {
    PyObject* one = PyLong_FromUnsignedLong(tensor(tensors[place])._version());
    PyList_SET_ITEM(found.get(), static_cast<Py_ssize_t>(place), owned(one).release());
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

// aliases(buffers): tensors over the same memory, whose writes are counted together.
inline PyObject* aliases(PyObject*, PyObject* given) {
  HANDLE_TH_ERRORS
  Sequence buffers = sequence(given);
  Ref found = owned(PyTuple_New(static_cast<Py_ssize_t>(buffers.size())));
  for (size_t place = 0; place < buffers.size(); place++) {
    const c10::TensorImpl& impl = *tensor(buffers[place]).unsafeGetTensorImpl();
    at::Tensor alias(impl.shallow_copy_and_detach(impl.version_counter(), false));
    PyObject* one = owned(THPVariable_Wrap(std::move(alias))).release();
    PyTuple_SET_ITEM(found.get(), static_cast<Py_ssize_t>(place), one);
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

// settled(parameters, buffers): true if each parameter's gradient is its buffer, and none has hooks
// or has had any; false means no more than that it must be looked at closely.
inline PyObject* settled(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2) refuse(PyExc_TypeError, "settled takes two arguments");
  Sequence parameters = sequence(args[0]), buffers = sequence(args[1]);
  if (parameters.size() != buffers.size()) refuse(PyExc_ValueError, "their numbers differ");
  for (size_t place = 0; place < parameters.size(); place++) {
    const at::Tensor& one = tensor(parameters[place]);
    if (!one.requires_grad() || !torch::autograd::impl::hooks(one).empty() ||
        torch::autograd::impl::post_acc_grad_hooks(one) != nullptr ||
        one.grad().unsafeGetTensorImpl() != tensor(buffers[place]).unsafeGetTensorImpl()) {
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace tensorplay
