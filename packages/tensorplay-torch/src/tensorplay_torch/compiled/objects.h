// Python objects around C++ ones: references that own, and types made from plain structs.
#pragma once

#include <Python.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tensorplay {

// A strong reference. Made, copied and dropped with the GIL held.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref(const Ref& other) : object_(Py_XNewRef(other.object_)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// An exception is set: unwinds to the caller in Python. HANDLE_TH_ERRORS stands around every entry.
[[noreturn]] inline void raise() { throw python_error(); }

inline Ref owned(PyObject* object) {
  if (object == nullptr) raise();
  return Ref(object);
}

[[noreturn]] inline void refuse(PyObject* kind, const char* met) {
  PyErr_SetString(kind, met);
  raise();
}

// After `Py_EnterRecursiveCall`.
struct Recursion {
  ~Recursion() { Py_LeaveRecursiveCall(); }
};

// A list or a tuple, for as long as nothing else runs.
class Sequence {
 public:
  Sequence() : size_(0) {}
  explicit Sequence(PyObject* object) : size_(-1) {
    if (PyTuple_Check(object) || PyList_Check(object)) {
      size_ = PySequence_Fast_GET_SIZE(object);
      items_ = PySequence_Fast_ITEMS(object);
    }
  }
  explicit operator bool() const { return size_ >= 0; }
  size_t size() const { return static_cast<size_t>(size_); }
  PyObject* operator[](size_t place) const { return items_[place]; }

 private:
  Py_ssize_t size_;
  PyObject** items_ = nullptr;
};

inline Sequence sequence(PyObject* object) {
  Sequence found(object);
  if (!found) refuse(PyExc_TypeError, "expected a list or a tuple");
  return found;
}

// The one argument that an object is made of.
inline PyObject* only(PyObject* args) {
  if (PyTuple_GET_SIZE(args) != 1) refuse(PyExc_TypeError, "expected one argument");
  return PyTuple_GET_ITEM(args, 0);
}

// The arguments of a call, as Python's vectorcall hands them over.
struct Given {
  PyObject* const* items;
  size_t flags;
  PyObject* names;

  size_t size() const { return static_cast<size_t>(PyVectorcall_NARGS(flags)); }
  bool named() const { return names != nullptr && PyTuple_GET_SIZE(names) > 0; }
  void expect(size_t count) const {
    if (size() != count || named()) refuse(PyExc_TypeError, "expected another number of arguments");
  }
};

// A Python type whose instances hold a `T`. `T` is made of a tuple of arguments, is called
// (`PyObject* call(Given)`), and shows its references to the collector (`visit`).
template <class T>
struct Object {
  PyObject_HEAD;
  T* inside;
  vectorcallfunc vectorcall;
  inline static PyTypeObject* type = nullptr;

  // What is in an object of this very type; null in others.
  static T* in(PyObject* object) {
    return Py_TYPE(object) == type ? reinterpret_cast<Object*>(object)->inside : nullptr;
  }

  static T& of(PyObject* self) {
    T* found = reinterpret_cast<Object*>(self)->inside;
    if (found == nullptr) refuse(PyExc_ReferenceError, "it was collected");
    return *found;
  }

  static PyObject* create(PyTypeObject* made_of, PyObject* args, PyObject* names) {
    HANDLE_TH_ERRORS
    if (names != nullptr && PyDict_GET_SIZE(names) != 0) {
      refuse(PyExc_TypeError, "expected no keywords");
    }
    auto made = std::make_unique<T>(args);
    auto* self = reinterpret_cast<Object*>(owned(made_of->tp_alloc(made_of, 0)).release());
    self->inside = made.release();
    self->vectorcall = call;
    return reinterpret_cast<PyObject*>(self);
    END_HANDLE_TH_ERRORS
  }

  static PyObject* call(PyObject* self, PyObject* const* items, size_t flags, PyObject* names) {
    HANDLE_TH_ERRORS
    return of(self).call(Given{items, flags, names});
    END_HANDLE_TH_ERRORS
  }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (T* inside = reinterpret_cast<Object*>(self)->inside) {
      auto show = [&](const Ref& one) { return one ? visit(one.get(), arg) : 0; };
      return inside->visit(show);
    }
    return 0;
  }

  static int clear(PyObject* self) {
    delete std::exchange(reinterpret_cast<Object*>(self)->inside, nullptr);
    return 0;
  }

  static void destroy(PyObject* self) {
    PyTypeObject* own = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    own->tp_free(self);
    Py_DECREF(own);
  }

  static void add(PyObject* module, const char* name, const char* doc) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Object, vectorcall), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    };
    PyType_Slot slots[] = {
        {Py_tp_new, reinterpret_cast<void*>(create)},
        {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
        {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(clear)},
        {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
        {Py_tp_members, members},
        {Py_tp_doc, const_cast<char*>(doc)},
        {0, nullptr},
    };
    constexpr unsigned flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Spec spec = {name, sizeof(Object), 0, flags, slots};
    type = reinterpret_cast<PyTypeObject*>(owned(PyType_FromSpec(&spec)).release());
    if (PyModule_AddType(module, type) < 0) raise();
  }
};

template <class Show>
int visit_all(const std::vector<Ref>& refs, Show& show) {
  for (const Ref& one : refs) {
    if (int stop = show(one)) return stop;
  }
  return 0;
}

}  // namespace tensorplay
