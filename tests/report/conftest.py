from runs import words  # noqa: F401 - a fixture
