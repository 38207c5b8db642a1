"""`python -m truenorm` is `truenorm`."""

from truenorm.cli import main

main()
