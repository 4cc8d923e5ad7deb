"""The clinic's patients: each has a diagnosis and a hint, and the notebook does not show its lines."""

import json

import pytest

from convlab.core.kernel import catalog
from tests.instruments.run_notebooks import NOTEBOOKS, read

pytestmark = pytest.mark.pure
DOCUMENT = json.loads((NOTEBOOKS / "patients.json").read_text())
PATIENTS = DOCUMENT["patients"]


@pytest.mark.parametrize("name", PATIENTS)
def test_a_patient_is_complete(name):
    patient = PATIENTS[name]
    source = catalog.find(patient["rung"]).read_text()
    assert sum(patient["anchor"] in line for line in source.splitlines()) == 1
    assert patient["diagnosis"] in DOCUMENT["diagnoses"][patient["group"]]
    assert patient["hint"] and patient["problems"]


def test_no_list_of_diagnoses_ends_with_the_last_patient():
    """By exclusion alone, a reader finds no diagnosis of cases 1 to 18."""
    for group, diagnoses in DOCUMENT["diagnoses"].items():
        patients = [patient for patient in PATIENTS.values() if patient["group"] == group]
        right = {patient["diagnosis"] for patient in patients}
        assert len(right) == len(patients) <= len(diagnoses)


def test_the_notebook_shows_no_faulty_line():
    notebook = read("clinic")
    shown = json.dumps([[cell.source, cell.get("outputs", [])] for cell in notebook.cells])
    for name, patient in PATIENTS.items():
        for line in patient["faulty"].splitlines():
            assert json.dumps(line.strip())[1:-1] not in shown, (name, line)


def test_each_patient_has_its_four_cells():
    sources = [cell.source for cell in read("clinic").cells]
    for number, name in enumerate(PATIENTS, 1):
        at = sources.index(f'examine("{name}")')
        following = "\n".join(sources[at + 1 : at + 6])
        for text in (f"diagnosis_{number} = None", f'reveal("{name}"', f'treat("{name}"'):
            assert text in following
