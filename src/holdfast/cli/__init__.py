"""The command line: what a person can ask a store or a pipeline without writing a program."""
