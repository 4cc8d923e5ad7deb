"""The schema of what ``check --json`` prints, and what validates a document against it."""

import json
from pathlib import Path

import jsonschema

import convlab

_FOLDER = Path(convlab.__file__).parent / "core" / "correctness"
SCHEMA = json.loads((_FOLDER / "report.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
