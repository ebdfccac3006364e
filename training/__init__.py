"""The recipe of the bundled model: data, network, training, evaluation, export.

Scripts are run from the repository root: `python -m training.prepare`, then `train`, `export` and
`check`. docs/training.md says how.
"""
