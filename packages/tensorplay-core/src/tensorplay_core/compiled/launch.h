/* Launch(python, native, token, current, target, failed, function) is called as `python(stream=None)`
 * is, and does what that does: it takes the token, calls the driver, gives the token back. What is
 * unusual goes to `python`, with nothing done: a token that somebody else has, other arguments, and
 * all calls while `plain` is false. A code of the driver's goes to `failed(code, handle)`, errors of
 * `current()` and `target(stream)` to the caller. In place of a callable `current` may be a tuple: the
 * address of a C function `intptr_t (int)`, which returns the current stream's handle, or -1 with an
 * error set, and what to call it with; the GIL is held.
 *
 * Between taking the token and giving it back this thread runs no Python.
 */

#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#include "token.h"

typedef int (*Function)(void *executable, void *stream);
typedef intptr_t (*Where)(int device);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Token *token;
    PyObject *python, *current, *target, *failed;
    PyObject *known; /* the last stream object, whose handle is `handle` */
    void *handle, *native;
    Function function;
    Where where; /* NULL where `current` has to be called */
    int device;
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
    if (stream == NULL || stream == Py_None) {
        if (self->where != NULL)
            return (void *)self->where(self->device);
        stream = PyObject_CallNoArgs(self->current);
    }
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
    PyObject *stream = NULL;
    void *handle, *native = self->native;
    Function function = self->function;
    int unknown = 0, code = 0;

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
    if ((handle == NULL || handle == (void *)-1) && PyErr_Occurred())
        return NULL;
    /* Code that this ran may have closed it. */
    if (unknown || !self->plain || !self->token->there)
        return the_long_way(self, args, nargsf, names);
    /* Whoever changes or closes it does so in a turn. */
    self->token->there = 0;
    /* A full queue makes the driver wait, for work that may need Python to go on. */
    Py_BEGIN_ALLOW_THREADS
    code = function(native, handle);
    Py_END_ALLOW_THREADS
    self->token->there = 1;
    if (code != 0)
        return PyObject_CallFunction(self->failed, "iN", code, PyLong_FromVoidPtr(handle));
    Py_RETURN_NONE;
}

static PyObject *
launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *python, *native, *token, *current, *target, *failed, *function, *number;
    Launch *self;
    if (!PyArg_ParseTuple(args, "OO!O!OOOO!:Launch", &python, &PyLong_Type, &native, token_type,
                          &token, &current, &target, &failed, &PyLong_Type, &function))
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
    self->token = (Token *)Py_NewRef(token);
    self->current = Py_NewRef(current);
    self->target = Py_NewRef(target);
    self->failed = Py_NewRef(failed);
    self->native = PyLong_AsVoidPtr(native);
    self->function = (Function)PyLong_AsVoidPtr(function);
    self->plain = 1;
    if (PyTuple_Check(current)) {
        void *where;
        if (PyArg_ParseTuple(current, "O!i:Launch", &PyLong_Type, &number, &self->device) &&
            (where = PyLong_AsVoidPtr(number)) != NULL)
            self->where = (Where)where;
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the address of a function is 0");
    }
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
    Py_VISIT(self->token);
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
    Py_XDECREF(self->token);
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
