"""Writes src/greenroom/models.py from docs/openapi.json. With `--check` it only says whether the file is current.

Objects become frozen data classes, enumerations become `Literal`s: a value that a newer server sends is kept.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOTS = [
    *("Bot", "BotPage", "EventPage", "StreamedEvent", "Transcript", "BotLog", "Explanation", "Usage"),
    "Requirements",
]
HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[2] / "docs" / "openapi.json"
MODELS = HERE.parent / "src" / "greenroom" / "models.py"
HEAD = '''"""The types of the answers. Written by scripts/generate_models.py from the OpenAPI document: do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

from ._time import parse_time
'''

Schema = dict[str, Any]


def referred(schema: Schema) -> str | None:
    """The name of the schema that this one refers to."""
    reference = schema.get("$ref")
    return str(reference).rpartition("/")[2] if reference else None


def without_null(schema: Schema) -> tuple[Schema, bool]:
    """The schema without `null`, and whether `null` was allowed."""
    if "oneOf" in schema:
        others = [one for one in schema["oneOf"] if one.get("type") != "null"]
        if len(others) == 1:
            return {**schema, **others[0]} | {"oneOf": []}, len(others) < len(schema["oneOf"])
    if isinstance(schema.get("type"), list):
        types = [one for one in schema["type"] if one != "null"]
        return schema | {"type": types[0]}, "null" in schema["type"]
    return schema, False


class Writer:
    def __init__(self, schemas: dict[str, Schema]) -> None:
        self.schemas = schemas
        self.needed: list[str] = []

    def collect(self, name: str) -> None:
        """Adds a schema after those that it needs."""
        if name in self.needed:
            return
        for used in self.uses(self.schemas[name]):
            self.collect(used)
        self.needed.append(name)

    def uses(self, schema: Any) -> list[str]:
        if isinstance(schema, list):
            return [name for one in schema for name in self.uses(one)]
        if not isinstance(schema, dict):
            return []
        name = referred(schema)
        return [name] if name else [used for value in schema.values() for used in self.uses(value)]

    def properties(self, schema: Schema) -> tuple[dict[str, Schema], set[str]]:
        """The fields of an object, and which of them are always there."""
        fields: dict[str, Schema] = dict(schema.get("properties", {}))
        required = set(schema.get("required", []))
        for part in schema.get("allOf", []):
            name = referred(part)
            more, also = self.properties(self.schemas[name] if name else part)
            fields |= more
            required |= also
        return fields, required

    def type_of(self, schema: Schema) -> str:
        name = referred(schema)
        if name:
            return name
        if "enum" in schema:
            values = ", ".join(json.dumps(value) for value in schema["enum"])
            if len(values) > 80:
                lines = textwrap.wrap(values + ",", 96)
                return "\n".join(["Literal[", *(f"    {line}" for line in lines), "]"])
            return f"Literal[{values}]"
        match schema.get("type"):
            case "string":
                return "datetime" if schema.get("format") == "date-time" else "str"
            case "integer":
                return "int"
            case "number":
                return "float"
            case "boolean":
                return "bool"
            case "array":
                return f"list[{self.type_of(schema['items'])}]"
            case "object":
                value = schema.get("additionalProperties") or {}
                return f"dict[str, {self.type_of(value)}]"
        return "Any"

    def read(self, schema: Schema, value: str) -> str:
        """The expression that reads a value of the JSON document."""
        name = referred(schema)
        if name and "enum" not in self.schemas[name]:
            return f"{name}.from_json({value})"
        if schema.get("format") == "date-time":
            return f"parse_time({value})"
        if schema.get("type") == "array":
            item = self.read(schema["items"], "item")
            return f"list({value})" if item == "item" else f"[{item} for item in {value}]"
        return value

    def object(self, name: str) -> str:
        fields, required = self.properties(self.schemas[name])
        lines = ["@dataclass(frozen=True, kw_only=True)", f"class {name}:", *described(self.schemas[name]), ""]
        reads = []
        # Fields without a default come first.
        for field in sorted(fields, key=lambda field: field not in required):
            schema, is_nullable = without_null(fields[field])
            identifier = field + "_" if keyword.iskeyword(field) else field
            type_name = self.type_of(schema)
            is_optional = is_nullable or field not in required
            suffix = " | None" if is_optional and type_name != "Any" else ""
            default = "" if field in required else " = None"
            lines += [f"    {identifier}: {type_name}{suffix}{default}", *described(fields[field])]
            value = f'data["{field}"]'
            read = self.read(schema, value)
            if is_optional:
                # A server of an older version may not have the field.
                got = f'data.get("{field}")'
                read = got if read == value else f"None if {got} is None else {read}"
            reads.append(f"            {identifier}={read},")
        return "\n".join([
            *lines,
            "",
            "    @classmethod",
            f"    def from_json(cls, data: Mapping[str, Any]) -> {name}:",
            "        return cls(",
            *reads,
            "        )",
        ])

    def request(self, name: str) -> str:
        """A type of a request: a dictionary whose keys may be missing."""
        fields, _ = self.properties(self.schemas[name])
        lines = [f"class {name}(TypedDict, total=False):", *described(self.schemas[name]), ""]
        for field, schema in fields.items():
            inner, _ = without_null(schema)
            lines += [f"    {field}: {self.type_of(inner)}", *described(schema)]
        return "\n".join(lines)

    def write(self) -> str:
        words = [name for name in self.needed if "enum" in self.schemas[name]]
        parts = [HEAD.rstrip(), "\n\n".join(self.word(name) for name in words)]
        for name in self.needed:
            if name == "Requirements":
                parts.append(self.request(name))
            elif name not in words:
                parts.append(self.object(name))
        return "\n\n\n".join(parts).replace("parse_time\n\n\n", "parse_time\n\n", 1) + "\n"

    def word(self, name: str) -> str:
        comments = (f"# {line}" for line in wrapped(self.schemas[name], 100))
        return "\n".join([*comments, f"{name} = {self.type_of(self.schemas[name])}"])


def wrapped(schema: Schema, width: int) -> list[str]:
    text = schema.get("description", "")
    if not text and "oneOf" in schema:
        text = next((one["description"] for one in schema["oneOf"] if "description" in one), "")
    # A line continues the one before it, unless it begins a paragraph or an item of a list.
    text = re.sub(r"(?<!\n)\n(?!\n|- )", " ", text)
    return [line for part in text.split("\n") if part.strip() for line in textwrap.wrap(part, width)]


def described(schema: Schema) -> list[str]:
    lines = wrapped(schema, 104)
    if not lines:
        return []
    if len(lines) == 1:
        return [f'    """{lines[0]}"""']
    return [f'    """{lines[0]}', *(f"    {line}" for line in lines[1:]), '    """']


def main() -> int:
    writer = Writer(json.loads(DOCUMENT.read_text())["components"]["schemas"])
    for root in ROOTS:
        writer.collect(root)
    models = writer.write()
    if "--check" not in sys.argv[1:]:
        MODELS.write_text(models)
    elif MODELS.read_text() != models:
        print(f"{MODELS.name} is not current: run clients/python/scripts/generate_models.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
