"""Runs the PTX that the CUDA driver ships, so that its meaning is tested where there is no GPU.

It knows the instructions that those kernels use, and refuses all others. Each kernel becomes one
Python function over basic blocks; memory is whatever object reads and writes bytes at addresses.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_SIZES = {"u8": 1, "u32": 4, "s32": 4, "b32": 4, "f32": 4, "u64": 8, "s64": 8, "b64": 8}


class Memory(Protocol):
    def read(self, address: int, size: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...


class Bytes:
    """A stretch of memory from ``base`` on; nothing outside it may be touched."""

    def __init__(self, size: int, base: int = 1 << 20) -> None:
        self.data, self.base = bytearray(size), base

    def read(self, address: int, size: int) -> bytes:
        start = self._offset(address, size)
        return bytes(self.data[start : start + size])

    def write(self, address: int, data: bytes) -> None:
        start = self._offset(address, len(data))
        self.data[start : start + len(data)] = data

    def _offset(self, address: int, size: int) -> int:
        start = address - self.base
        assert 0 <= start <= start + size <= len(self.data), f"access outside: {address:#x}"
        assert address % size == 0, f"misaligned access of {size} bytes: {address:#x}"
        return start


class Process:
    """This process's own memory."""

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))


@dataclass
class Kernel:
    """One entry: its parameters as ``name: (offset, size)``, and what a thread does."""

    name: str
    parameters: dict[str, tuple[int, int]]
    thread: Callable[..., None]

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: bytes,
        memory: Memory,
        call: Callable[..., Any] | None = None,
    ) -> None:
        """Runs every thread to its end, one after the other."""
        assert grid[2] == block[1] == block[2] == 1
        for y in range(grid[1]):
            for x in range(grid[0]):
                for thread in range(block[0]):
                    self.thread(parameters, memory, call, thread, block[0], x, y, grid[0])


def load(image: bytes) -> dict[str, Kernel]:
    """The kernels of a module."""
    text = re.sub(r"//[^\n]*", "", image.rstrip(b"\0").decode())
    header = re.match(r"\s*\.version 6\.0\s+\.target sm_50\s+\.address_size 64", text)
    assert header, text[:80]
    found = {}
    for entry in re.finditer(r"\.visible \.entry (\w+)\s*\((.*?)\)\s*\{(.*?)\n\}", text, re.S):
        name, parameters, body = entry.groups()
        found[name] = Kernel(name, _parameters(parameters), _compiled(name, parameters, body))
    return found


def _parameters(text: str) -> dict[str, tuple[int, int]]:
    layout, end = {}, 0
    for declared in text.split(","):
        array = re.fullmatch(r"\s*\.param \.align 8 \.b8 (\w+)\[(\d+)\]\s*", declared)
        plain = re.fullmatch(r"\s*\.param \.(\w+) (\w+)\s*", declared)
        if array:
            name, size, align = array[1], int(array[2]), 8
        else:
            assert plain, declared
            name, size = plain[2], _SIZES[plain[1]]
            align = size
        end = -(-end // align) * align
        layout[name] = (end, size)
        end += size
    return layout


_MASKS = {"u32": 0xFFFFFFFF, "b32": 0xFFFFFFFF, "u64": 2**64 - 1, "b64": 2**64 - 1}
_COMPARE = {"eq": "==", "ne": "!=", "ge": ">=", "gt": ">", "lt": "<"}


def _f32(value: float) -> float:
    return ctypes.c_float(value).value


def _compiled(name: str, parameters: str, body: str) -> Callable[..., None]:
    layout = _parameters(parameters)
    declared = set(re.findall(r"%\w+", " ".join(re.findall(r"\.reg[^;]*;", body))))
    lines = _lines(re.sub(r"\.reg[^;]*;", "", body))
    blocks: list[tuple[str, list[str]]] = [("ENTRY", [])]
    for line in lines:
        label = re.fullmatch(r"(\w+):", line)
        if label:
            blocks.append((label[1], []))
        else:
            blocks[-1][1].append(line)
    places = {label: place for place, (label, _) in enumerate(blocks)}
    source = [
        "def thread(params, memory, call, tid, ntid, ctaid, ctaid_y, nctaid):",
        " pc = 0",
        " " + " = ".join(sorted({_register(one) for one in declared})) + " = 0",
        " while True:",
    ]
    for place, (_, instructions) in enumerate(blocks):
        source.append(f"  if pc == {place}:")
        source.append(f"   pc = {place + 1}")
        for line in instructions:
            source.extend(f"   {made}" for made in _instruction(line, layout, places, declared))
    source.append(f"  if pc == {len(blocks)}: raise AssertionError('ran off the end')")
    scope: dict[str, Any] = {"unpack": struct.unpack, "pack": struct.pack, "f32": _f32}
    exec(compile("\n".join(source), f"<ptx {name}>", "exec"), scope)
    made: Callable[..., None] = scope["thread"]
    return made


def _lines(body: str) -> list[str]:
    lines = [raw.strip() for raw in re.split(r"[;\n]", body)]
    return [line for line in lines if line and line not in ("{", "}")]


def _register(name: str) -> str:
    return "r_" + name[1:]


_SPECIAL = {
    "%tid.x": "tid",
    "%ntid.x": "ntid",
    "%ctaid.x": "ctaid",
    "%ctaid.y": "ctaid_y",
    "%nctaid.x": "nctaid",
}


def _value(operand: str) -> str:
    if operand in _SPECIAL:
        return _SPECIAL[operand]
    if operand.startswith("%"):
        return _register(operand)
    return str(int(operand))


_FORMAT = {"u8": "B", "u32": "I", "s32": "i", "u64": "Q", "s64": "q", "f32": "f"}


def _instruction(
    line: str, layout: dict[str, tuple[int, int]], places: dict[str, int], declared: set[str]
) -> list[str]:
    guard = re.match(r"@(%\w+)\s+(.*)", line)
    if guard:
        assert guard[1] in declared
        inner = _instruction(guard[2], layout, places, declared)
        return [f"if {_register(guard[1])}:", *[f" {one}" for one in inner]]
    opcode, _, rest = line.partition(" ")
    operands = [one.strip() for one in re.split(r",(?![^{]*\})", rest)] if rest else []
    parts = opcode.split(".")
    for register in re.findall(r"%[\w.]+", rest):
        assert register in declared or register in _SPECIAL, f"{register} is not declared: {line}"
    match parts:
        case ["ret"]:
            return ["return"]
        case ["bra"]:
            return [f"pc = {places[operands[0]]}", "continue"]
        case ["mov", kind] if operands[1] in layout:
            assert kind == "b64"
            return [f"{_value(operands[0])} = ('params', {layout[operands[1]][0]})"]
        case ["mov", kind]:
            return [f"{_value(operands[0])} = {_value(operands[1])} & {_MASKS[kind]}"]
        case ["ld", "param", kind]:
            return _load_parameter(operands, kind, layout)
        case ["ld", "global", kind]:
            return [f"{_value(operands[0])} = {_read(operands[1], kind)}"]
        case ["ld", "global", "v4", "u32"]:
            names = ", ".join(_value(one.strip()) for one in operands[0].strip("{}").split(","))
            address = _address(operands[1])
            return [f"{names} = unpack('<4I', memory.read({address}, 16))"]
        case ["st", "global", "v4", "u32"]:
            names = ", ".join(_value(one.strip()) for one in operands[1].strip("{}").split(","))
            return [f"memory.write({_address(operands[0])}, pack('<4I', {names}))"]
        case ["st", "global", kind]:
            mask = {"u8": " & 255"}.get(kind, "")
            value = f"{_value(operands[1])}{mask}"
            return [f"memory.write({_address(operands[0])}, pack('<{_FORMAT[kind]}', {value}))"]
        case ["cvta", "to", "global", "u64"]:
            return [f"{_value(operands[0])} = {_value(operands[1])}"]
        case ["setp", relation, kind]:
            mask = _MASKS.get(kind)
            one, other = (_value(operand) for operand in operands[1:])
            if mask:
                one, other = f"({one} & {mask})", f"({other} & {mask})"
            return [f"{_value(operands[0])} = {one} {_COMPARE[relation]} {other}"]
        case ["selp", _]:
            target, yes, no, which = (_value(one) for one in operands)
            return [f"{target} = {yes} if {which} else {no}"]
        case [("and" | "or" | "xor") as operation, kind]:
            sign = {"and": "&", "or": "|", "xor": "^"}[operation]
            return [f"{_value(operands[0])} = {_value(operands[1])} {sign} {_value(operands[2])}"]
        case ["shl", kind]:
            shifted = f"({_value(operands[1])} << {_value(operands[2])}) & {_MASKS[kind]}"
            return [f"{_value(operands[0])} = {shifted}"]
        case ["shr", "u64"]:
            return [f"{_value(operands[0])} = {_value(operands[1])} >> {_value(operands[2])}"]
        case ["add", "u64"]:
            target, one, other = (_value(operand) for operand in operands)
            added = f"({one} + {other}) & {_MASKS['u64']}"
            in_parameters = f"('params', {one}[1] + {other}) if isinstance({one}, tuple)"
            return [f"{target} = {in_parameters} else {added}"]
        case ["add", "rn", "f32"]:
            target, one, other = (_value(operand) for operand in operands)
            return [f"{target} = f32({one} + {other})"]
        case ["mul", "wide", "u32"]:
            return [f"{_value(operands[0])} = {_value(operands[1])} * {_value(operands[2])}"]
        case ["mad", "lo", "u32"]:
            target, one, other, plus = (_value(operand) for operand in operands)
            return [f"{target} = ({one} * {other} + {plus}) & {_MASKS['u32']}"]
        case ["cvt", to, _]:
            return [f"{_value(operands[0])} = {_value(operands[1])} & {_MASKS[to]}"]
        case [""]:
            return []
    if line.startswith(".param"):
        return []
    if opcode.startswith("st.param"):
        return [f"p_{operands[0].strip('[]')} = {_value(operands[1])}"]
    called = re.fullmatch(r"call\.uni (\w+), \((\w+), (\w+)\)", line)
    assert called, f"an instruction the machine does not know: {line}"
    return [f"call({called[1]!r}, p_{called[2]}, p_{called[3]})"]


def _load_parameter(
    operands: list[str], kind: str, layout: dict[str, tuple[int, int]]
) -> list[str]:
    inside = operands[1].strip("[]")
    size, code = _SIZES[kind], _FORMAT[kind]
    if inside in layout:
        start: str = str(layout[inside][0])
        assert layout[inside][1] == size
    else:
        register, _, plus = inside.partition("+")
        start = f"{_value(register)}[1] + {int(plus or 0)}"
    return [
        f"start = {start}",
        f"({_value(operands[0])},) = unpack('<{code}', params[start:start + {size}])",
    ]


def _address(operand: str) -> str:
    return _value(operand.strip("[]"))


def _read(operand: str, kind: str) -> str:
    value = f"unpack('<{_FORMAT[kind]}', memory.read({_address(operand)}, {_SIZES[kind]}))[0]"
    # A register holds bits: a signed value is extended and kept as its two's complement.
    return f"{value} & {_MASKS['u64']}" if kind.startswith("s") else value
