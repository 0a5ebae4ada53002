"""Recipes, training by them, and the runs that are stored."""
