"""Experiments: models trained on real data with every law watched."""
