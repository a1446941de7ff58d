// The staged launch of the common case: inputs checked, addresses in, one launch, fresh results out.
#pragma once

#include "forms.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Allocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstring>

namespace tensorplay {

// CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h, which need not be there to build this.
struct KernelNode {
  void* function = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void** parameters = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  void* context = nullptr;
};

// The driver's functions, by their addresses. All return a code, 0 if all is well.
struct Driver {
  int (*launch)(void* executable, void* stream);
  int (*set_kernel)(void* executable, void* node, const KernelNode* parameters);
  int (*is_capturing)(void* stream, int* status);
  int (*context)(void** current);
};

struct Names {
  Ref closed = owned(PyUnicode_InternFromString("closed"));
  Ref generation = owned(PyUnicode_InternFromString("generation"));
  Ref last = owned(PyUnicode_InternFromString("last"));
  Ref where = owned(PyUnicode_InternFromString("where"));
  Ref sets = owned(PyUnicode_InternFromString("sets"));
};

inline void* pointer(PyObject* number) {
  void* found = PyLong_AsVoidPtr(number);
  if (found == nullptr && PyErr_Occurred()) raise();
  return found;
}

inline unsigned count(PyObject* number) {
  unsigned long found = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred()) raise();
  return static_cast<unsigned>(found);
}

// Rail(long_way, static, results, track, functions, current, device): called with the inputs it
// is a staged launch. Whatever is unusual goes to `long_way`, which knows every case. `track` is a core
// `Track`; `functions` are the addresses in `Driver`; `current(device)` is the current stream's
// handle. It makes no use of Python between taking the turn and giving it back.
struct Rail {
  Ref long_way, executable, dead, take, give, order, native, keep, current, device;
  long long generation;
  std::vector<Form> inputs, results;
  std::vector<std::pair<uintptr_t, uintptr_t>> spans;  // Of the buffers, in order.
  void *graph, *node, *context;
  unsigned char* table;
  char* turn;  // 1 while it is there; null where `take` and `give` have to be called.
  KernelNode kernel;
  Driver driver;
  std::vector<uintptr_t> known;  // The addresses set last, and what `keep.sets` was then.
  long long known_sets = -1;
  bool special;  // On several GPUs special handles mean the stream of whichever is current.
  // With one GPU, whose is the current device.
  c10::Allocator* allocator = nullptr;
  c10::DispatchKeySet keys{c10::DispatchKey::CUDA};
  Names names;

  explicit Rail(PyObject* given) {
    Sequence args(given);
    if (args.size() != 7) refuse(PyExc_TypeError, "Rail takes seven arguments");
    long_way = Ref::to(args[0]);
    Sequence buffers = sequence(args[1]);
    inputs = forms_of(buffers);
    results = forms_of(sequence(args[2]));
    for (size_t place = 0; place < inputs.size(); place++) {
      uintptr_t start = address(tensor(buffers[place]));
      if (inputs[place].nbytes > 0) spans.emplace_back(start, start + inputs[place].nbytes);
    }
    std::sort(spans.begin(), spans.end());
    // Nothing may fail between taking the turn and giving it back.
    known.reserve(inputs.size() + results.size());
    Sequence track = sequence(args[3]);
    if (track.size() != 19) refuse(PyExc_TypeError, "unknown track");
    executable = Ref::to(track[0]);
    generation = PyLong_AsLongLong(track[1]);
    dead = Ref::to(track[2]);
    take = Ref::to(track[3]);
    give = Ref::to(track[4]);
    order = Ref::to(track[5]);
    native = Ref::to(track[6]);
    keep = Ref::to(track[7]);
    graph = pointer(track[8]);
    node = pointer(track[9]);
    kernel.function = pointer(track[10]);
    kernel.grid[0] = count(track[11]);
    kernel.grid[1] = count(track[12]);
    kernel.block[0] = count(track[13]);
    kernel.parameters = static_cast<void**>(pointer(track[14]));
    table = static_cast<unsigned char*>(pointer(track[15]));
    turn = static_cast<char*>(pointer(track[16]));
    special = PyObject_IsTrue(track[17]);
    context = pointer(track[18]);
    Sequence functions = sequence(args[4]);
    if (functions.size() != 4) refuse(PyExc_TypeError, "expected four functions");
    driver.launch = reinterpret_cast<int (*)(void*, void*)>(pointer(functions[0]));
    driver.set_kernel =
        reinterpret_cast<int (*)(void*, void*, const KernelNode*)>(pointer(functions[1]));
    driver.is_capturing = reinterpret_cast<int (*)(void*, int*)>(pointer(functions[2]));
    driver.context = reinterpret_cast<int (*)(void**)>(pointer(functions[3]));
    current = Ref::to(args[5]);
    device = Ref::to(args[6]);
    if (!special && !results.empty() && results[0].device.is_cuda()) {
      allocator = c10::GetAllocator(c10::kCUDA);
    }
    if (!PyList_Check(dead.get())) refuse(PyExc_TypeError, "unknown track");
    if (PyErr_Occurred()) raise();
  }

  PyObject* call(Given given) {
    if (given.size() == 1 && !given.named()) {
      if (PyObject* made = launch(given.items[0])) return made;
    }
    return PyObject_Vectorcall(long_way.get(), given.items, given.flags, given.names);
  }

  // The results, or null, with nothing done, for what is to go the long way.
  PyObject* launch(PyObject* given) {
    Sequence arrays(given);
    size_t total = inputs.size();
    if (!arrays || arrays.size() != total) return nullptr;
    if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return nullptr;
    c10::SmallVector<uintptr_t, 32> addresses;
    c10::SmallVector<at::Tensor, 16> made;
    for (size_t place = 0; place < total; place++) {
      const at::Tensor* one = plain(arrays[place]);
      const Form& form = inputs[place];
      if (one == nullptr || !form.fits(*one)) return nullptr;
      uintptr_t start = address(*one);
      if (form.nbytes > 0 && (start == 0 || touches(start, start + form.nbytes))) return nullptr;
      addresses.push_back(start);
    }
    if (!results.empty()) {
      at::AutoDispatchBelowADInplaceOrView below;
      for (const Form& form : results) {
        made.push_back(fresh(form));
        addresses.push_back(address(made.back()));
      }
    }
    Ref handle = owned(PyObject_CallOneArg(current.get(), device.get()));
    void* stream = pointer(handle.get());
    if (special && reinterpret_cast<uintptr_t>(stream) <= 2) return nullptr;
    if (!taken()) return nullptr;
    bool done = usual(stream) && issue(addresses.data(), addresses.size(), stream);
    give_back();
    if (!done) return nullptr;
    Ref tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(made.size())));
    for (size_t place = 0; place < made.size(); place++) {
      PyObject* one = owned(THPVariable_Wrap(std::move(made[place]))).release();
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(place), one);
    }
    return tuple.release();
  }

  bool taken() const {
    if (turn != nullptr) return std::exchange(*turn, 0) != 0;
    Ref said(PyObject_CallNoArgs(take.get()));
    if (!said) PyErr_Clear();
    return static_cast<bool>(said);
  }

  void give_back() const {
    if (turn != nullptr) {
      *turn = 1;
    } else {
      owned(PyObject_CallOneArg(give.get(), Py_None));
    }
  }

  // New memory, for work on the current stream.
  at::Tensor fresh(const Form& form) const {
    if (allocator != nullptr && !c10::InferenceMode::is_enabled()) {
      return at::Tensor(at::detail::empty_strided_generic(
          form.sizes, form.strides, allocator, keys, form.dtype.toScalarType()));
    }
    auto options = at::TensorOptions().dtype(form.dtype).device(form.device);
    return at::empty_strided(form.sizes, form.strides, options);
  }

  // True if a copy from there would read what the copies of this launch write.
  bool touches(uintptr_t start, uintptr_t stop) const {
    auto after = std::lower_bound(spans.begin(), spans.end(), std::make_pair(stop, uintptr_t(0)));
    return after != spans.begin() && std::prev(after)->second > start;
  }

  bool is(const Ref& owner, const Ref& name, PyObject* expected) const {
    Ref found(PyObject_GetAttr(owner.get(), name.get()));
    if (!found) PyErr_Clear();
    return found.get() == expected;
  }

  long long number(const Ref& owner, const Ref& name) const {
    Ref found(PyObject_GetAttr(owner.get(), name.get()));
    long long value = found && PyLong_Check(found.get()) ? PyLong_AsLongLong(found.get()) : -1;
    if (PyErr_Occurred()) PyErr_Clear();
    return value;
  }

  // In its turn: the graph is as it was, and was itself what was last launched, on this stream.
  bool usual(void* stream) const {
    if (PyList_GET_SIZE(dead.get()) != 0 || !is(executable, names.closed, Py_False) ||
        number(executable, names.generation) != generation ||
        !is(order, names.last, native.get()) ||
        number(order, names.where) != static_cast<long long>(reinterpret_cast<intptr_t>(stream))) {
      return false;
    }
    void* here = nullptr;  // Without one the driver ends the process where a kernel is set.
    if (driver.context(&here) != 0 || here != context) return false;
    int capturing = 0;
    return driver.is_capturing(stream, &capturing) == 0 && capturing == 0;
  }

  bool issue(const uintptr_t* addresses, size_t total, void* stream) {
    // Memory comes from a few places over and over: often it is all where it was before. Then the
    // kernel has its parameters, unless Python's launches have set others meanwhile.
    long long sets = number(keep, names.sets);
    bool set = sets < 0 || sets != known_sets || known.size() != total ||
               std::memcmp(known.data(), addresses, total * sizeof(uintptr_t)) != 0;
    if (set) {
      known_sets = -1;
      known.assign(addresses, addresses + total);
      std::memcpy(table, addresses, total * sizeof(uintptr_t));
    }
    int code = 0;
    // A full queue makes the driver wait, for work that may need Python to go on.
    Py_BEGIN_ALLOW_THREADS;
    if (set) code = driver.set_kernel(graph, node, &kernel);
    if (code == 0) code = driver.launch(graph, stream);
    Py_END_ALLOW_THREADS;
    if (code != 0) return false;
    known_sets = sets;
    return true;
  }

  template <class Show>
  int visit(Show& show) const {
    for (const Ref* one : {&long_way, &executable, &dead, &take, &give, &order, &native, &keep,
                           &current, &device}) {
      if (int stop = show(*one)) return stop;
    }
    return 0;
  }
};

}  // namespace tensorplay
