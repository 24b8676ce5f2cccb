# `make check` is what continuous integration (.ci/run) runs after it has installed the package.
# Recipes are plain shell lines without make's variables: .ci/run reads them from here.
# They use the `python` on the path: activate your virtual environment first.

.PHONY: check format lint types docs test fix

check: format lint types docs test

format:
	python -m ruff format --check

lint:
	python -m ruff check

types:
	python -m mypy

docs:
	python docs/generate.py --check

test:
	python -m pytest

# Not a check: writes what the checks ask for.
fix:
	python -m ruff format
	python -m ruff check --fix
	python docs/generate.py
