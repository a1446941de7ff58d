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

  bool fits(const at::Tensor& tensor) const { return fits(*tensor.unsafeGetTensorImpl()); }

  // The stride of a dimension of size 1 addresses nothing, and no dimension does in an empty one.
  bool fits(const c10::TensorImpl& impl) const {
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

// Asks the type, as it is: an object may say by `__class__` that it is a tensor.
inline bool is_tensor(PyObject* object) {
  return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

inline const at::Tensor& tensor(PyObject* object) {
  if (!is_tensor(object)) refuse(PyExc_TypeError, "expected a tensor");
  return THPVariable_Unpack(object);
}

// Where the first element is; nothing is materialised. 0 where there is no memory.
inline uintptr_t address(const c10::TensorImpl& impl) {
  const c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || impl.numel() == 0) return 0;
  uintptr_t start = reinterpret_cast<uintptr_t>(storage->data());
  return start == 0 ? 0 : start + static_cast<size_t>(impl.storage_offset()) * impl.itemsize();
}

inline uintptr_t address(const at::Tensor& tensor) { return address(*tensor.unsafeGetTensorImpl()); }

inline std::vector<Form> forms_of(const Sequence& tensors) {
  std::vector<Form> found;
  for (size_t place = 0; place < tensors.size(); place++) found.emplace_back(tensor(tensors[place]));
  return found;
}

// Forms(tensors): a check of others against these.
struct Forms {
  std::vector<Form> forms;

  explicit Forms(PyObject* args) : forms(forms_of(sequence(only(args)))) {}

  PyObject* call(Given arguments) const {
    arguments.expect(1);
    Sequence given(arguments.items[0]);
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

// Unmoved(tensors): whether these are what they were, of the same classes, where they were.
struct Unmoved {
  // What is looked at lies in a row, and is read from front to end.
  struct One {
    PyObject* object;
    PyTypeObject* type;
    uintptr_t address;
    c10::DispatchKeySet kind;
    caffe2::TypeMeta dtype;
    c10::Device device;
    bool requires_grad;
    size_t dimensions;
  };
  std::vector<One> held;
  std::vector<int64_t> lengths;  // Sizes and strides, of one after the other.
  std::vector<Form> forms;
  std::vector<Ref> objects;

  explicit Unmoved(PyObject* args) {
    Sequence tensors = sequence(only(args));
    for (size_t place = 0; place < tensors.size(); place++) {
      const at::Tensor& one = tensor(tensors[place]);
      const Form& form = forms.emplace_back(one);
      PyTypeObject* type = Py_TYPE(tensors[place]);
      objects.push_back(Ref::to(tensors[place]));
      objects.push_back(Ref::to(reinterpret_cast<PyObject*>(type)));
      held.push_back({tensors[place], type, address(one), form.kind, form.dtype, form.device,
                      one.requires_grad(), form.sizes.size()});
      lengths.insert(lengths.end(), form.sizes.begin(), form.sizes.end());
      lengths.insert(lengths.end(), form.strides.begin(), form.strides.end());
    }
  }

  bool holds() const {
    const int64_t* expected = lengths.data();
    for (const One& one : held) {
      if (Py_TYPE(one.object) != one.type) return false;
      // Read through the object: torch can swap what stands behind two of them.
      const at::Tensor& tensor = THPVariable_Unpack(one.object);
      if (!tensor.defined()) return false;
      const c10::TensorImpl& now = *tensor.unsafeGetTensorImpl();
      if (!(kind_of(now) == one.kind) || now.dtype() != one.dtype || now.device() != one.device ||
          address(now) != one.address || now.requires_grad() != one.requires_grad) {
        return false;
      }
      bool equal = now.sizes() == c10::IntArrayRef(expected, one.dimensions) &&
                   now.strides() == c10::IntArrayRef(expected + one.dimensions, one.dimensions);
      if (!equal && !forms[static_cast<size_t>(&one - held.data())].fits(now)) return false;
      expected += 2 * one.dimensions;
    }
    return true;
  }

  PyObject* call(Given given) const {
    given.expect(0);
    return PyBool_FromLong(holds());
  }

  template <class Show>
  int visit(Show& show) const {
    return visit_all(objects, show);
  }
};

}  // namespace tensorplay
