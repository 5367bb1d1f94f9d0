"""Graphs on disk: building, partitioning, opening and checking *stores*.

    build.build_store       a dataset, streamed into a store, or another store of the same graph, in other parts
    store.Store             a store, opened by mapping
    catalog.find_or_build   the folder of stores that ``GraphLoader`` keeps

Nothing is imported here: each name is imported from its own module.
"""
