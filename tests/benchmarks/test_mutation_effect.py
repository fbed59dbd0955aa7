"""The table of what mutations bring: operators are grouped, births of several seeds are pooled."""

from benchmarks.mutation_effect import Births, group, table

BIRTHS = [
    Births("cartpole", 1, "clone, unchanged", [10.0, 20.0], [1.0]),
    Births("cartpole", 1, "encoder.add_node", [30.0], []),
    Births("cartpole", 2, "head.add_node", [40.0, 50.0, 40.0], [4.0, 6.0]),
    Births("cartpole", 2, "lr", [-7.0], [-8.0]),
]


def test_operators_are_grouped():
    names = ("encoder.add_node", "add_latent_node", "head.add_layer", "encoder.remove_layer", "encoder.remove_channel")
    assert list(map(group, names)) == [
        "units added",
        "units added",
        "a layer added",
        "a layer removed",
        "units removed",
    ]
    assert group("noise on weights") == "noise on weights"


def test_table_has_unchanged_clones_first_and_then_the_most_frequent():
    head, _, columns, _, *rows = table(BIRTHS)
    assert head.startswith("**cartpole**, seeds 1, 2: 16 members")
    assert columns.startswith("| mutation | births | gain")
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| clone, unchanged", "2"],
        ["| units added", "4"],
        ["| lr", "1"],
    ]
    added, alone = rows[1].split(" | "), rows[2].split(" | ")
    assert added[2].startswith("+40.0 [+32.5, +47.5] rough")
    assert (added[3], added[4].split()[0]) == ("2", "+5.00")
    assert (alone[2], alone[4].strip(" |")) == ("-7.00", "-8.00")
