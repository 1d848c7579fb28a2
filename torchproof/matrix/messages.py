"""Explains what is wrong in a matrix file: where, what, and how to fix it."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from torchproof._yaml import Document, Location
from torchproof.errors import InputError, did_you_mean
from torchproof.matrix.schema import Matrix
from torchproof.model.versions import cuda_number

_FORMS = {
    "torch": "a version of torch like `2.9` or `2.9.1`",
    "cuda": "the name of a CUDA build like `cu128`",
    "python": "a Python version like `3.11`",
    "cudnn": "a full version like `9.10.2.21`",
    "nccl": "a full version like `2.30.7`",
    "gpus": "an architecture like `sm_90`",
    "image": "an image pinned by digest like `name@sha256:…`",
    "driver": "a driver version like `570.124.06`",
}


def nearest_cuda(given: str, known: Iterable[str]) -> str:
    """Like `did_you_mean`, for CUDA names: nearest by number; on a tie, the newer one."""
    number = cuda_number(given if given.startswith("cu") else f"cu{given}")
    if not number:
        return ""
    near = min(
        known,
        key=lambda name: (abs(cuda_number(name) - number), -cuda_number(name)),
        default="",
    )
    return f"did you mean `{near}`?" if near else ""


def explain(error: ValidationError, document: Document) -> InputError:
    """Turn pydantic's errors into one error that names every place, each with its fix."""
    # An unknown key often explains a missing one, so it goes first.
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    first, *others = [_explain_one(detail, document) for detail in details]
    if not others:
        return first
    message = "\n".join([first.message, *filter(None, [first.fix and f"  fix: {first.fix}"])])
    return InputError("\n".join([message, *map(str, others)]), where=first.where)


def _explain_one(detail: ErrorDetails, document: Document) -> InputError:
    location: Location = detail["loc"]
    name = next((str(part) for part in reversed(location) if isinstance(part, str)), "")
    given = detail["input"]
    fix = ""
    match detail["type"]:
        case "extra_forbidden":
            keys = _keys_at(location[:-1])
            message = f"unknown key `{name}`"
            fix = did_you_mean(name, keys) or f"known keys: {', '.join(keys)}"
        case "missing":
            message, fix = f"`{name}` is missing here", _fix_for(name)
        case "string_pattern_mismatch":
            message = f"`{given}` is not {_FORMS.get(name, 'of the right form')}"
            fix = _suggestion(name, str(given))
        case "string_type" | "tuple_type" | "bool_type" if given is None:
            message, fix = f"`{name}` has no value", _fix_for(name)
        case "string_too_short":
            message, fix = f"`{name}` is empty", _fix_for(name)
        case "string_type":
            message, fix = f"`{name}` must be text", _fix_for(name)
        case "literal_error":
            message = f"`{given}` is not a valid value for `{name}`"
            fix = f"use {detail.get('ctx', {}).get('expected', '')}"
        case "value_error":
            message = str(detail.get("ctx", {}).get("error", detail["msg"]))
        case "tuple_type":
            message = f"`{name}` must be a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            message = f"`{name}` must be a mapping of keys"
        case "bool_parsing" | "bool_type":
            message, fix = f"`{name}` must be true or false", "write `true` or `false`"
        case _:
            message = f"`{name}`: {detail['msg'].lower()}"
    return InputError(message, where=document.where(location), fix=fix)


def _fix_for(name: str) -> str:
    if name == "reason":
        return "say why: `reason: no GPU for it in our cluster`"
    return f"give {_FORMS[name]}" if name in _FORMS else ""


def _suggestion(name: str, given: str) -> str:
    digits = "".join(character for character in given if character.isdigit())
    if name == "cuda" and len(digits) >= 3:
        return f"did you mean `cu{digits[:3]}`?"
    if name == "gpus" and len(digits) >= 2:
        return f"did you mean `sm_{digits}`?"
    if name == "image":
        return "ask your registry for the digest: `docker buildx imagetools inspect NAME`"
    return ""


def _keys_at(location: Location) -> list[str]:
    """Return the keys that are allowed at a place of the file."""
    model: Any = Matrix
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if _is_model(model) else None
        model = _inner_model(field.annotation) if field else None
    return list(model.model_fields) if _is_model(model) else []


def _inner_model(annotation: Any) -> Any:
    if _is_model(annotation):
        return annotation
    return next(filter(None, map(_inner_model, typing.get_args(annotation))), None)


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)
