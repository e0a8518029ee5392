"""Clean the message of a compiler of what only the compiler's authors need."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_PAIRS = {"(": ")", "{": "}", "[": "]", "<": ">"}


def closing(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at ``start``, else ``len(text)``.

    Only brackets of that kind are counted, none of them inside double quotes, and a ``->`` closes
    nothing.
    """
    opened, closed = text[start], _PAIRS[text[start]]
    depth, quoted, i = 0, False, start
    while i < len(text):
        char = text[i]
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted and char == opened:
            depth += 1
        elif not quoted and char == closed and text[i - 1 : i] != "-":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    return len(text)


def replace_bracketed(
    text: str, start: str, replacement: Callable[[re.Match[str], str], str | None]
) -> str:
    """Replace every ``start...bracket``, where the pattern ``start`` ends with an open bracket.

    ``replacement`` gets the match of ``start`` and the text between the brackets. If it returns
    None, the text stays.
    """
    pattern, position, parts = re.compile(start), 0, list[str]()
    while match := pattern.search(text, position):
        end = closing(text, match.end() - 1)
        new = replacement(match, text[match.end() : end])
        if new is None:
            parts.append(text[position : match.end()])
            position = match.end()
        else:
            parts.append(text[position : match.start()] + new)
            position = end + 1
    return "".join(parts) + text[position:]


@dataclass(frozen=True)
class CompilerMessage:
    """A cleaned message.

    Attributes:
      lines: its sentences, each once.
      operation: the operation that it is about, with its types, such as
        ``"tpu.iota() -> f32[1,128]"``, or "".
      kernel: name of the kernel, if the message has it.
    """

    lines: tuple[str, ...]
    operation: str = ""
    kernel: str = ""


#: Patterns of text that is left out, and the part of it that is kept; applied in this order.
_REPLACED: tuple[tuple[str, str], ...] = (
    # Python's names of exceptions whose kind the message repeats.
    (r"\A(?:[\w.]*\.)?(?:\w*Runtime|Value|NotImplemented|Mosaic|MLIR|Verification)Error: ", ""),
    (r"\A(?:[\w.]*\.)?LoweringException: ", ""),
    (
        r"\A(?:CANCELLED|UNKNOWN|INTERNAL|[A-Z]+(?:_[A-Z]+)+|UNIMPLEMENTED|ABORTED|UNAVAILABLE): ",
        "",
    ),
    (r"Mosaic failed to compile \w+ kernel with MLIR module name `[^`]*` HLO name `[^`]*`: ", ""),
    # Any sentence with a link: documentation, bug trackers.
    (r"(?:(?<=[.:] )|^)[^.\n]*https?://\S*[^\s.](?:\.(?=\s|$)|[^.\n]*(?:\.(?=\s|$)|$))", ""),
    (r"^[^\n]*internal verification error\. +", ""),
    (r"\bError details: ", ""),
    (r"\bE\d{4}: \w+: ?", ""),
    # An assembler's file and line are in generated code.
    (r"^.*?\bptxas \S+, line \d+; error\s*: ", "ptxas: "),
    (r"^.*?\bptxas fatal\s*: (?:Ptx assembly aborted.*)?", ""),
    (r"LLVM ERROR: Cannot select: (.*)$", r"LLVM has no instruction of this chip for \1"),
    # XLA's stack trace of what LLVM cannot do: names, but for most lines, which are empty.
    (r"\*\*\* Begin stack trace \*\*\*[\s\S]*?(?:\*\*\* End stack trace \*\*\*|\Z)", ""),
    # glog's date, thread and C++ line.
    (r"^[EF]\d{4} [\d:.]+\s+\d+ \S+:\d+\] ", ""),
    (r"^[IW]\d{4} [\d:.]+\s+\d+ \S+:\d+\] .*$", ""),
    (r"^WARNING: All log messages before .*$", ""),
    # Stack traces of C++ and of Python's fault handler.
    (r"^\s*(?:@ +0x|#\d+ |\*\*\* |PC: @|0x[0-9a-f]+ |Stack dump|PLEASE submit).*$", ""),
    (r"^\s*\d+\.?\s+(?:Program arguments:|\S+\s+0x[0-9a-f]+).*$", ""),
    (r"^(?:Current thread|Thread 0x|Extension modules|Fatal Python error).*$", ""),
    (r'^\s*File "[^"]*", line \d+ in .*$', ""),
    # Values' names in dumps, base64, and other text without words.
    (r"(?<![\w+/=.-])(?!/)[A-Za-z0-9+/=_-]{80,}+(?!\.\w)", "..."),
    # Python's spelling of shapes and enums.
    (r"\b(?:Blocked|BoundedSlice)\(block_size=(\d+)\)", r"\1"),
    (r"\bElement\(block_size=(\d+), padding=\(0, 0\)\)", r"Element(\1)"),
    (r"<\w+\.(\w+): [^>\n]*>", r"\1"),
    (r",? in memory space (?:DEFAULT|None)\b", ""),
    (r"\b(at|in) /(?:[^\s/:]+/)+([^\s/:]+:\d+)", r"\1 \2"),
    (r"^\s*(?:error|note): ", ""),
)

#: An operand, as JAX' lowerings and libtpu call it.
_OPERAND = re.compile(r"\b(?:args\[\d+\]|outputs\b|(?:input|output) \d+)")

#: Lines with such a word say what is wrong.
_TELLING = re.compile(
    r"error|fail|unsupported|support|cannot|can't|couldn't|invalid|not |must|only|exceed|require"
    r"|expected|mismatch|illegal|unknown|abort|check",
    re.IGNORECASE,
)

_OPERATION = re.compile(r'(?:%[\w:]+(?:, %[\w:]+)* = )?"(?P<name>\w+\.[\w.]+)"\(')


def clean(text: str) -> CompilerMessage:
    """Clean a message of JAX's lowerings, libtpu, XLA or ptxas, or what they left on stderr."""
    kernel = re.search(r"MLIR module name `([^`]*)`|in pallas_call (\w+) at", text)
    text = _without_locations(text)
    text, operation = _without_operations(text)
    text = _without_hlo(text)
    text = replace_bracketed(text, r",?(?: and)? index_map \{", lambda match, inside: "")
    for pattern, kept in _REPLACED:
        text = re.sub(pattern, kept, text, flags=re.MULTILINE)
    name = (kernel[1] or kernel[2]) if kernel is not None else ""
    return CompilerMessage(_telling(_lines(types_readable(text))), operation, name)


def types_readable(text: str) -> str:
    """Write MLIR's types as JAX does: ``f32[8,128]`` for ``vector<8x128xf32>``."""

    def readable(match: re.Match[str], inside: str) -> str | None:
        parts = re.match(
            r"(?P<dims>(?:(?:\d+|\?)x)*)(?P<dtype>[\w.!]+(?:<[^<>]*>)?)(?=,|$)", inside
        )
        if parts is None:
            return None
        space = re.search(r"memory_space<(\w+)", inside)
        dims = parts["dims"].rstrip("x").replace("x", ",")
        shape = f"[{dims}]" if dims else ""
        return parts["dtype"] + shape + (f" in {space[1].upper()}" if space else "")

    return replace_bracketed(text, r"\b(?:vector|memref|tensor)<", readable)


def _without_locations(text: str) -> str:
    """Remove ``loc(...)`` and the bare location in front of an MLIR diagnostic."""
    text = replace_bracketed(text, r"(?:at location: )?\bloc\(", lambda match, inside: "")

    def bare(match: re.Match[str], inside: str) -> str | None:
        return "" if re.search(r'"[^"\n]+":\d+:\d+|^"[^"]*"$', inside) else None

    return replace_bracketed(text, r'"[^"\n]*:?"\((?=")', bare).replace("error: : ", "error: ")


def _without_operations(text: str) -> tuple[str, str]:
    """Remove dumps of MLIR operations; returns the text and the first operation in short.

    The text before and after a dump on its line stays, with the operation's name between.
    """
    first = ""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _OPERATION.search(line)
        if match is None:
            lines.append(line)
            continue
        signature, end = _signature(line, closing(line, match.end() - 1) + 1)
        first = first or _short_operation(match["name"], signature)
        before, after = line[: match.start()], line[end:]
        if after.strip():
            lines.append(f"{before}{match['name']}{after}")
        else:
            before = before.rstrip(": ").removesuffix("see current operation").rstrip(": ")
            lines.append(before.removesuffix("note").rstrip(": "))
    text = re.sub(r"^The MLIR operation involved:\s*$", "", "\n".join(lines), flags=re.MULTILINE)
    return text, first


def _signature(line: str, start: int) -> tuple[str, int]:
    """Return the types of an operation whose arguments end at ``start``, and its dump's end."""
    end = start
    while attributes := re.compile(r" (?:<\{|\{)").match(line, end):
        end = closing(line, attributes.end() - 1) + 1
        end += line[end : end + 1] == ">"
    types = re.compile(r" : (?=\()").match(line, end)
    if types is None:
        return "", end
    end = closing(line, types.end()) + 1
    result = re.compile(r" -> (?:(?P<open>\()|[\w.!]+(?P<angle><)?)").match(line, end)
    if result is not None:
        opened = result["open"] or result["angle"]
        end = closing(line, result.end() - 1) + 1 if opened else result.end()
    return line[types.end() : end], end


def _short_operation(name: str, signature: str) -> str:
    """Write ``tpu.reshape(f32[8,15]) -> f32[6,20]``, without arguments that count or index."""
    if not signature.startswith("("):
        return name
    end = closing(signature, 0)
    arguments = re.split(r", (?![^\[<]*[\]>])", types_readable(signature[1:end]))
    kept = ", ".join(a for a in arguments if a not in ("index", "i32", "i1", ""))
    result = types_readable(signature[end + 1 :].partition("->")[2].strip())
    return f"{name}({kept})" + (f" -> {result}" if result not in ("", "()") else "")


def _without_hlo(text: str) -> str:
    """Remove the attributes of HLO instructions, which hold whole kernels in base64."""
    pattern = re.compile(r"%[\w.-]+ = (?P<shape>\w+\[[\d,]*\])(?:\{[^}]*\})? (?P<name>[\w-]+)\(")
    position, parts = 0, list[str]()
    while match := pattern.search(text, position):
        end = closing(text, match.end() - 1) + 1
        while attribute := re.compile(r', \w+=(?:"[^"]*"|(?P<open>\{)|[^\s,{]+)').match(text, end):
            end = attribute.end()
            if attribute["open"]:
                end = closing(text, end - 1) + 1
        parts.append(text[position : match.start()] + f"{match['shape']} {match['name']}")
        position = end
    return "".join(parts) + text[position:]


def _lines(text: str) -> list[str]:
    """Split a text into sentences, without those that differ from earlier ones in numbers only.

    A sentence behind a colon is part of the one before.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for raw in (piece for line in text.split("\n") for piece in _sentences(line)):
        line = re.sub(r"\s+", " ", raw).strip(" ,")
        key = re.sub(r"0x[0-9a-f]+|[%\d]+", "0", line)
        if not re.search(r"\w", line) or key in seen:
            continue
        seen.add(key)
        if lines and lines[-1].endswith(":"):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def _sentences(line: str) -> list[str]:
    """Split a long line into sentences."""
    return [line] if len(line) <= 200 else re.split(r"(?<=[a-z)\]]\.) +(?=[A-Z])", line)


def _telling(lines: list[str], most: int = 3) -> tuple[str, ...]:
    """Choose at most so many lines that say what is wrong; first those that name an operand."""
    # "failed to legalize" repeats the message of the pass before with less in it.
    better = [line for line in lines if not line.startswith("failed to legalize operation")]
    lines = better or lines
    if len(lines) > most:
        lines = [line for line in lines if _TELLING.search(line)] or lines
    lines = sorted(lines[:most], key=lambda line: not _OPERAND.search(line))
    return tuple(line if len(line) <= 500 else line[:497] + "..." for line in lines)
