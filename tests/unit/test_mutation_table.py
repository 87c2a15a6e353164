"""The table of mutations: what has one name is one patch, and has scenarios that must miss the safeguard."""

from mutations import all_mutations


def test_each_mutation_is_written_once_and_is_missed_by_a_scenario():
    mutations = [mutation for table in all_mutations().values() for mutation in table]
    patches = {mutation.name: mutation.apply for mutation in mutations}
    assert [each.name for each in mutations if each.apply is not patches[each.name] or not each.scenarios] == []
    assert len(patches) > 200
