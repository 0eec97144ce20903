"""Compiler options that a kernel may set; all others are rejected.

A kernel and its options may be untrusted. No listed option names a file, starts a program or adds a source outside the
build's key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from warpsan.build.nvrtc import BuildError

__all__ = ["allowed_options", "check_macro", "check_triton_options"]

_FLAG, _BOOL, _NUMBER, _NUMBERS, _WORD = "", "true|false", r"\d{1,9}", r"\d{1,9}(,\d{1,9})*", r"[a-z]{1,16}"

_MACRO = re.compile(r"([A-Za-z_]\w*)(\([\w, .]*\))?(=.*)?", re.DOTALL)
"""A macro in the form of ``-D``."""

_NVRTC: Mapping[str, str] = {
    "--define-macro -D": "",
    "--undefine-macro -U": "",
    "--std -std": r"c\+\+\d\d",
    "--use_fast_math -use_fast_math": _FLAG,
    "--fmad -fmad": _BOOL,
    "--ftz -ftz": _BOOL,
    "--prec-div -prec-div": _BOOL,
    "--prec-sqrt -prec-sqrt": _BOOL,
    "--maxrregcount -maxrregcount": _NUMBER,
    "--extra-device-vectorization -extra-device-vectorization": _FLAG,
    "--restrict -restrict": _FLAG,
    "--device-as-default-execution-space -default-device": _FLAG,
    "--device-int128 -device-int128": _FLAG,
    "--device-float128 -device-float128": _FLAG,
    "--dopt -dopt": "on|off",
    "--Ofast-compile -Ofc": "0|min|mid|max",
    "--split-compile -split-compile": _NUMBER,
    "--jump-table-density -jtd": _NUMBER,
    "--builtin-move-forward -builtin-move-forward": _BOOL,
    "--builtin-initializer-list -builtin-initializer-list": _BOOL,
    "--modify-stack-limit -modify-stack-limit": _BOOL,
    "--device-stack-protector -device-stack-protector": _BOOL,
    "--relocatable-device-code -rdc": _BOOL,
    "--device-c -dc": _FLAG,
    "--device-w -dw": _FLAG,
    "--extensible-whole-program -ewp": _FLAG,
    "--minimal -minimal": _FLAG,
    "--no-cache -no-cache": _FLAG,
    "--no-source-include -no-source-include": _FLAG,
    "--device-debug -G": _FLAG,
    "--generate-line-info -lineinfo": _FLAG,
    "--disable-warnings -w": _FLAG,
    "--diag-error -diag-error": _NUMBERS,
    "--diag-suppress -diag-suppress": _NUMBERS,
    "--diag-warn -diag-warn": _NUMBERS,
    "--display-error-number -err-no": _FLAG,
    "--no-display-error-number -no-err-no": _FLAG,
    "--brief-diagnostics -brief-diag": _BOOL,
    "--optimization-info -opt-info": "inline",
    "--ptxas-options -Xptxas": "",
}
"""Form of the value by option name of NVRTC, long and short; empty for an option without one. Macros and ptxas options
have separate forms. Source: NVRTC user guide, "Supported Compile Options".
"""

_CACHING = "ca|cg|cs|lu|cv|wb|wt"
_PTXAS: Mapping[str, str] = {
    "--verbose -v": _FLAG,
    "--opt-level -O": "[0-4]",
    "--maxrregcount -maxrregcount": r"\d{1,9}|archmax|archmin",
    "--device-function-maxrregcount -func-maxrregcount": r"\d{1,9}|archmax|archmin",
    "--register-usage-level -regUsageLevel": _NUMBER,
    "--maxntid -maxntid": _NUMBERS,
    "--minnctapersm -minnctapersm": _NUMBER,
    "--override-directive-values -override-directive-values": _FLAG,
    "--fmad -fmad": _BOOL,
    "--allow-expensive-optimizations -allow-expensive-optimizations": _BOOL,
    "--disable-optimizer-constants -disable-optimizer-consts": _FLAG,
    "--optimize-float-atomics -opt-fp-atomics": _FLAG,
    "--dont-merge-basicblocks -no-bb-merge": _FLAG,
    "--return-at-end -ret-end": _FLAG,
    "--split-compile -split-compile": _NUMBER,
    "--def-load-cache -dlcm": _CACHING,
    "--def-store-cache -dscm": _CACHING,
    "--force-load-cache -flcm": _CACHING,
    "--force-store-cache -fscm": _CACHING,
    "--device-debug -g": _FLAG,
    "--generate-line-info -lineinfo": _FLAG,
    "--suppress-debug-info -suppress-debug-info": _FLAG,
    "--sp-bounds-check -sp-bounds-check": _FLAG,
    "--device-stack-protector -device-stack-protector": _BOOL,
    "--legacy-bar-warp-wide-behavior -legacy-bar-warp-wide-behavior": _FLAG,
    "--make-errors-visible-at-exit -make-errors-visible-at-exit": _FLAG,
    "--disable-warnings -w": _FLAG,
    "--warning-as-error -Werror": _FLAG,
    "--warn-on-double-precision-use -warn-double-usage": _FLAG,
    "--warn-on-local-memory-usage -warn-lmem-usage": _FLAG,
    "--warn-on-spills -warn-spills": _FLAG,
    "--suppress-stack-size-warning -suppress-stack-size-warning": _FLAG,
    "--suppress-double-demote-warning -suppress-double-demote-warning": _FLAG,
    "--suppress-async-bulk-multicast-advisory-warning -suppress-async-bulk-multicast-advisory-warning": _FLAG,
}
"""As above, for ptxas. Source: CUDA compiler driver NVCC, "Ptxas Options"."""

_TRITON: Mapping[str, str] = {
    "num_warps": _NUMBER,
    "num_stages": _NUMBER,
    "num_ctas": _NUMBER,
    "maxnreg": _NUMBER,
    "enable_fp_fusion": "True|False|0|1",
    "enable_reflect_ftz": "True|False|0|1",
    "sanitize_overflow": "True|False|0|1",
    "launch_cooperative_grid": "True|False|0|1",
    "launch_pdl": "True|False|0|1",
    "max_num_imprecise_acc_default": _NUMBER,
    "default_dot_input_precision": r"\w{1,16}",
}
"""Options of a Triton kernel. Other options name files (``ir_override``, ``extern_libs``) or reach ptxas unchecked."""


def _by_name(table: Mapping[str, str]) -> dict[str, str]:
    return {name: form for names, form in table.items() for name in names.split()}


_NVRTC_FORMS, _PTXAS_FORMS = _by_name(_NVRTC), _by_name(_PTXAS)
_MACROS, _TO_PTXAS = ("-D", "-U", "--define-macro", "--undefine-macro"), ("--ptxas-options", "-Xptxas")


def allowed_options(options: Sequence[str]) -> tuple[str, ...]:
    """Check NVRTC options of a kernel, and join each with its value: ``("-D", "N=1")`` becomes ``("-DN=1",)``.

    Raises
    ------
    BuildError
        For an option outside the list; the message has the allowed ones.
    """
    allowed = []
    for option in _in_one_piece(options):
        name, value = _split(option, "-D", "-U")
        if name in _MACROS:
            check_macro(option, value or "")
        elif name in _TO_PTXAS:
            inner, value = _split(value or "", "-O")
            if not _has_form(_PTXAS_FORMS.get(inner), value):
                raise _refusal(option, "the options of ptxas are, one at a time,", _PTXAS)
        elif not _has_form(_NVRTC_FORMS.get(name), value):
            raise _refusal(
                option, "headers come from include_dirs, the architecture from arch, and the options are", _NVRTC
            )
        allowed.append(option)
    return tuple(allowed)


def check_macro(where: str, text: str) -> None:
    """Raise BuildError, prefixed with ``where``, unless ``text`` is ``NAME=VALUE`` on one line."""
    match = _MACRO.fullmatch(text)
    if match is None:
        raise BuildError(f"{where}: {text.partition('=')[0]!r} is not a valid name of a macro")
    if len(text.splitlines()) > 1:  # further lines would be directives outside the build's key
        raise BuildError(f"{where}: macro {match[1]} has a text of several lines")


def check_triton_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise BuildError, prefixed with the ``name`` of the source, for an option outside the list."""
    for option, value in options.items():
        form = _TRITON.get(option)
        if form is None or not re.fullmatch(form, str(value)):
            raise BuildError(
                f"{name}: Triton's option {option}={value!r} is not allowed: a kernel may set {', '.join(_TRITON)}"
            )


def _in_one_piece(options: Sequence[str]) -> Iterator[str]:
    """The options, each joined with its value."""
    waiting = iter(options)
    for option in waiting:
        takes_value = option in _MACROS or option in _TO_PTXAS or _NVRTC_FORMS.get(option)
        value = next(waiting, None) if takes_value else None
        if value is None:
            yield option
        else:
            yield f"{option}{'' if option in ('-D', '-U') else '='}{value}"


def _split(option: str, *joined: str) -> tuple[str, str | None]:
    """Name and value of an option; with ``-D`` in ``joined``, ``-DN=1`` splits into ``-D`` and ``N=1``."""
    if option[:2] in joined:
        return option[:2], option[2:].removeprefix("=")
    name, equals, value = option.partition("=")
    return name, value if equals else None


def _has_form(form: str | None, value: str | None) -> bool:
    if form is None:
        return False
    return value is None if form == _FLAG else value is not None and re.fullmatch(form, value) is not None


def _refusal(option: str, which: str, table: Mapping[str, str]) -> BuildError:
    return BuildError(f"option {option!r} is not allowed: {which} {', '.join(names.split()[0] for names in table)}")
