"""``python -m memmodel`` is the ``memmodel`` command."""

from memmodel.cli import main

main()
