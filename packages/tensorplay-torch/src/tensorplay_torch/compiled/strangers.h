// Which tensors of an operation need a closer look, and which it bore.
#pragma once

#include "forms.h"

#include <tuple>

namespace tensorplay {

// True if nothing has to be done for a tensor: its storage, by its address, is a key of `known`, and
// no gradient will be bound to it.
inline bool is_known(PyObject* value, PyObject* known) {
  const at::Tensor* tensor = plain(value);
  if (tensor == nullptr) return false;
  const c10::TensorImpl& impl = *tensor->unsafeGetTensorImpl();
  if (impl.requires_grad() && tensor->is_leaf()) return false;
  const c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) return false;
  Ref key = owned(PyLong_FromVoidPtr(const_cast<c10::StorageImpl*>(storage)));
  int found = PyDict_Contains(known, key.get());
  if (found < 0) raise();
  return found != 0;
}

// Memory that this takes may set off a collection, and finalisers change lists: nothing is kept of one
// from one entry to the next.
inline void collect(PyObject* value, PyObject* known, Ref& found) {
  if (is_tensor(value)) {
    if (is_known(value, known)) return;
    if (!found) found = owned(PyList_New(0));
    if (PyList_Append(found.get(), value) < 0) raise();
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    if (Py_EnterRecursiveCall(" in arguments of an operation")) raise();
    Recursion entered;
    for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(value); place++) {
      Ref one = Ref::to(PySequence_Fast_GET_ITEM(value, place));
      collect(one.get(), known, found);
    }
  }
}

// strangers(values, known): the tensors among `values`, in lists and tuples too, but for those that
// `is_known` says yes to.
inline PyObject* strangers(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 2 || !PyDict_Check(args[1])) refuse(PyExc_TypeError, "expected values and a dict");
  Ref found;
  collect(args[0], args[1], found);
  return found ? found.release() : owned(PyTuple_New(0)).release();
  END_HANDLE_TH_ERRORS
}

// Takes in the storages of a result that are not known: their identities stay theirs, by weak
// references that `held` counts. Leaves the tensors that are not torch's own to Python.
inline void bear(PyObject* value, PyObject* const* books, Ref& left) {
  auto [known, held, written, clock] = std::tuple(books[0], books[1], books[2], books[3]);
  if (is_tensor(value)) {
    const at::Tensor* tensor = plain(value);
    c10::StorageImpl* storage =
        tensor == nullptr
            ? nullptr
            : tensor->unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr) {
      if (!left) left = owned(PyList_New(0));
      if (PyList_Append(left.get(), value) < 0) raise();
      return;
    }
    Ref key = owned(PyLong_FromVoidPtr(storage));
    int found = PyDict_Contains(known, key.get());
    if (found < 0) raise();
    if (found) return;
    c10::raw::intrusive_ptr::make_weak(storage);
    if (PyList_Append(held, key.get()) < 0) {
      c10::raw::weak_intrusive_ptr::decref(storage);
      raise();
    }
    if (PyDict_SetItem(known, key.get(), Py_True) < 0) raise();
    if (PyDict_SetItem(written, key.get(), clock) < 0) raise();
  } else if (PyTuple_Check(value) || PyList_Check(value)) {
    if (Py_EnterRecursiveCall(" in results of an operation")) raise();
    Recursion entered;
    for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(value); place++) {
      Ref one = Ref::to(PySequence_Fast_GET_ITEM(value, place));
      bear(one.get(), books, left);
    }
  }
}

// born(result, known, held, written, clock): the tensors that `bear` leaves.
inline PyObject* born(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count != 5 || !PyDict_Check(args[1]) || !PyList_Check(args[2]) || !PyDict_Check(args[3])) {
    refuse(PyExc_TypeError, "expected a result, a dict, a list, a dict and a number");
  }
  Ref left;
  bear(args[0], args + 1, left);
  return left ? left.release() : owned(PyTuple_New(0)).release();
  END_HANDLE_TH_ERRORS
}

}  // namespace tensorplay
