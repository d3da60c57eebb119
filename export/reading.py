"""Read the metadata of an exported file, or say what is wrong with the file. Needs no torch."""

import zipfile
from pathlib import Path

from memmodel.export.metadata import EXTRA_FILE, ONNX_KEY, ArtifactError, Metadata

_ZIP_MAGIC = b"PK\x03\x04"


def read_metadata(path: str | Path) -> Metadata:
    """Read the metadata of an artifact, whatever its format or suffix.

    Args:
        path: an ``.onnx``, TorchScript or ``.pt2`` file.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: the file is foreign, damaged or of a newer format version.
    """
    path = Path(path)
    if path.is_dir():
        raise ArtifactError(f"{path} is a directory, not an exported file")
    with path.open("rb") as file:
        magic = file.read(len(_ZIP_MAGIC))
    if not magic:
        raise ArtifactError(f"{path} is empty")
    return _from_zip(path) if magic == _ZIP_MAGIC else _from_onnx(path)


def _from_zip(path: Path) -> Metadata:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{EXTRA_FILE}")]
            if not names:
                raise ArtifactError(
                    f"{path} holds no memmodel metadata: it was not written by memmodel.export"
                )
            return Metadata.from_json(archive.read(names[0]), path)
    except (zipfile.BadZipFile, EOFError, UnicodeDecodeError, NotImplementedError) as error:
        raise ArtifactError(f"{path} is truncated or damaged: {error}") from error


def _from_onnx(path: Path) -> Metadata:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise ArtifactError(
            f"{path} is not an ONNX, TorchScript or .pt2 file, or it is truncated"
        ) from error
    # Serialised after the graph, so a file that was cut off cannot have it.
    found = {prop.key: prop.value for prop in model.metadata_props}
    if ONNX_KEY not in found:
        raise ArtifactError(
            f"{path} holds no memmodel metadata: it was not written by memmodel.export, "
            f"or it is truncated"
        )
    metadata = Metadata.from_json(found[ONNX_KEY], path)
    _check_weights(model, path)
    return metadata


def _check_weights(model: "onnx.ModelProto", path: Path) -> None:  # type: ignore[name-defined] # noqa: F821
    """Refuse a model whose external weights are missing or cut off."""
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if "location" not in entries:
            continue
        weights = path.parent / entries["location"]
        if not weights.is_file():
            raise ArtifactError(f"{path} needs its weights in {weights}, which is missing")
        end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        if weights.stat().st_size < end:
            raise ArtifactError(
                f"{weights} is truncated: {path} needs {end} bytes, it has {weights.stat().st_size}"
            )
