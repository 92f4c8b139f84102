"""Read a `torch.save` file without executing anything in it.

A pickle is a small program that may call any function it names. Here it is not unpickled at all: its instructions are
read one by one, plain values and containers are built, a tensor becomes a note of where it lies, and every other
object an inert placeholder. No name is looked up, nothing is imported and nothing of the file is called. Work and
memory are bounded by the size of the file.
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.core.errors import UserError, reading

CURE = "copy or download it again"
ENTRIES = 200_000  # of metadata: a real config has some hundreds, entries that refer to each other can mean billions
STORAGE_DTYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip

# what an instruction without an argument puts on the stack
FRESH: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip


class Inert:
    """Stands for an object of a class we do not know. Keeps its state to look at, and does nothing with it."""

    state: Any = None


@dataclass(frozen=True)
class Name:
    """A function or class that the file names; never looked up."""

    module: str
    name: str


@dataclass(frozen=True)
class _Storage:
    entry: str
    dtype: torch.dtype


@dataclass(frozen=True)
class LazyTensor:
    """Where a tensor lies in its file. A checkpoint is mostly optimiser state: only what is asked for is read."""

    file: Path
    entry: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor itself, on the CPU, in memory of its own."""
        with reading(self.file, cure=CURE), zipfile.ZipFile(self.file) as archive:
            flat = torch.frombuffer(bytearray(_stored(archive, self.entry)), dtype=self.dtype)
            if math.prod(self.shape) > flat.numel():
                raise ValueError(f"a tensor of shape {self.shape} in {flat.numel()} numbers")
            return flat.as_strided(self.shape, self.stride, self.offset).clone()


def _stored(archive: zipfile.ZipFile, entry: str) -> bytes:
    """An entry's bytes, which torch never compresses: a small file cannot unpack into a large one."""
    if archive.getinfo(entry).compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{entry} is compressed")
    return archive.read(entry)


def read_torch_file(path: Path) -> Any:
    """The object a `torch.save` file holds: plain containers, LazyTensors, and Inert placeholders for all else."""
    with reading(path, cure=CURE):
        if not zipfile.is_zipfile(path):
            raise UserError(
                f"{path} is not a whole torch checkpoint (no zip directory at its end): "
                "it is half-written, or of the format before torch 1.6; copy it again or re-save it"
            )
        with zipfile.ZipFile(path) as archive:
            programs = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if len(programs) != 1:
                raise UserError(f"{path} is a zip file but no torch checkpoint: give a Lightning .ckpt or a folder")
            return _Machine(path, programs[0].removesuffix("data.pkl")).run(_stored(archive, programs[0]))


class _Machine:
    """The stack machine of pickles, as far as `torch.save` uses it; other instructions are refused."""

    def __init__(self, path: Path, folder: str) -> None:
        self.path, self.folder = path, folder
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        stack, memo = self.stack, self.memo
        argument: Any
        for instruction, argument, _ in pickletools.genops(program):
            match instruction.name:
                case "STOP":
                    return stack.pop()
                case "PROTO" | "FRAME":
                    pass
                case "MARK":
                    self.marks.append(len(stack))
                case name if name in FRESH:
                    stack.append(FRESH[name]())
                case "TUPLE":
                    stack.append(tuple(self._pop()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                    stack.append(tuple(self._pop(int(name[-1]))))
                case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                    memo[len(memo) if argument is None else int(argument)] = stack[-1]
                case "GET" | "BINGET" | "LONG_BINGET":
                    stack.append(memo[int(argument)])
                case "APPEND":
                    self._extend(self._pop(1))
                case "APPENDS" | "ADDITEMS":
                    self._extend(self._pop())
                case "SETITEM":
                    self._update(self._pop(2))
                case "SETITEMS":
                    self._update(self._pop())
                case "GLOBAL":
                    stack.append(Name(*argument.split(" ", 1)))
                case "STACK_GLOBAL":
                    stack.append(Name(*map(_text, self._pop(2))))
                case "REDUCE":
                    stack.append(self._called(*self._pop(2)))
                case "NEWOBJ" | "NEWOBJ_EX" as name:
                    self._pop(2 if name == "NEWOBJ" else 3)
                    stack.append(Inert())
                case "BUILD":
                    (state,) = self._pop(1)
                    if isinstance(stack[-1], Inert):
                        stack[-1].state = state
                case "BINPERSID":
                    stack.append(self._storage(*self._pop(1)))
                case name if argument is None or instruction.stack_before:
                    raise ValueError(f"an instruction that torch.save does not write, {name}")
                case _:
                    stack.append(argument)  # a number, a text, some bytes
        raise ValueError("it has no end")

    def _pop(self, count: int | None = None) -> list[Any]:
        """The last `count` values, or those since the last mark."""
        start = self.marks.pop() if count is None else len(self.stack) - count
        if not 0 <= start <= len(self.stack):
            raise ValueError("its stack is empty")
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def _update(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Inert):  # a dictionary of a foreign class
            if not isinstance(target.state, dict):
                target.state = {}
            target = target.state
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if isinstance(key, (str, int, float, bool)):  # to hash a nested tuple may take for ever
                target[key] = value

    def _storage(self, pid: Any) -> Any:
        kind, storage, key = pid[:3]
        if kind == "storage" and isinstance(storage, Name) and storage.name in STORAGE_DTYPES:
            return _Storage(f"{self.folder}data/{_text(key)}", STORAGE_DTYPES[storage.name])
        return Inert()

    def _called(self, function: Any, arguments: Any) -> Any:
        """What a call would give; only these four mean anything here, and none is made."""
        if function == Name("collections", "OrderedDict"):
            return {}
        if function == Name("torch._utils", "_rebuild_parameter"):
            return arguments[0]
        rebuilds = (Name("torch._utils", "_rebuild_tensor_v2"), Name("torch._utils", "_rebuild_tensor"))
        if function in rebuilds and isinstance(arguments[0], _Storage):
            storage, offset, shape, stride = arguments[:4]
            return LazyTensor(self.path, storage.entry, storage.dtype, int(offset), _numbers(shape), _numbers(stride))
        return Inert()


def _text(value: Any) -> str:
    """A text and nothing else: to print or hash tuples of tuples of the same tuples may take for ever."""
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} where a name should be")
    return value


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def plain(value: Any) -> Any:
    """Metadata as dicts, lists and scalars: a placeholder becomes its state (OmegaConf's nodes their content)."""
    left = ENTRIES

    def visit(value: Any, above: tuple[int, ...]) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"its metadata has more than {ENTRIES:,} entries")
        if id(value) in above:  # OmegaConf's nodes know their parents
            return None
        above = (*above, id(value))
        if isinstance(value, Inert):
            state = value.state if isinstance(value.state, dict) else {}
            return visit(state.get("_content", state.get("_val", state)), above)
        if isinstance(value, dict):
            return {str(key): visit(item, above) for key, item in value.items() if key != "_parent"}
        if isinstance(value, (list, tuple)):
            return [visit(item, above) for item in value]
        return value if isinstance(value, (str, int, float, bool)) else None

    return visit(value, ())
