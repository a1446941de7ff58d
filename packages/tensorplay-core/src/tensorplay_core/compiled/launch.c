/* The launch of an executable in the common case, with no frame of Python's around it.
 *
 * Launch(python, native, take, give, current, target, failed, function) is called as
 * `python(stream=None)` is, and does what that does: it takes the turn, calls the driver, gives the
 * turn back. What is unusual goes to `python`, with nothing done: a turn that somebody else has, other
 * arguments, and all calls while `plain` is false. A code of the driver's goes to `failed(code,
 * handle)`, errors of `current()` and `target(stream)` to the caller.
 *
 * Between taking the turn and giving it back this thread runs no Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef int (*Function)(void *executable, void *stream);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *python, *take, *give, *current, *target, *failed;
    PyObject *known; /* the last stream object, whose handle is `handle` */
    void *handle, *native;
    Function function;
    char plain;
} Launch;

static PyObject *stream_name; /* "stream" */

/* What `python` does for this stream, or the error. */
static PyObject *
the_long_way(Launch *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    return PyObject_Vectorcall(self->python, args, nargsf, names);
}

/* The handle of a stream; 0 with *unknown set where only Python can tell, or with an error set. */
static void *
handle_of(Launch *self, PyObject *stream, int *unknown)
{
    PyObject *number;
    void *handle;
    if (stream == NULL || stream == Py_None)
        stream = PyObject_CallNoArgs(self->current);
    else
        Py_INCREF(stream);
    if (stream == NULL)
        return NULL;
    if (stream == self->known) {
        Py_DECREF(stream);
        return self->handle;
    }
    if (PyLong_CheckExact(stream))
        number = Py_NewRef(stream);
    else
        /* Python's own look at it, which raises for what is no stream. */
        number = PyObject_CallOneArg(self->target, stream);
    if (number == NULL) {
        Py_DECREF(stream);
        return NULL;
    }
    handle = PyLong_Check(number) ? PyLong_AsVoidPtr(number) : (void *)-1;
    Py_DECREF(number);
    if ((handle == NULL && PyErr_Occurred()) || (intptr_t)handle < 0) {
        PyErr_Clear();
        Py_DECREF(stream);
        *unknown = 1;
        return NULL;
    }
    if (PyLong_CheckExact(stream)) {
        Py_DECREF(stream);
    }
    else {
        /* In this order: what goes may run code, which may launch. */
        PyObject *before = self->known;
        self->known = stream;
        self->handle = handle;
        Py_XDECREF(before);
    }
    return handle;
}

static PyObject *
launch_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Launch *self = (Launch *)object;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    PyObject *stream = NULL, *turn;
    void *handle, *native = self->native;
    Function function = self->function;
    int unknown = 0, code;

    if (names != NULL && PyTuple_GET_SIZE(names) == 1 && given == 0 &&
        PyUnicode_Compare(PyTuple_GET_ITEM(names, 0), stream_name) == 0)
        stream = args[0];
    else if (given == 1 && (names == NULL || PyTuple_GET_SIZE(names) == 0))
        stream = args[0];
    else if (given != 0 || (names != NULL && PyTuple_GET_SIZE(names) != 0))
        return the_long_way(self, args, nargsf, names);
    if (!self->plain)
        return the_long_way(self, args, nargsf, names);
    handle = handle_of(self, stream, &unknown);
    if (handle == NULL && PyErr_Occurred())
        return NULL;
    /* Code that this ran may have closed it. */
    if (unknown || !self->plain)
        return the_long_way(self, args, nargsf, names);
    turn = PyObject_CallNoArgs(self->take);
    if (turn == NULL) {
        PyErr_Clear();
        return the_long_way(self, args, nargsf, names);
    }
    Py_DECREF(turn);
    /* Whoever changes or closes it does so in a turn. */
    code = 0;
    unknown = !self->plain;
    if (!unknown) {
        /* A full queue makes the driver wait, for work that may need Python to go on. */
        Py_BEGIN_ALLOW_THREADS
        code = function(native, handle);
        Py_END_ALLOW_THREADS
    }
    turn = PyObject_CallOneArg(self->give, Py_None);
    if (turn == NULL)
        return NULL;
    Py_DECREF(turn);
    if (unknown)
        return the_long_way(self, args, nargsf, names);
    if (code != 0)
        return PyObject_CallFunction(self->failed, "iN", code, PyLong_FromVoidPtr(handle));
    Py_RETURN_NONE;
}

static PyObject *
launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *python, *native, *take, *give, *current, *target, *failed, *function;
    Launch *self;
    if (!PyArg_ParseTuple(args, "OO!OOOOOO!:Launch", &python, &PyLong_Type, &native, &take, &give,
                          &current, &target, &failed, &PyLong_Type, &function))
        return NULL;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Launch takes no keywords");
        return NULL;
    }
    self = (Launch *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = launch_call;
    self->python = Py_NewRef(python);
    self->take = Py_NewRef(take);
    self->give = Py_NewRef(give);
    self->current = Py_NewRef(current);
    self->target = Py_NewRef(target);
    self->failed = Py_NewRef(failed);
    self->native = PyLong_AsVoidPtr(native);
    self->function = (Function)PyLong_AsVoidPtr(function);
    self->plain = 1;
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
launch_traverse(PyObject *object, visitproc visit, void *arg)
{
    Launch *self = (Launch *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->python);
    Py_VISIT(self->take);
    Py_VISIT(self->give);
    Py_VISIT(self->current);
    Py_VISIT(self->target);
    Py_VISIT(self->failed);
    Py_VISIT(self->known);
    return 0;
}

static int
launch_clear(PyObject *object)
{
    /* `known` only: what the object calls is needed as long as anybody can call it, and every cycle
     * that it is in goes through functions or dicts, which let go of it. */
    Py_CLEAR(((Launch *)object)->known);
    return 0;
}

static void
launch_destroy(PyObject *object)
{
    Launch *self = (Launch *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->python);
    Py_XDECREF(self->take);
    Py_XDECREF(self->give);
    Py_XDECREF(self->current);
    Py_XDECREF(self->target);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->known);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef launch_members[] = {
    {"plain", T_BOOL, offsetof(Launch, plain), 0, "Calls need nothing but the driver."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot launch_slots[] = {
    {Py_tp_new, launch_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, launch_traverse},
    {Py_tp_clear, launch_clear},
    {Py_tp_dealloc, launch_destroy},
    {Py_tp_members, launch_members},
    {Py_tp_doc, "A launch: call it with a stream or without."},
    {0, NULL},
};

static PyType_Spec launch_spec = {
    "launch.Launch",
    sizeof(Launch),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    launch_slots,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launch", NULL, -1, NULL};

PyMODINIT_FUNC
PyInit_launch(void)
{
    PyObject *module = PyModule_Create(&definition), *type;
    if (module == NULL)
        return NULL;
    stream_name = PyUnicode_InternFromString("stream");
    type = PyType_FromSpec(&launch_spec);
    if (stream_name == NULL || type == NULL ||
        PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
