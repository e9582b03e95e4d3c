"""Wraps torch.compile so that its errors say what is missing."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from penstock.pipelines.errors import LoaderError


def compile_model(model: nn.Module, mode: str) -> nn.Module:
    """Return the model, compiled when it first runs unless mode is "off".

    Raises LoaderError E-DEPENDENCY if torch cannot compile.
    """
    if mode == "off":
        return model
    try:
        return cast(nn.Module, torch.compile(model, mode=mode))
    except (RuntimeError, ImportError) as error:  # no compiler for this Python, or a part of torch is missing
        raise _cannot_compile(error) from error


def explain_compiler_failure(error: Exception) -> None:
    """Raise LoaderError E-DEPENDENCY if `error` comes from torch's compiler; return otherwise."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        raise _cannot_compile(error) from error


def _cannot_compile(error: Exception) -> LoaderError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return LoaderError(
        "E-DEPENDENCY",
        f"torch.compile does not work here ({lines[0][:200]})",
        fix="install a C++ compiler (g++), and triton for CUDA, or pass compile='off'",
    )
