// Tensors compared with those of a capture.
#pragma once

#include "objects.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <optional>

namespace tensorplay {

// What says how memory is read. What autograd, autocast and inference mode add to a tensor does not.
inline c10::DispatchKeySet kind_of(const c10::TensorImpl& impl) {
  return impl.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView -
         c10::autocast_dispatch_keyset;
}

struct Form {
  c10::DispatchKeySet kind;
  caffe2::TypeMeta dtype;
  c10::Device device;
  std::vector<int64_t> sizes, strides;
  size_t nbytes;

  explicit Form(const at::Tensor& tensor)
      : kind(kind_of(*tensor.unsafeGetTensorImpl())),
        dtype(tensor.dtype()),
        device(tensor.device()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        nbytes(tensor.nbytes()) {}

  // The stride of a dimension of size 1 addresses nothing, and no dimension does in an empty one.
  bool fits(const at::Tensor& tensor) const {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (!(kind_of(impl) == kind) || impl.dtype() != dtype || impl.device() != device) return false;
    auto given = impl.sizes();
    if (given != c10::IntArrayRef(sizes)) return false;
    auto steps = impl.strides();
    if (steps == c10::IntArrayRef(strides) || nbytes == 0) return true;
    for (size_t place = 0; place < sizes.size(); place++) {
      if (sizes[place] != 1 && steps[place] != strides[place]) return false;
    }
    return true;
  }
};

// A tensor of torch's own, that nothing dispatches by itself; null if it is none.
inline const at::Tensor* plain(PyObject* object) {
  auto* type = Py_TYPE(object);
  if (type != reinterpret_cast<PyTypeObject*>(THPVariableClass) &&
      type != reinterpret_cast<PyTypeObject*>(ParameterClass)) {
    return nullptr;
  }
  const at::Tensor& found = THPVariable_Unpack(object);
  return found.defined() ? &found : nullptr;
}

inline const at::Tensor& tensor(PyObject* object) {
  if (!THPVariable_Check(object)) refuse(PyExc_TypeError, "expected a tensor");
  return THPVariable_Unpack(object);
}

// Where the first element is; nothing is materialised. 0 where there is no memory.
inline uintptr_t address(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage()) return 0;
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
}

inline std::vector<Form> forms_of(const Sequence& tensors) {
  std::vector<Form> found;
  for (size_t place = 0; place < tensors.size(); place++) found.emplace_back(tensor(tensors[place]));
  return found;
}

// Forms(tensors): a check of others against these.
struct Forms {
  std::vector<Form> forms;

  explicit Forms(PyObject* args) : forms(forms_of(sequence(only(args)))) {}

  PyObject* call(PyObject* args, PyObject*) const {
    Sequence given(only(args));
    if (!given || given.size() != forms.size()) Py_RETURN_FALSE;
    for (size_t place = 0; place < forms.size(); place++) {
      const at::Tensor* one = plain(given[place]);
      if (one == nullptr || !forms[place].fits(*one)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
  }

  template <class Show>
  int visit(Show&) const {
    return 0;
  }
};

// Unmoved(tensors): whether these are what they were, where they were.
struct Unmoved {
  struct One {
    Ref object;
    uintptr_t address;
    bool requires_grad;
    Form form;
  };
  std::vector<One> held;

  explicit Unmoved(PyObject* args) {
    Sequence tensors = sequence(only(args));
    for (size_t place = 0; place < tensors.size(); place++) {
      const at::Tensor& one = tensor(tensors[place]);
      held.push_back({Ref::to(tensors[place]), address(one), one.requires_grad(), Form(one)});
    }
  }

  PyObject* call(PyObject*, PyObject*) const {
    for (const One& one : held) {
      // Read through the object: torch can swap what stands behind two of them.
      const at::Tensor& now = THPVariable_Unpack(one.object.get());
      if (!now.defined() || !one.form.fits(now) || address(now) != one.address ||
          now.requires_grad() != one.requires_grad) {
        Py_RETURN_FALSE;
      }
    }
    Py_RETURN_TRUE;
  }

  template <class Show>
  int visit(Show& show) const {
    for (const One& one : held) {
      if (int stop = show(one.object)) return stop;
    }
    return 0;
  }
};

}  // namespace tensorplay
