"""The table of mutations: what has one name is one patch, and has scenarios that must miss the safeguard."""

import pytest

from mutations import Mutation, all_mutations


def mutations() -> list[Mutation]:
    return [mutation for table in all_mutations().values() for mutation in table]


def test_each_mutation_is_written_once_and_is_missed_by_a_scenario():
    patches = {mutation.name: mutation.apply for mutation in mutations()}
    assert [each.name for each in mutations() if each.apply is not patches[each.name] or not each.scenarios] == []
    assert len(patches) > 200


def test_each_mutation_patches_what_exists():
    """Otherwise a mutation of a function that was renamed fails by its patch, and seems to be noticed."""
    for mutation in mutations():
        with pytest.MonkeyPatch.context() as patch:
            mutation.apply(patch)
