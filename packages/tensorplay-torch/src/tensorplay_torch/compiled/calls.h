// A call of a graphed callable as a node of autograd, whose backward is a function of Python's.
#pragma once

#include "forms.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/variable.h>

namespace tensorplay {

using torch::autograd::variable_list;

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

// The node of one call. `backward(context, gradients, last)` gets the gradients of the outputs, None
// where there is none, and returns one for each input, or None; `last` is the node that the last
// input's gradient goes to.
struct GraphedCallBackward : torch::autograd::Node {
  PyObject *backward = nullptr, *context = nullptr;

  std::string name() const override { return "GraphedCallBackward"; }

  ~GraphedCallBackward() override {
    if (!Py_IsInitialized()) return;
    WithGil gil;
    Py_XDECREF(backward);
    Py_XDECREF(context);
  }

  variable_list apply(variable_list&& gradients) override {
    WithGil gil;
    try {
      return called(gradients);
    } catch (python_error& error) {
      // The engine raises it in the thread that called it.
      error.persist();
      throw;
    }
  }

  variable_list called(const variable_list& gradients) {
    Ref given = owned(PyTuple_New(static_cast<Py_ssize_t>(gradients.size())));
    for (size_t place = 0; place < gradients.size(); place++) {
      const at::Tensor& one = gradients[place];
      PyObject* wrapped = one.defined() ? THPVariable_Wrap(one) : Py_NewRef(Py_None);
      PyTuple_SET_ITEM(given.get(), static_cast<Py_ssize_t>(place), owned(wrapped).release());
    }
    Ref last = Ref::to(Py_None);
    if (num_outputs() > 0 && next_edge(num_outputs() - 1).is_valid()) {
      last = owned(torch::autograd::functionToPyObject(next_edge(num_outputs() - 1).function));
    }
    PyObject* all[] = {context, given.get(), last.get()};
    Ref returned = owned(PyObject_Vectorcall(backward, all, 3, nullptr));
    Sequence found = sequence(returned.get());
    if (found.size() != num_outputs()) refuse(PyExc_RuntimeError, "a gradient is missing");
    variable_list results;
    results.reserve(found.size());
    for (size_t place = 0; place < found.size(); place++) {
      results.push_back(found[place] == Py_None ? at::Tensor() : tensor(found[place]));
    }
    return results;
  }
};

inline auto node() {
  using torch::autograd::Node;
  // Until torch 2.12 nodes were shared pointers.
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>) {
    return c10::make_intrusive<GraphedCallBackward>();
  } else {
    return std::shared_ptr<GraphedCallBackward>(
        new GraphedCallBackward(), [](GraphedCallBackward* one) { delete one; });
  }
}

// connect(backward, context, inputs, outputs, which): gives those of `outputs` whose places `which`
// names a history, as results of `inputs`. Without an input that requires grad it does nothing.
inline PyObject* connect(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 5) refuse(PyExc_TypeError, "connect takes five arguments");
  Sequence inputs = sequence(args[2]), outputs = sequence(args[3]), which = sequence(args[4]);
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  bool any = false;
  for (size_t place = 0; place < inputs.size(); place++) {
    const at::Tensor& one = tensor(inputs[place]);
    if (one.requires_grad()) {
      edges.push_back(torch::autograd::impl::gradient_edge(one));
      any = true;
    } else {
      edges.emplace_back();
    }
  }
  if (!any) Py_RETURN_NONE;
  auto made = node();
  made->set_next_edges(std::move(edges));
  made->backward = Py_NewRef(args[0]);
  made->context = Py_NewRef(args[1]);
  for (size_t place = 0; place < which.size(); place++) {
    size_t n = PyLong_AsSize_t(which[place]);
    if (PyErr_Occurred()) raise();
    if (n >= outputs.size()) refuse(PyExc_IndexError, "there is no such output");
    torch::autograd::set_history(tensor(outputs[n]), made);
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

// settled(parameters, buffers): true if each parameter's gradient is its buffer, and none has hooks
// or has had any; false means no more than that it must be looked at closely.
inline PyObject* settled(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2) refuse(PyExc_TypeError, "settled takes two arguments");
  Sequence parameters = sequence(args[0]), buffers = sequence(args[1]);
  if (parameters.size() != buffers.size()) refuse(PyExc_ValueError, "their numbers differ");
  for (size_t place = 0; place < parameters.size(); place++) {
    const at::Tensor& one = tensor(parameters[place]);
    if (!torch::autograd::impl::hooks(one).empty() ||
        torch::autograd::impl::post_acc_grad_hooks(one) != nullptr ||
        one.grad().unsafeGetTensorImpl() != tensor(buffers[place]).unsafeGetTensorImpl()) {
      Py_RETURN_FALSE;
    }
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

}  // namespace tensorplay
