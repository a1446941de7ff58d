"""The device code the driver ships, as PTX text: predicate setters and the staging copy.

PTX needs no compiler on the user's machine and runs on every GPU. ``cudaGraphSetConditional`` is a
builtin of the driver: it stays unresolved here and is resolved when the module is loaded.
"""

from __future__ import annotations

__all__ = [
    "ALWAYS",
    "COPY_CAPACITIES",
    "COPY_THREADS",
    "COUNTED",
    "NEGATE",
    "RESTART",
    "STORE",
    "copy_capacity",
    "copy_name",
    "copy_ptx",
    "predicate_ptx",
]

NEGATE, ALWAYS, COUNTED, RESTART = 1, 2, 4, 8
"""Bits of ``tensorplay_set_condition``: take the opposite; take true whatever the predicate holds;
true only while the counter is below its limit; set the counter to zero first."""

COPY_CAPACITIES = (4, 16, 64, 160)
"""Entries of a copy table; 24 bytes each, and a kernel's parameters end at 4096 bytes."""

COPY_THREADS = 256
"""Threads a block of the copy kernels is launched with."""

STORE = 2**64 - 1
"""As the byte count of an entry: store its source, a 64-bit value, at its destination."""

_HEADER = """\
.version 6.0
.target sm_50
.address_size 64
"""

_PREDICATES = """
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

.visible .entry tensorplay_set_condition(
    .param .u64 handle, .param .u64 predicate, .param .u64 counter, .param .u64 limit,
    .param .u32 options)
{
    .reg .pred %p, %over;
    .reg .b32 %value, %options, %bit;
    .reg .b64 %handle, %address, %limit, %count;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %address, [predicate];
    ld.param.u32 %options, [options];
    cvta.to.global.u64 %address, %address;
    ld.global.u8 %value, [%address];
    setp.ne.u32 %p, %value, 0;
    selp.u32 %value, 1, 0, %p;
    and.b32 %bit, %options, 1;
    xor.b32 %value, %value, %bit;
    and.b32 %bit, %options, 2;
    setp.ne.u32 %p, %bit, 0;
    @%p mov.u32 %value, 1;
    and.b32 %bit, %options, 4;
    setp.eq.u32 %p, %bit, 0;
    @%p bra SET;
    ld.param.u64 %address, [counter];
    ld.param.u64 %limit, [limit];
    cvta.to.global.u64 %address, %address;
    ld.global.u64 %count, [%address];
    and.b32 %bit, %options, 8;
    setp.ne.u32 %p, %bit, 0;
    @%p mov.u64 %count, 0;
    st.global.u64 [%address], %count;
    setp.ge.u64 %over, %count, %limit;
    @%over mov.u32 %value, 0;
SET:
    {
        .param .b64 to;
        .param .b32 as;
        st.param.b64 [to], %handle;
        st.param.b32 [as], %value;
        call.uni cudaGraphSetConditional, (to, as);
    }
    ret;
}

.visible .entry tensorplay_set_plain(.param .u64 handle, .param .u64 predicate)
{
    .reg .pred %p;
    .reg .b32 %value;
    .reg .b64 %handle, %address;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %address, [predicate];
    cvta.to.global.u64 %address, %address;
    ld.global.u8 %value, [%address];
    setp.ne.u32 %p, %value, 0;
    selp.u32 %value, 1, 0, %p;
    {
        .param .b64 to;
        .param .b32 as;
        st.param.b64 [to], %handle;
        st.param.b32 [as], %value;
        call.uni cudaGraphSetConditional, (to, as);
    }
    ret;
}

.visible .entry tensorplay_count_step(.param .u64 counter)
{
    .reg .b64 %address, %count;
    ld.param.u64 %address, [counter];
    cvta.to.global.u64 %address, %address;
    ld.global.u64 %count, [%address];
    add.u64 %count, %count, 1;
    st.global.u64 [%address], %count;
    ret;
}
"""

# An index that is negative, or does not fit, selects no body: all bits set is beyond any count.
_INDEX = """
.visible .entry tensorplay_set_index{bits}(.param .u64 handle, .param .u64 index)
{{
    .reg .pred %out;
    .reg .b32 %value;
    .reg .b64 %handle, %address, %index;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %address, [index];
    cvta.to.global.u64 %address, %address;
    ld.global.s{bits} %index, [%address];
    cvt.u32.u64 %value, %index;
    setp.gt.u64 %out, %index, 2147483647;
    @%out mov.u32 %value, 4294967295;
    {{
        .param .b64 to;
        .param .b32 as;
        st.param.b64 [to], %handle;
        st.param.b32 [as], %value;
        call.uni cudaGraphSetConditional, (to, as);
    }}
    ret;
}}
"""

# Blocks of one grid row share one entry. Sixteen bytes a step where both ends allow it, four where
# they are aligned to that, then bytes; counts are 64 bits wide throughout.
_COPY = """
    .reg .pred %p;
    .reg .b32 %x, %y, %threads, %a, %b, %c, %d;
    .reg .b64 %entry, %table, %source, %target, %bytes, %first, %step, %i, %end, %mask, %from, %to;
    mov.u32 %y, %ctaid.y;
    cvt.u64.u32 %entry, %y;
    shl.b64 %entry, %entry, 3;
{load}
    mov.u32 %x, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mul.wide.u32 %first, %x, %threads;
    mov.u32 %x, %tid.x;
    cvt.u64.u32 %i, %x;
    add.u64 %first, %first, %i;
    setp.ne.u64 %p, %bytes, -1;
    @%p bra COPY;
    setp.ne.u64 %p, %first, 0;
    @%p bra DONE;
    cvta.to.global.u64 %target, %target;
    st.global.u64 [%target], %source;
    bra DONE;
COPY:
    mov.u32 %x, %nctaid.x;
    mul.wide.u32 %step, %x, %threads;
    cvta.to.global.u64 %source, %source;
    cvta.to.global.u64 %target, %target;
    or.b64 %mask, %source, %target;
    and.b64 %end, %mask, 15;
    setp.eq.u64 %p, %end, 0;
    @%p bra WIDE;
    and.b64 %end, %mask, 3;
    setp.eq.u64 %p, %end, 0;
    @%p bra NARROW;
    mov.u64 %i, %first;
    bra TAIL;
WIDE:
    shr.u64 %end, %bytes, 4;
    mov.u64 %i, %first;
WIDE_LOOP:
    setp.ge.u64 %p, %i, %end;
    @%p bra WIDE_END;
    shl.b64 %from, %i, 4;
    add.u64 %to, %target, %from;
    add.u64 %from, %source, %from;
    ld.global.v4.u32 {{%a, %b, %c, %d}}, [%from];
    st.global.v4.u32 [%to], {{%a, %b, %c, %d}};
    add.u64 %i, %i, %step;
    bra WIDE_LOOP;
WIDE_END:
    shl.b64 %end, %end, 4;
    add.u64 %i, %end, %first;
    bra TAIL;
NARROW:
    shr.u64 %end, %bytes, 2;
    mov.u64 %i, %first;
NARROW_LOOP:
    setp.ge.u64 %p, %i, %end;
    @%p bra NARROW_END;
    shl.b64 %from, %i, 2;
    add.u64 %to, %target, %from;
    add.u64 %from, %source, %from;
    ld.global.u32 %a, [%from];
    st.global.u32 [%to], %a;
    add.u64 %i, %i, %step;
    bra NARROW_LOOP;
NARROW_END:
    shl.b64 %end, %end, 2;
    add.u64 %i, %end, %first;
TAIL:
    setp.ge.u64 %p, %i, %bytes;
    @%p bra DONE;
    add.u64 %from, %source, %i;
    add.u64 %to, %target, %i;
    ld.global.u8 %a, [%from];
    st.global.u8 [%to], %a;
    add.u64 %i, %i, %step;
    bra TAIL;
DONE:
    ret;
"""

_LOAD_PARAMETERS = """\
    mov.b64 %table, table;
    add.u64 %entry, %table, %entry;
    ld.param.u64 %source, [%entry];
    ld.param.u64 %target, [%entry+{targets}];
    ld.param.u64 %bytes, [%entry+{counts}];"""

_LOAD_MEMORY = """\
    ld.param.u64 %table, [table];
    cvta.to.global.u64 %table, %table;
    add.u64 %entry, %table, %entry;
    ld.global.u64 %source, [%entry];
    ld.param.u64 %step, [entries];
    shl.b64 %step, %step, 3;
    add.u64 %entry, %entry, %step;
    ld.global.u64 %target, [%entry];
    add.u64 %entry, %entry, %step;
    ld.global.u64 %bytes, [%entry];"""


def predicate_ptx() -> bytes:
    """Module of the kernels that set conditions, one thread each.

    ``tensorplay_set_condition(handle u64, predicate u64, counter u64, limit u64, options u32)``,
    ``tensorplay_set_plain(handle u64, predicate u64)``, which is that without options and faster,
    does from one Bool byte, ``tensorplay_set_index32(handle u64, index u64)`` and ``...64`` from
    one signed integer; ``tensorplay_count_step(counter u64)`` adds one.
    """
    indices = "".join(_INDEX.format(bits=bits) for bits in (32, 64))
    return f"{_HEADER}{_PREDICATES}{indices}".encode()


def copy_name(capacity: int) -> str:
    """Name of the copy kernel whose table, in its parameters, has ``capacity`` entries."""
    return f"tensorplay_copy{capacity}"


def copy_capacity(entries: int) -> int:
    """The smallest capacity that holds ``entries``."""
    return next(capacity for capacity in COPY_CAPACITIES if capacity >= entries)


def copy_ptx() -> bytes:
    """Module of ``tensorplay_copy4`` ... ``tensorplay_copy160`` and ``tensorplay_copy_table``.

    A table is all sources, then all destinations, then all byte counts, 64 bits each; the grid's
    row (``blockIdx.y``) is the entry. ``tensorplay_copyN(table)`` has it in its parameters,
    ``tensorplay_copy_table(table u64, entries u64)`` in memory.
    """
    kernels = [
        f".visible .entry {copy_name(capacity)}(.param .align 8 .b8 table[{24 * capacity}])\n{{"
        + _COPY.format(load=_LOAD_PARAMETERS.format(targets=8 * capacity, counts=16 * capacity))
        + "}\n"
        for capacity in COPY_CAPACITIES
    ]
    table = (
        ".visible .entry tensorplay_copy_table(.param .u64 table, .param .u64 entries)\n{"
        + _COPY.format(load=_LOAD_MEMORY)
        + "}\n"
    )
    return f"{_HEADER}\n{''.join(kernels)}{table}".encode()
