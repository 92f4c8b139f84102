"""A checkpoint for another runtime: body and head as two ONNX graphs, with what it takes to write text with them.

Shapes: R rows, L positions, M chosen positions, D features, V states.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unmask.checkpoint.io import Checkpoint, load
from unmask.core.errors import UserError
from unmask.core.files import fresh_folder, sha256_file, write_json, write_text
from unmask.core.verbs import verb
from unmask.models.denoiser import is_causal
from unmask.models.family import family_of, plain
from unmask.processes.process import process_to_json

ABOUT = "model.json"
HALF_MOST = float(np.finfo(np.float16).max)


@verb
def export(
    model: Checkpoint | str | Path,
    *,
    onnx: str | Path,
    storage: Literal["fp32", "fp16"] = "fp32",
) -> dict[str, Any]:
    """Write a model for onnxruntime: body.onnx takes token ids (rows, length) and gives features, head.onnx features at
    any positions and gives logits. Needs `pip install 'unmask[export]'`.

    Args:
        model: a bundled model's name, a folder, a file or a hub name
        onnx: the folder to write
        storage: of the matrices; fp16 halves the files, and is computed in fp32
    """
    checkpoint = model if isinstance(model, Checkpoint) else load(model)
    target = Path(onnx)
    if target.exists():
        raise UserError(f"{target} exists: name another folder, or move it away first")
    network = plain(checkpoint.model)
    body, head = family_of(network).onnx(network)
    _check_installed()
    with fresh_folder(target) as fresh:
        tokens_RL = torch.zeros(2, min(3, network.length), dtype=torch.int64)
        with torch.no_grad():
            features_MD = body(tokens_RL)[0]
        length = torch.export.Dim("length", max=network.length) if network.length > 3 else None
        _write(body, {"tokens": tokens_RL}, ("rows", length), "features", fresh / "body.onnx", storage)
        _write(head, {"features": features_MD}, ("positions",), "logits", fresh / "head.onnx", storage)
        if checkpoint.tokenizer is not None:
            write_text(fresh / "tokenizer.json", checkpoint.tokenizer.to_json())
        about = _about(checkpoint, storage, fresh)
        write_json(fresh / ABOUT, about)
    return about


def _about(checkpoint: Checkpoint, storage: str, folder: Path) -> dict[str, Any]:
    """What a runtime must know."""
    network = plain(checkpoint.model)
    return {
        "name": Path(checkpoint.name).name, "length": network.length, "vocab_size": network.vocab_size,
        "mask_id": network.mask_id, "causal": is_causal(network), "process": process_to_json(checkpoint.process),
        "parameters": sum(value.numel() for value in network.parameters()), "storage": storage,
        "tokenizer": checkpoint.tokenizer.name if checkpoint.tokenizer else None,
        "files": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
    }  # fmt: skip


def _check_installed() -> None:
    try:
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'unmask[export]'") from error


def _write(
    module: nn.Module, example: dict[str, Tensor], dims: tuple[Any, ...], result: str, path: Path, storage: str
) -> None:
    """One graph, its first axes of any size (a dim is a name, or torch's own with a bound; None: as in the example)."""
    named = [torch.export.Dim(dim) if isinstance(dim, str) else dim for dim in dims]
    shapes = {name: {axis: dim for axis, dim in enumerate(named) if dim is not None} for name in example}
    with _quiet():
        program = torch.onnx.export(
            module, kwargs=example, dynamo=True, input_names=list(example), output_names=[result],
            dynamic_shapes=shapes, verbose=False,
        )  # fmt: skip
    assert program is not None
    _forget_source(program.model.graph)
    if storage == "fp16":
        _halve(program.model.graph, {name for name, _ in module.named_buffers()})
    program.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter talks of its own future and of packages that nobody needs here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _forget_source(graph: Any) -> None:
    """No lines and paths of the machine that wrote the file."""
    for node in graph:
        node.metadata_props.clear()
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                value.metadata_props.clear()
    graph.metadata_props.clear()


def _halve(graph: Any, tables: set[str]) -> None:
    """Store matrices as fp16, cast to fp32 where they are used; tables (of a formula) and vectors stay."""
    import onnx_ir as ir

    for name, value in list(graph.initializers.items()):
        stored = value.const_value
        if stored.dtype != ir.DataType.FLOAT or len(stored.shape) < 2 or name in tables:
            continue
        array = stored.numpy()
        if np.abs(array).max() > HALF_MOST:  # rather large than wrong
            continue
        cast = ir.node("Cast", [], attributes={"to": int(ir.DataType.FLOAT)}, num_outputs=1)
        wide = cast.outputs[0]
        wide.name, wide.type, wide.shape = f"{name}.fp32", value.type, value.shape
        ir.convenience.replace_all_uses_with(value, wide)
        cast.resize_inputs(1)
        cast.replace_input_with(0, value)
        value.const_value = ir.tensor(array.astype(np.float16), name=name)
        value.type = ir.TensorType(ir.DataType.FLOAT16)
        graph.insert_before(graph[0], cast)
