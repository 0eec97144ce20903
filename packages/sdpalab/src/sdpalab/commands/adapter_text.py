"""First version of the adapter of a CUDA file that somebody else wrote: ``sdpalab new --from FILE.cu``.

The signature of the kernel and its launch in host code give the arguments, the grid and the block. The answers to all
that the source does not say come from the command line; :func:`adapter_text` asks for them in one message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from sdpalab.errors import UserError
from sdpalab.kernels.layouts import LAYOUTS
from sdpalab.kernels.signature_names import argument_of, bare_name, buffer_of, stride_of
from warpsan.build import (
    HostLaunch,
    KernelSignature,
    Module,
    arguments_in,
    kernel_signatures,
    launch_of,
    only_kernel,
)

__all__ = ["Answers", "adapter_text"]

_DTYPES = {
    "float": "float32",
    "half": "float16",
    "__half": "float16",
    "half_t": "float16",
    "Half": "float16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "bfloat16_t": "bfloat16",
    "BFloat16": "bfloat16",
}
_IMPORTS = "Config, CudaKernel, Launch, LaunchPlan, Problem, laid_out"
_HEAD_DIMS = ("d", "dim", "headdim", "hd", "dhead", "headsize", "dk", "dh")
_NUMBER = re.compile(
    r"^[ \t]*(?:#define[ \t]+(\w+)[ \t]+\(?(\d+)\)?"
    r"|(?:static\s+|inline\s+|__device__\s+)*(?:constexpr|const)\s+[\w ]+?\b(\w+)\s*=\s*(\d+)\s*;)",
    re.MULTILINE,
)
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([\w:]+)\s*;")
_TYPEDEF = re.compile(r"\btypedef\s+([\w:]+)\s+(\w+)\s*;")
_CEIL = re.compile(r"\b(?:\w+::)?(?:ceil_?div|cdiv|div_?up|divup|ceildiv)\b", re.IGNORECASE)
_CEIL_OF_QUOTIENT = re.compile(
    r"\bceilf?\s*\(\s*(?:float\s*\()?([\w.]+)\)?\s*/\s*(?:float\s*\()?([\w.]+?)(?:\.0?f?)?\)?\s*\)"
)
_SIZE = re.compile(r"\b\w+\.(?:size\((\d)\)|sizes\(\)\[(\d)\])")
_CAST = re.compile(
    r"\(\s*(?:int|unsigned|size_t|float|unsigned int|uint32_t)\s*\)|\bstatic_cast<[\w ]+>|\bstd::|\bat::|\btorch::"
)
_BYTES = {"float": 4, "half": 2, "__half": 2, "__nv_bfloat16": 2, "int": 4}
_TEXT = Template('''\
"""$file as it is, for the lab; written by ``sdpalab new --from``.

    sdpalab judge $name.py $flags
"""

from pathlib import Path

from sdpalab import $imports


def plan(problem: Problem, config: Config) -> LaunchPlan:
    """The launch of $entry."""
    launch = Launch(
        grid=$grid,
        block=$block,
        dynamic_smem=$smem,
        args=$args,
    )
    # The arrays lie as $order.
    return laid_out(problem, launch, "$layout"$buffers)


def supports(problem: Problem) -> str | None:
    """None, or the reason why the problem is not supported."""
$conditions
    return None


$upper = CudaKernel(
    name="$name",
    source=Path("$file"),
    entry="$entry",
    plan=plan,
    supports=supports,$options
    idea="the kernel of $file",
)
''')


@dataclass(frozen=True)
class Answers:
    """Answers of the command line to what a source does not say.

    Attributes
    ----------
    entry, layout, mask, grid, block, smem : str
        Name expression of the kernel, key of :data:`sdpalab.kernels.layouts.LAYOUTS`, ``causal`` or ``none`` for a
        kernel without such a parameter, and Python expressions; empty if not given.
    arguments, buffers : mapping of str to str
        Python expression of a parameter, and initial value of a float32 workspace [B, H, Sq], by the parameter's name.
    head_dim, multiple : int
        The only head dimension, and a divisor of the numbers of rows and keys; 0 if not given.
    """

    entry: str = ""
    layout: str = ""
    mask: str = ""
    grid: str = ""
    block: str = ""
    smem: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, str] = field(default_factory=dict)
    head_dim: int = 0
    multiple: int = 0


def adapter_text(path: Path, name: str, answers: Answers, file: str = "") -> str:
    """Python text of an adapter; ``file`` is the path of the source from the adapter's folder.

    Raises
    ------
    UserError
        If the file has no such kernel; or with all questions, if the source does not answer them.
    """
    try:
        source = path.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return _AdapterOfSource(path, source, name, answers).text(file or path.name)


class _AdapterOfSource:
    """The adapter of one kernel."""

    def __init__(self, path: Path, source: str, name: str, answers: Answers) -> None:
        self._path, self._source, self._name, self._answers = path, source, name, answers
        self._questions: list[str] = []
        self._module = Module(path.name, source, "", include_dirs=(path.absolute().parent,))
        self._numbers = {a or b: int(x or y) for a, x, b, y in _NUMBER.findall(source)}
        self._signature, self._entry = self._kernel()
        launch = launch_of(Module(path.name, source, self._entry, include_dirs=(path.absolute().parent,)))
        self._launch = launch if isinstance(launch, HostLaunch) else None
        if self._launch is not None and self._signature.templates and "<" not in self._entry:
            self._entry = self._launch.kernel
        self._templates = self._template_values()
        if self._signature.templates and not self._templates:
            names = ", ".join(each.name for each in self._signature.templates)
            self._questions.append(f'the template arguments {names}: --entry "{self._entry}<...>"')

    def text(self, file: str) -> str:
        """The adapter."""
        layout = self._answers.layout or self._layout()
        arguments = [self._argument(each.type, each.name, layout) for each in self._signature.parameters]
        dtype, head_dim = self._dtype(), self._answers.head_dim or self._head_dim()
        grid, block, smem = (self._size(place, layout) for place in range(3))
        if not self._answers.mask and "causal" not in " ".join(arguments) and re.search(r"causal", self._source, re.I):
            self._questions.append("the mask that it computes: --mask causal or none")
        if self._questions:
            asked = "; ".join(self._questions)
            raise UserError(f"{self._path.name} does not state all of {self._signature.name}: give {asked}")
        names = {bare_name(each.name): each for each in self._signature.parameters}
        flat = " ".join(arguments)
        conditions = [(f'problem.dtype != "{dtype}"', f"{self._name} computes {dtype}")]
        if head_dim:
            conditions.append((f"problem.head_dim != {head_dim}", f"head_dim is {head_dim}"))
        if layout == "nd":
            conditions.append(("problem.batch * problem.heads != 1", "one head"))
        if self._answers.multiple:
            n = self._answers.multiple
            conditions.append((f"problem.seq_q % {n} or problem.seq_kv % {n}", f"rows and keys are multiples of {n}"))
        if not smem.isdigit():
            conditions.append((f"{smem} > 99 * 1024", "at most 99 KiB of shared memory"))
        if "seq_kv" not in flat or layout.startswith("qkv"):
            conditions.append(("problem.seq_q != problem.seq_kv", "as many keys as rows"))
        listed = zip(self._signature.parameters, arguments, strict=True)
        if not any(re.search(r"kv_heads|group", each) for one, each in listed if not stride_of(one.name, layout)):
            conditions.append(("problem.kv_heads != problem.heads", "as many K/V heads as heads"))
        mask = self._answers.mask or ("causal" if "causal" in self._signature.name.lower() else "none")
        if "causal" not in flat:
            masked = mask == "causal"
            conditions.append(("not problem.causal", "a causal mask") if masked else ("problem.causal", "no mask"))
        if "problem.scale" not in flat and not any("scale" in each for each in names):
            conditions.append(("abs(problem.scale - problem.head_dim**-0.5) > 1e-6", "the scale is 1/sqrt(head_dim)"))
        lines = [f'    if {test}:\n        return "{reason}"' for test, reason in conditions]
        options = '\n    options=["--use_fast_math"],' if "use_fast_math" in self._source else ""
        return _TEXT.substitute(
            file=file,
            name=self._name,
            upper=self._name.upper(),
            entry=self._entry.replace('"', '\\"'),
            flags=self._flags(dtype, head_dim, layout),
            imports=("Buffer, " if self._answers.buffers else "") + _IMPORTS,
            grid=grid,
            block=block,
            smem=smem,
            args=_wrapped(arguments),
            layout="bhsd" if layout == "nd" else layout,
            order="[S, D]" if layout == "nd" else LAYOUTS[layout],
            buffers=self._buffers(),
            conditions="\n".join(lines),
            options=options,
        )

    def _kernel(self) -> tuple[KernelSignature, str]:
        known = kernel_signatures(self._module)
        if not known:
            raise UserError(f"{self._path} has no __global__ function with a body")
        wanted = self._answers.entry or only_kernel(self._module)
        name = wanted.partition("<")[0].rpartition("::")[2]
        fitting = [each for each in known if each.name.rpartition("::")[2] == name]
        if not wanted:
            likely = [each for each in known if {"q", "k", "v", "o"} <= {buffer_of(p.name) for p in each.parameters}]
            if len(likely) != 1:
                names = ", ".join(each.name for each in known)
                raise UserError(f"{self._path} has {len(known)} kernels: name one with --entry, of {names}")
            return likely[0], likely[0].name
        if not fitting:
            raise UserError(f"{self._path} has no kernel {name}: it has {', '.join(each.name for each in known)}")
        return fitting[0], wanted if "<" in wanted else fitting[0].name

    def _template_values(self) -> dict[str, str]:
        given = re.search(r"<(.*)>", self._entry)
        values = [each.strip() for each in given[1].split(",")] if given else []
        return {each.name: value for each, value in zip(self._signature.templates, values, strict=False)}

    def _layout(self) -> str:
        names = {bare_name(each.name) for each in self._signature.parameters}
        if "qkv" in {buffer_of(each.name) for each in self._signature.parameters}:
            self._questions.append("the order of the array of Q, K and V: --layout qkv_bs3hd or qkv_3bhsd")
            return "qkv_bs3hd"
        body = self._source[slice(*self._signature.body)]
        several = {"b", "bs", "batch", "h", "nh", "heads", "numheads", "nheads", "bh", "batchsize", "nhead"} & names
        if any("stride" in each for each in names):
            return "bhsd"
        if not several and not re.search(r"blockIdx\s*\.\s*[yz]", body):
            return "nd"
        orders = ", ".join(name for name in LAYOUTS if "qkv" not in name)
        self._questions.append(f"the order of Q, K, V and O in memory: --layout {orders} or nd")
        return "bhsd"

    def _argument(self, kind: str, name: str, layout: str) -> str:
        if name in self._answers.arguments:
            return self._checked(self._answers.arguments[name], f"--arg {name}")
        if name in self._answers.buffers:
            return f'"{name}"'
        if "*" in kind:
            buffer = buffer_of(name)
            if buffer == "lse" or not buffer:
                self._questions.append(
                    f"the array {kind} {name}: --arg {name}='\"q\"' for a buffer of the lab, or --buffer {name}=0 for "
                    "a float32 workspace [B, H, S] with that initial value"
                )
                return "None"
            return f'"{buffer}"'
        strides = stride_of(name, layout)
        expression = strides or self._meaning(name, kind)
        if not expression:
            self._questions.append(f"the value of {kind} {name}: --arg {name}=EXPRESSION, such as problem.seq_q // 32")
        return expression

    def _meaning(self, name: str, kind: str = "") -> str:
        """Expression of a number; N beside M is the number of keys."""
        expression = argument_of(name)
        if expression.startswith("problem.scale") and kind and "float" not in kind and "double" not in kind:
            return ""
        others = {bare_name(each.name) for each in self._signature.parameters if "*" not in each.type}
        if bare_name(name) == "n" and "m" in others:
            return "problem.seq_kv"
        return expression

    def _size(self, place: int, layout: str) -> str:
        given = (self._answers.grid, self._answers.block, self._answers.smem)[place]
        option = ("--grid", "--block", "--smem")[place]
        if given:
            return self._checked(given, option)
        if self._launch is None:
            if place == 2:
                return "0"
            example = "(problem.seq_q // 64, problem.heads, 1)"
            self._questions.append(f"the {option[2:]} of its launch: {option} EXPRESSION, such as {example}")
            return ""
        text = self._launch.texts[place].strip()
        if place == 2:
            constant = self._launch.dynamic_smem
            expression = str(constant) if constant is not None else self._python(text, layout)
        else:
            dims = self._launch.sizes[place]
            expression = str(tuple(dims)) if dims else self._dims(text, layout)
        if not expression:
            self._questions.append(f"the {option[2:]}, which host code gives as {text}: {option} EXPRESSION")
        return expression

    def _dims(self, text: str, layout: str) -> str:
        inner = re.fullmatch(r"(?:dim3\s*)?[({](.*)[)}]", text, re.DOTALL)
        parts = [self._python(each, layout) for each in arguments_in(inner[1] if inner else text) if each]
        return f"({', '.join([*parts, '1', '1'][:3])})" if all(parts) else ""

    def _python(self, text: str, layout: str) -> str:
        """A C++ expression in Python, on ``problem``; empty if a name is unknown."""
        axes = ["problem.batch", "problem.heads", "problem.seq_q", "problem.head_dim"]
        if layout == "bshd":
            axes[1], axes[2] = axes[2], axes[1]
        if layout == "nd":
            axes = ["problem.seq_q", "problem.head_dim"]
        text = _SIZE.sub(lambda m: axes[int(m[1] or m[2])] if int(m[1] or m[2]) < len(axes) else "?", text)
        text = re.sub(r"\bsizeof\s*\(\s*([\w ]+?)\s*\)", lambda m: str(_BYTES.get(m[1], "?")), text)
        text = _CAST.sub("", text)
        text = _CEIL.sub("ceil_div", text)
        text = _CEIL_OF_QUOTIENT.sub(r"ceil_div(\1, \2)", text)
        text = re.sub(r"(?<=\d)[uUlLf]+\b", "", text).replace("/", "//")

        def named(match: re.Match[str]) -> str:
            word = match[0]
            if word in ("problem", "ceil_div", "max", "min") or text[: match.start()].endswith("problem."):
                return word
            if word in self._answers.arguments:
                return f"({self._answers.arguments[word]})"
            if word in self._templates:
                return self._templates[word]
            if word in self._numbers:
                return str(self._numbers[word])
            return self._meaning(word) or "?"

        result = re.sub(r"[A-Za-z_][\w]*", named, text)
        result = re.sub(r"ceil_div\(([^(),]+),\s*([^(),]+)\)", r"-(-(\1) // (\2))", result)
        try:
            return "" if "?" in result else ast.unparse(ast.parse(result.strip(), mode="eval"))
        except SyntaxError:
            return ""

    def _dtype(self) -> str:
        named = {
            each.name: self._answers.arguments.get(each.name, "").strip("'\"") for each in self._signature.parameters
        }
        arrays = [each for each in self._signature.parameters if "*" in each.type]
        array = next((each for each in arrays if (named[each.name] or buffer_of(each.name)) in ("q", "qkv")), None)
        kind = re.sub(r"\b(const|struct)\b|\*|\w+::", "", array.type).strip() if array is not None else ""
        aliases = dict(_ALIAS.findall(self._source))
        aliases |= {new: old for old, new in _TYPEDEF.findall(self._source)}
        kind = self._templates.get(kind, kind)
        kind = re.sub(r"^.*::", "", aliases.get(kind, kind).strip())
        if kind not in _DTYPES:
            name = self._signature.name
            self._questions.append(f'the type of the arrays, {kind or "which has no Q"}: --entry "{name}<float>"')
        return _DTYPES.get(kind, "")

    def _head_dim(self) -> int:
        values = {**{name: str(n) for name, n in self._numbers.items()}, **self._templates}
        for name, value in values.items():
            if bare_name(name) in _HEAD_DIMS and value.isdigit() and 8 <= int(value) <= 512:
                return int(value)
        return 0

    def _flags(self, dtype: str, head_dim: int, layout: str) -> str:
        n = max(128, 2 * self._answers.multiple)
        heads = "1,1" if layout == "nd" else "1,2"
        return f"--shape {heads},{n},{head_dim or 64} --dtype {dtype}"

    def _buffers(self) -> str:
        each = [
            f'Buffer("{name}", problem.q_shape[:3], "float32", "workspace", fill=float("{fill}"))'
            for name, fill in self._answers.buffers.items()
        ]
        return f", ({', '.join(each)},)" if each else ""

    @staticmethod
    def _checked(expression: str, option: str) -> str:
        try:
            return ast.unparse(ast.parse(expression, mode="eval"))
        except SyntaxError:
            raise UserError(f"{option} is a Python expression on problem, not {expression!r}") from None


def _wrapped(arguments: Sequence[str]) -> str:
    """A tuple in Python, with an item a line if it is long."""
    line = f"({', '.join(arguments)},)"
    return line if len(line) < 80 else "(\n" + "".join(f"            {each},\n" for each in arguments) + "        )"
