/* The launch of an executable in the common case, with no frame of Python's around it.
 *
 * Token() is what a turn is taken with: `take()` raises IndexError while somebody has it, `give(None)`
 * brings it back, and is harmless where it is there. `flag` is the address of a byte, 1 while it is
 * there, for code that holds the GIL.
 *
 * Launch(python, native, token, current, target, failed, function) is called as `python(stream=None)`
 * is, and does what that does: it takes the token, calls the driver, gives the token back. What is
 * unusual goes to `python`, with nothing done: a token that somebody else has, other arguments, and
 * all calls while `plain` is false. A code of the driver's goes to `failed(code, handle)`, errors of
 * `current()` and `target(stream)` to the caller. In place of a callable `current` may be a tuple: the
 * address of a C function `intptr_t (int)`, which returns the current stream's handle, or -1 with an
 * error set, and what to call it with; the GIL is held.
 *
 * count(function, graph) asks `cuGraphGetNodes`, at the address `function`, how many nodes there are.
 *
 * functions(get_nodes, get_type, get_parameters, graph) is a tuple of what the nodes run, by the
 * addresses of `cuGraphGetNodes`, `cuGraphNodeGetType` and `cuGraphKernelNodeGetParams`: the handle of
 * a kernel's function, -1 less the kind of another node. It is None where a node holds a graph, whose
 * nodes would count too, and where the driver does not say.
 *
 * Between taking the token and giving it back this thread runs no Python.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef int (*Function)(void *executable, void *stream);
typedef intptr_t (*Where)(int device);

typedef struct {
    PyObject_HEAD
    char there;
} Token;

static PyTypeObject *token_type;

static PyObject *
token_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Token *self;
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "Token takes no arguments");
        return NULL;
    }
    self = (Token *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->there = 1;
    return (PyObject *)self;
}

static void
token_destroy(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *
token_take(PyObject *object, PyObject *unused)
{
    Token *self = (Token *)object;
    if (!self->there) {
        PyErr_SetString(PyExc_IndexError, "somebody has it");
        return NULL;
    }
    self->there = 0;
    Py_RETURN_NONE;
}

static PyObject *
token_give(PyObject *object, PyObject *unused)
{
    ((Token *)object)->there = 1;
    Py_RETURN_NONE;
}

static PyObject *
token_flag(PyObject *object, void *unused)
{
    return PyLong_FromVoidPtr(&((Token *)object)->there);
}

static PyMethodDef token_methods[] = {
    {"take", token_take, METH_NOARGS, "Takes it, or raises IndexError."},
    {"give", token_give, METH_O, "Brings it back."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef token_getters[] = {
    {"flag", token_flag, NULL, "The address of a byte: 1 while it is there.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot token_slots[] = {
    {Py_tp_new, token_new},
    {Py_tp_dealloc, token_destroy},
    {Py_tp_methods, token_methods},
    {Py_tp_getset, token_getters},
    {Py_tp_doc, "What a turn is taken with."},
    {0, NULL},
};

static PyType_Spec token_spec = {
    "launch.Token", sizeof(Token), 0, Py_TPFLAGS_DEFAULT, token_slots,
};

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

typedef int (*GetNodes)(void *graph, void **nodes, size_t *count);
typedef int (*GetType)(void *node, int *kind);
typedef int (*GetParameters)(void *node, void *parameters);

enum { KERNEL = 0, GRAPH = 4, CONDITIONAL = 13 }; /* of CUgraphNodeType */

/* CUDA_KERNEL_NODE_PARAMS_v2. */
typedef struct {
    void *function;
    unsigned int shape[7];
    void **parameters, **extra;
    void *kernel, *context;
    void *room[8];
} Parameters;

/* `given` addresses, none of them 0 but the last, which may be a graph's. */
static int
addresses(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, void **found)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are taken, not %zd", wanted, given);
        return -1;
    }
    for (Py_ssize_t index = 0; index < given; ++index) {
        found[index] = PyLong_AsVoidPtr(args[index]);
        if (found[index] != NULL || index == given - 1)
            continue;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the address of a function is 0");
        return -1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* count(function, graph): how many nodes a graph has; -1 if the driver does not say. */
static PyObject *
count_nodes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    void *found[2];
    size_t count = 0;
    if (addresses(args, given, 2, found) < 0)
        return NULL;
    if (((GetNodes)found[0])(found[1], NULL, &count) != 0)
        return PyLong_FromLong(-1);
    return PyLong_FromSize_t(count);
}

/* What one node runs, as in `functions`; NULL without an error where that is not known. */
static PyObject *
function_of(GetType get_type, GetParameters get_parameters, void *node)
{
    Parameters read = {0};
    int kind = GRAPH;
    /* Most nodes are kernels: of others the driver refuses to tell their parameters. */
    if (get_parameters(node, &read) == 0) {
        if (read.function == NULL && read.kernel == NULL)
            return NULL;
        return PyLong_FromVoidPtr(read.function != NULL ? read.function : read.kernel);
    }
    if (get_type(node, &kind) != 0 || kind == KERNEL || kind == GRAPH || kind == CONDITIONAL)
        return NULL;
    return PyLong_FromLong(-1 - kind);
}

/* The nodes of a graph: in `some` if there are fewer than `room` of them, else in memory of their
 * own, which is the caller's. NULL, with an error or without, where they cannot be had. */
static void **
nodes_of(GetNodes get_nodes, void *graph, void **some, size_t room, size_t *count)
{
    void **nodes;
    *count = room;
    if (get_nodes(graph, some, count) != 0)
        return NULL;
    if (*count < room)
        return some;
    if (get_nodes(graph, NULL, count) != 0)
        return NULL;
    room = *count;
    nodes = PyMem_Calloc(room, sizeof *nodes);
    if (nodes == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (get_nodes(graph, nodes, count) != 0 || *count != room) {
        PyMem_Free(nodes);
        return NULL;
    }
    return nodes;
}

static PyObject *
functions_of(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    void *found[4], *some[64] = {0}, **nodes;
    size_t count = 0;
    PyObject *made = NULL;
    if (addresses(args, given, 4, found) < 0)
        return NULL;
    nodes = nodes_of((GetNodes)found[0], found[3], some, sizeof some / sizeof *some, &count);
    if (nodes != NULL)
        made = PyTuple_New((Py_ssize_t)count);
    for (size_t index = 0; made != NULL && index < count; ++index) {
        PyObject *one =
            function_of((GetType)found[1], (GetParameters)found[2], nodes[index]);
        if (one == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, (Py_ssize_t)index, one);
    }
    if (nodes != some)
        PyMem_Free(nodes);
    if (made == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return made;
}

static PyMethodDef functions[] = {
    {"count", (PyCFunction)(void (*)(void))count_nodes, METH_FASTCALL, "Counts a graph's nodes."},
    {"functions", (PyCFunction)(void (*)(void))functions_of, METH_FASTCALL, "What nodes run."},
    {NULL, NULL, 0, NULL},
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

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launch", NULL, -1, functions};

PyMODINIT_FUNC
PyInit_launch(void)
{
    PyObject *module = PyModule_Create(&definition), *type;
    if (module == NULL)
        return NULL;
    /* Who imports the library by another name gets the same tokens. */
    if (stream_name == NULL)
        stream_name = PyUnicode_InternFromString("stream");
    if (token_type == NULL)
        token_type = (PyTypeObject *)PyType_FromSpec(&token_spec);
    type = PyType_FromSpec(&launch_spec);
    if (stream_name == NULL || token_type == NULL || type == NULL ||
        PyModule_AddType(module, token_type) < 0 ||
        PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
